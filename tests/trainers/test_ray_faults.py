"""Twenty processes of Ray runs hit at named points, and a machine lost: the end is that of a run in one process."""

from __future__ import annotations

import importlib.util
import random
from collections.abc import Iterator
from typing import Any

import pytest

from benches import benchmark
from jurat.engine.ray import needs_ray
from jurat.platform.faults import POINTS

if importlib.util.find_spec("ray") is None:
    pytest.skip("needs Ray: pip install 'ray[default]'", allow_module_level=True)


faults = benchmark("faults")
HITS = [(role, point, sent) for role, points in faults.POINTS.items() for point in points for sent in ("KILL", "STOP")]
TWENTY = random.Random(5).sample(HITS, 20)


def test_five_points_of_each_role():
    assert sorted(faults.POINTS) == ["critic", "judge", "learner", "rank", "reference", "sampler"]
    assert all(len({point.partition(":")[0] for point in points}) == 5 for points in faults.POINTS.values())
    assert {point.partition(":")[0] for points in faults.POINTS.values() for point in points} <= set(POINTS)


@pytest.fixture(scope="class")
def cluster() -> Iterator[None]:
    with faults.cluster(4):
        yield


@pytest.mark.soak
class TestHits:
    """On one cluster, which goes before the next test makes its own."""

    @pytest.mark.parametrize(("role", "point", "sent"), TWENTY, ids=map("-".join, TWENTY))
    def test_hit(self, cluster, role, point, sent):
        """Each (problem, visit, index) is there once; numbers, weights and moments are the clean run's, bit for bit."""
        row = faults.hit(role, point, sent, hang_seconds=20.0)
        assert row.seconds is not None, "the point was not reached"
        assert (row.differs, row.lost, row.doubled) == ((), 0, 0)


@pytest.mark.soak
def test_a_lost_machine_and_a_spare_one():
    """All roles lose their machine after a step; a spare pool on another takes them, with what this one kept of the
    learner and the critic."""
    needs_ray()
    import ray
    from ray.cluster_utils import Cluster

    nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    machines = [nodes.add_node(num_cpus=1) for _ in range(2)]

    class Screen(faults.Screen):
        def step(self, report: Any) -> None:
            super().step(report)
            if report.step == 1:
                from jurat.engine.ray.cluster import _alive

                actors = ray._private.state.actors().values()
                held = {each["Address"]["NodeID"] for each in actors if each["State"] == "ALIVE"}
                lost = [machine for machine in machines if machine.node_id in held]
                assert len(lost) == 1 and lost[0].node_id in _alive()
                nodes.remove_node(lost[0], allow_graceful=False)

    pools = {"main": {"cpus": 1}, "extra": {"cpus": 1, "spare": True}}
    screen = Screen()
    try:
        found = faults.train(
            {
                "algorithm": faults.ALGORITHMS["critic"], "engine.home": "ray", "engine.ray": nodes.address,
                "engine.pools": pools, "engine.hang_seconds": 60.0,
            }, screen,
        )  # fmt: skip
    finally:
        ray.shutdown()
        nodes.shutdown()
    assert found == faults.clean("critic")
    said = "\n".join(screen.notes)
    assert "pool main lost its machine; spare pool extra stands in for it" in said
    for role in ("sampler", "judge", "learner", "critic"):
        assert f"the {role} (process" in said
