"""Two Ray nodes on one machine: losing one is survived. Its own cluster, so its own file."""

import asyncio
import importlib.util
from functools import partial

import pytest

from jurat.engine.ray import needs_ray
from jurat.platform.recipe import Engine, RewardPart
from jurat.platform.types import Message, Problem, VerifierSpec
from jurat.verifiers.judge import build_judge

if importlib.util.find_spec("ray") is None:
    pytest.skip("needs Ray: pip install 'ray[default]'", allow_module_level=True)

PROBLEM = Problem(
    id="p", messages=(Message(role="user", content="1+1?"),), reference="2", verifier=VerifierSpec(name="math")
)


@pytest.mark.soak
async def test_a_lost_node():
    """Its judge is made again on a node that joins; what it had in hand is judged there, each once."""
    needs_ray()
    import ray
    from ray.cluster_utils import Cluster

    from jurat.engine.ray.home import open_home

    nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    second = nodes.add_node(num_cpus=1)
    notes = []
    engine = Engine(home="ray", ray=nodes.address, pools={"main": {"cpus": 1}})
    try:
        with open_home(engine, notes.append, roles=["judge"]) as home:
            with home.judge(partial(build_judge, RewardPart()), [PROBLEM.verifier]) as judge:
                host = judge.crew.hosts[0]
                before = (await judge.judge(PROBLEM, "It is 2.", finish="stop")).reward.value
                was = host.node
                tasks = [asyncio.create_task(judge.judge(PROBLEM, f"{n}", finish="stop")) for n in range(200)]
                await asyncio.sleep(0)
                nodes.remove_node(second, allow_graceful=False)
                nodes.add_node(num_cpus=1)
                found = [made.reward.value for made in await asyncio.gather(*tasks)]
        assert before == 1.0
        assert host.node != was
        assert found == [float(n == 2) for n in range(200)]
        assert any("the judge" in note and "took over" in note for note in notes)
    finally:
        ray.shutdown()
        nodes.shutdown()
