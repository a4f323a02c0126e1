"""Two Ray nodes on one machine: losing one is survived. Its own cluster, so its own file."""

import asyncio
import importlib.util

import pytest

from jurat.platform.recipe import Engine, RewardPart
from jurat.platform.types import Message, Problem, VerifierSpec
from jurat.verifiers.judge import build_judge

if importlib.util.find_spec("ray") is None:
    pytest.skip("needs Ray: pip install 'ray[default]'", allow_module_level=True)

PROBLEM = Problem(
    id="p", messages=(Message(role="user", content="1+1?"),), reference="2", verifier=VerifierSpec(name="math")
)


@pytest.mark.soak
async def test_a_lost_node(monkeypatch):
    """Its judge is made again on a node that joins; what it had in hand is judged meanwhile by the other, each once."""
    import ray
    from ray.cluster_utils import Cluster

    from jurat.engine.ray.home import open_home

    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    second = nodes.add_node(num_cpus=1)
    notes = []
    engine = Engine(
        home="ray",
        ray=nodes.address,
        pools={"one": {"cpus": 1}, "two": {"cpus": 1}},
        placement={"sampler": "one", "judge": "two"},
    )
    try:
        with open_home(engine, notes.append, roles=["sampler", "judge"]) as home:
            with home.judge(partial_judge(), [PROBLEM.verifier]) as judge:
                host = judge.crew.hosts[0]
                before = (await judge.judge(PROBLEM, "It is 2.", finish="stop")).reward.value
                here = ray.get_runtime_context().get_node_id()
                lost = second if host.node != here else None
                assert lost is not None, "the pool two landed on the head"
                tasks = [asyncio.create_task(judge.judge(PROBLEM, f"{n}", finish="stop")) for n in range(200)]
                await asyncio.sleep(0)
                await asyncio.to_thread(nodes.remove_node, lost, allow_graceful=False)
                await asyncio.to_thread(nodes.add_node, num_cpus=1)
                found = [made.reward.value for made in await asyncio.gather(*tasks)]
        assert before == 1.0
        assert found == [float(n == 2) for n in range(200)]
        assert any("the judge" in note and "took over" in note for note in notes)
    finally:
        ray.shutdown()
        nodes.shutdown()


def partial_judge():
    from functools import partial

    return partial(build_judge, RewardPart())
