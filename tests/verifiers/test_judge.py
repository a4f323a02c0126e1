"""The judge under verifiers that hang, die, fork, flood and lie: one verdict each, and nothing else is lost."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import os
import random
import re
import signal
import threading
import time
from pathlib import Path

import psutil
import pytest

from jurat.platform.errors import ConfigError, RunFailed
from jurat.platform.recipe import Member, RewardPart
from jurat.verifiers.judge import LocalJudge, build_judge
from jurat.verifiers.pool import Limits
from jurat.verifiers.verdicts import problem_of

HOSTILE = Path(__file__).parent / "rules_files" / "hostile.py"
SMALL = Limits(memory_bytes=192 * 2**20)
GOOD = problem_of("7", verifier="hostile")


def judge_of(use: str = "hostile", *, workers: int = 1, limits: Limits = SMALL, **given) -> LocalJudge:
    args = given.pop("args", {})
    part = RewardPart(members=(Member(use=use, args=args),), workers=workers)
    return build_judge(part, user_files=[HOSTILE], limits=limits, **given)


@pytest.fixture(scope="module")
def judge():
    with judge_of(spares=1, cache=0, deadline=120.0) as made:
        yield made


@pytest.fixture(scope="module")
def quick():
    """A judge with the verifiers' own deadline, a second: for what never ends."""
    with judge_of(spares=1, cache=0) as made:
        yield made


def alive(pids: list[int]) -> list[int]:
    return [p for p in pids if psutil.pid_exists(p) and psutil.Process(p).status() != psutil.STATUS_ZOMBIE]


def wait_for(condition, seconds: float = 120.0) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.01)
    return condition()


# ---- one bad verdict each ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("word", "status", "said"),
    [
        ("exit", "error", "exit code 0"),
        ("sys_exit", "error", "SystemExit: 3"),
        ("fork", "error", "left a process running"),
        ("fork_returns", "error", "left a process running"),
        ("daemon", "error", "left a process running"),
        ("memory", "error", "MemoryError"),
        ("print", "error", "printed more than"),
        ("segv", "error", "SIGSEGV"),
        ("kill_group", "infra", "SIGKILL"),
        ("close_pipes", "error", "process ended"),
        ("raise", "error", "ValueError: no such luck"),
        ("deep", "error", "RecursionError"),
        ("nan", "error", "returned nan"),
        ("two", "error", "returned 2.0"),
        ("string", "error", "returned str 'correct'"),
        ("bad_verdict", "error", "score 0.3"),
        ("none", "abstained", "returned None"),
        ("half", "partial", "hostile"),
        ("loop_c", "timeout", "deadline of 1 s"),
        ("ignore_term", "timeout", "deadline of 1 s"),
    ],
)
def test_a_misbehaving_verifier_costs_its_own_verdict(judge, quick, word, status, said):
    judge = quick if status == "timeout" else judge
    verdict = judge.verdict(GOOD, "!" + word)
    assert (verdict.status, said in verdict.why) == (status, True), verdict.why
    assert verdict.fault == {"error": "verifier", "timeout": "verifier", "infra": "infra"}.get(status)
    assert verdict.score == (0.5 if word == "half" else None)
    assert verdict.isolation == "process" and verdict.verifier.name == "hostile"
    after = judge.verdict(GOOD, "7")
    assert (after.status, after.score) == ("correct", 1.0)


def test_an_error_carries_the_traceback(judge):
    verdict = judge.verdict(GOOD, "!raise")
    assert "no such luck" in verdict.evidence["trace"] and "hostile.py" in verdict.evidence["trace"]


def test_a_process_that_was_started_and_left_is_killed_with_its_verdict(judge, quick):
    before = {p.pid for p in psutil.process_iter()}
    with judge_of() as own:
        for word in ("fork", "daemon", "fork_returns"):
            assert own.verdict(GOOD, "!" + word).status == "error"
        own.verdict(GOOD, "7")

    def left() -> list[int]:
        # The shared judges may start their spares meanwhile.
        shared = judge.pids() + quick.pids()
        theirs = [c.pid for pid in shared for c in psutil.Process(pid).children(recursive=True)] + shared
        found = {p.pid for p in psutil.process_iter() if _is_worker(p)} - before - {os.getpid(), *theirs}
        return alive(sorted(found))

    assert wait_for(lambda: not left())


def _is_worker(process: psutil.Process) -> bool:
    try:
        return "jurat.verifiers.pool.worker" in process.cmdline()
    except psutil.Error:
        return False


def test_blame_may_be_the_policy_s():
    with judge_of("hostile_policy") as judge:
        verdict = judge.verdict(GOOD, "anything")
    assert (verdict.status, verdict.fault, verdict.score) == ("timeout", "policy", 0.0)


# ---- the batch survives ------------------------------------------------------------------------------------------


def test_loops_in_c_cost_two_of_two_hundred():
    """2 of 200 hold the interpreter for ever: each costs one process at its deadline, once; 198 are right, workers are
    restored, no zombie is left."""
    texts = ["7" if i % 2 else "8" for i in range(200)]
    texts[40] = texts[41] = "!loop_c"
    with judge_of(workers=2, deadline=2.0) as judge:
        assert wait_for(lambda: len(judge.pids()) == 3)
        judge.verdict(GOOD, "7")
        born = set(judge.pids())
        made = dict(judge.judge_many((GOOD, text) for text in texts))
        assert wait_for(lambda: len(judge.pids()) == 3)
        dead = born - set(judge.pids())
        assert wait_for(lambda: not [p for p in dead if psutil.pid_exists(p)]), "zombies"
    assert sorted(made) == list(range(200))
    verdicts = {i: made[i].verdicts["hostile"] for i in made}
    assert [(verdicts[i].status, verdicts[i].attempt) for i in (40, 41)] == [("timeout", 1)] * 2
    assert len(dead) == 2
    right = [i for i in range(200) if i not in (40, 41) and verdicts[i].score == float(texts[i] == "7")]
    assert len(right) == 198


def test_exactly_one_verdict_each_under_random_kills():
    """Workers are killed from outside, and some kill themselves, while 300 pairs are judged."""
    rng = random.Random(7)
    texts = [
        rng.choice(["7"] * 20 + ["8"] * 10 + ["!half", "!raise", "!exit", "!fork_returns"]) + " " * i
        for i in range(300)
    ]
    with judge_of(workers=2, cache=0) as judge:
        judge.verdict(GOOD, "7")
        made = []
        for found in judge.judge_many((GOOD, text) for text in texts):
            made.append(found)
            pids = judge.pids()
            if len(made) % 10 == 0 and pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(rng.choice(pids), signal.SIGKILL)
    count = collections.Counter(index for index, _ in made)
    assert count == collections.Counter(range(300))
    for index, judgement in made:
        verdict = judgement.verdicts["hostile"]
        if verdict.status not in ("error", "infra"):
            assert verdict.score == {"7": 1.0, "8": 0.0, "!half": 0.5}[texts[index].strip()]
    assert sum(judgement.verdicts["hostile"].score is not None for _, judgement in made) > 100


def test_a_batched_verifier_that_breaks_costs_only_the_sample_that_broke_it():
    texts = ["7", "8", "!exit", "7", "!loop_c", "7", "!nan", "8"]
    with judge_of("hostile_batch") as judge:
        made = dict(judge.judge_many((GOOD, text) for text in texts))
    status = [made[i].verdicts["hostile_batch"].status for i in range(8)]
    assert status == ["correct", "incorrect", "error", "correct", "timeout", "correct", "error", "incorrect"]


def test_a_wrong_count_is_an_error_for_all_and_never_spread():
    """For all of its batch: how many that are is the judge's to say, as an idle worker takes what is there."""
    with judge_of("hostile_batch") as judge:
        made = dict(judge.judge_many((GOOD, text) for text in ["7", "!short", "7"]))
    whys = [made[i].verdicts["hostile_batch"].why for i in range(3)]
    told = re.fullmatch(r"hostile_batch returned (\d) results for (\d) completions", whys[1])
    assert told and int(told[1]) < int(told[2]) == whys.count(whys[1])
    assert [made[i].reward.value for i in range(3)] == [None if why == whys[1] else 1.0 for why in whys]


# ---- flow --------------------------------------------------------------------------------------------------------


def test_results_come_as_they_complete_and_no_more_are_read_than_the_window(tmp_path):
    """The first is held back until all others are there."""
    read, held = 0, tmp_path / "held"

    def pairs():
        nonlocal read
        for i in range(100):
            read += 1
            yield GOOD, f"!wait {held}" if i == 0 else "7"

    with judge_of(workers=2, deadline=120.0, cache=0) as judge:
        judge.verdict(GOOD, "7")
        order = []
        for index, _ in judge.judge_many(pairs(), window=8):
            order.append(index)
            assert read <= len(order) + 8
            if len(order) == 99:
                held.with_suffix(".go").touch()
    assert sorted(order) == list(range(100)) and order[-1] == 0


async def test_the_async_form_gives_the_same(judge):
    made = {index: judgement async for index, judgement in judge.stream((GOOD, str(i)) for i in range(20))}
    assert [made[i].reward.value for i in range(20)] == [float(i == 7) for i in range(20)]


async def test_a_hanging_verifier_does_not_hold_the_event_loop(tmp_path):
    """It ends because of what is done here while it runs."""
    held = tmp_path / "held"
    with judge_of(deadline=120.0) as judge:
        waiting = asyncio.create_task(judge.judge(GOOD, f"!wait {held}", finish="stop"))
        while not held.exists():
            await asyncio.sleep(0.01)
        held.with_suffix(".go").touch()
        assert (await waiting).verdicts["hostile"].status == "abstained"


async def test_a_cancelled_call_leaves_the_judge_usable(quick):
    task = asyncio.create_task(quick.judge(GOOD, "!sleep", finish="stop"))
    await asyncio.sleep(0.05)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (await quick.judge(GOOD, "7", finish="stop")).reward.value == 1.0


def test_any_thread_and_any_event_loop(judge):
    out: dict[int, float | None] = {}

    def work(i: int) -> None:
        async def one() -> None:
            out[i] = (await judge.judge(GOOD, "7" if i % 2 else "8", finish="stop")).reward.value

        asyncio.run(one())

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert out == {i: float(i % 2) for i in range(8)}


def test_the_deadline_does_not_count_the_queue():
    with judge_of("hostile", workers=1, deadline=0.5, cache=0) as judge:
        texts = ["!sleep", "!sleep", "!sleep", "7"]
        made = dict(judge.judge_many((GOOD, text) for text in texts))
    assert [made[i].verdicts["hostile"].status for i in range(4)] == ["timeout"] * 3 + ["correct"]


def many(count: int) -> None:
    process = psutil.Process()
    limits = Limits(tasks_per_process=3_000)
    with judge_of("hostile", workers=2, limits=limits, deadline=30.0, cache=1_000) as judge:
        peak = 0
        total = 0
        for seen, (_, judgement) in enumerate(
            judge.judge_many((GOOD, f"{i % 9} {' ' * (i % 50)}{i}") for i in range(count))
        ):
            total += judgement.reward.value is not None
            if seen == count // 5:
                first = process.memory_info().rss
            elif seen > count // 5 and seen % 500 == 0:
                peak = max(peak, process.memory_info().rss)
    assert total == count
    assert peak - first < 32 * 2**20


def test_many_verdicts_in_flat_memory():
    many(6_000)


@pytest.mark.soak
def test_a_hundred_thousand_verdicts_in_flat_memory():
    many(100_000)


def test_a_process_is_recycled_after_its_share_of_tasks():
    with judge_of(limits=Limits(tasks_per_process=50), cache=0) as judge:
        judge.verdict(GOOD, "7")
        seen = set(judge.pids())
        for _, judgement in judge.judge_many((GOOD, "7" + " " * i) for i in range(150)):
            assert judgement.reward.value == 1.0
            seen |= set(judge.pids())
        assert len(seen) >= 4  # 151 tasks, 50 a process


# ---- kinds of verifiers ------------------------------------------------------------------------------------------


def test_async_functions_classes_and_finish():
    with judge_of("hostile_async") as judge:
        assert judge.verdict(GOOD, "7").status == "correct"
        assert judge.verdict(GOOD, "!raise").why == "hostile_async raised ValueError: no such luck"
    with judge_of("counter", spares=0, args={"start": 4}) as judge:
        assert [judge.verdict(GOOD, "x").score for _ in range(3)] == [0.005, 0.006, 0.007]
    with judge_of("told", args={"scale": 0.5}) as judge:
        assert judge.verdict(GOOD, "x").score == 0.5
        assert judge.verdict(GOOD, "x", finish="length").score == 0.0


def test_a_text_of_a_megabyte_and_lone_surrogates_travel(judge):
    assert judge.verdict(GOOD, "x" * 2**20).status == "incorrect"
    assert judge.verdict(problem_of("\ud800", verifier="hostile"), "\ud800").status == "correct"


# ---- several members, the cache, the end -------------------------------------------------------------------------


def test_members_are_weighted_and_an_undecided_one_decides_by_the_spec():
    def run(policy: str, text: str):
        members = (
            Member(use="problem"),
            Member(use="length", role="style", weight=0.25, args={"max": 5}),
            Member(use="hostile", weight=2.0),
        )
        part = RewardPart(members=members, on_undecided=policy)
        problem = problem_of("7", verifier="number")
        with build_judge(part, user_files=[HOSTILE]) as judge:
            return dict(judge.judge_many([(problem, text)]))[0]

    whole = run("exclude", "7")
    assert whole.reward.value == 1.0 + 0.25 + 2.0 and whole.reward.trainable
    assert dict(whole.reward.parts) == {"problem": 1.0, "length": 1.0, "hostile": 1.0}
    assert {k: v.isolation for k, v in whole.verdicts.items()} == {
        "problem": "inline", "length": "inline", "hostile": "process",
    }  # fmt: skip
    left_out = run("exclude", "!none 7")
    assert left_out.reward.value is None and not left_out.reward.trainable
    assert dict(left_out.reward.parts) == {"problem": 1.0, "length": 0.0, "hostile": None}
    assert run("zero", "!none 7").reward.value == 1.0
    with pytest.raises(RunFailed, match="no score: error"):
        run("raise", "!raise")


def test_decided_verdicts_are_cached_and_undecided_ones_never():
    with judge_of("hostile") as judge:
        one, two = judge.verdict(GOOD, "7"), judge.verdict(GOOD, "7")
        assert one is two
        assert judge.verdict(GOOD, "!none") is not judge.verdict(GOOD, "!none")
        assert judge.verdict(GOOD, "!raise") is not judge.verdict(GOOD, "!raise")
        other = problem_of("8", verifier="hostile")
        assert judge.verdict(other, "7").score == 0.0
    with judge_of("counter") as judge:
        assert judge.verdict(GOOD, "x") is not judge.verdict(GOOD, "x")


def test_closing_ends_everything(tmp_path):
    judge, held = judge_of("hostile", workers=2, deadline=120.0), tmp_path / "held"
    judge.verdict(GOOD, "7")
    pids = judge.pids()
    result: list = []
    waiting = threading.Thread(target=lambda: result.append(judge.verdict(GOOD, f"!wait {held}")))
    waiting.start()
    assert wait_for(held.exists)
    judge.close()
    waiting.join(120)
    assert result[0].status == "infra" and result[0].fault == "infra"
    with pytest.raises(RunFailed, match="this judge is closed"):
        judge.verdict(GOOD, "8")
    judge.close()
    assert wait_for(lambda: not [p for p in pids if psutil.pid_exists(p)])


def test_a_killed_parent_leaves_no_worker(tmp_path):
    import subprocess
    import sys

    text = (
        "import sys, time\nfrom pathlib import Path\nfrom jurat.platform.recipe import Member, RewardPart\n"
        "from jurat.verifiers.judge import build_judge\n"
        "judge = build_judge(RewardPart(members=(Member(use='hostile'),)), user_files=[Path(sys.argv[1])])\n"
        "print(*judge.pids(), flush=True)\ntime.sleep(100)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", text, str(HOSTILE)], stdout=subprocess.PIPE, text=True)
    pids = [int(p) for p in parent.stdout.readline().split()]
    assert pids
    parent.kill()
    parent.wait()
    assert wait_for(lambda: not alive(pids))


# ---- bad input ---------------------------------------------------------------------------------------------------


def test_an_unknown_verifier_names_the_nearest():
    with pytest.raises(ConfigError, match=r"Did you mean 'math'"):
        build_judge(RewardPart(members=(Member(use="maths"),)))
    with pytest.raises(ConfigError, match="Did you mean 'hostile'"):
        judge_of("hostle")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("def broken(:\n", "invalid syntax"),
        ("import not_there\n", "not_there"),
        ("raise RuntimeError('at import')\n", "at import"),
        ("x = 1\n", "registers no verifier"),
        ("import jurat\n@jurat.verifier('math')\ndef f(p, c): ...\n", "built in"),
        ("import jurat\n@jurat.verifier('a')\ndef f(p, c): ...\n@jurat.verifier('a')\ndef g(p, c): ...\n", "twice"),
        ("import os\nos._exit(3)\n", "exit code 3"),
        ("print('x' * 10**7)\nimport nope\n", "nope"),
    ],
)
def test_a_file_that_does_not_load_says_why_and_where(tmp_path, text, said):
    path = tmp_path / "rules.py"
    path.write_text(text)
    with pytest.raises((ConfigError, RunFailed)) as told:
        build_judge(RewardPart(members=(Member(use="a"),)), user_files=[path])
    assert said in str(told.value)


def test_a_missing_file_names_the_nearest(tmp_path):
    (tmp_path / "my_rules.py").write_text("")
    with pytest.raises(ConfigError, match=r"Did you mean 'my_rules\.py'"):
        build_judge(RewardPart(), user_files=[tmp_path / "my_rule.py"])
    with pytest.raises(ConfigError, match=r"neither a \.py file nor an installed entry point"):
        build_judge(RewardPart(), user_files=["my_pack"])


def test_an_argument_it_does_not_take_is_refused():
    with pytest.raises(ConfigError, match=r"takes no argument 'tolerence'\. Did you mean 'tolerance'"):
        build_judge(RewardPart(members=(Member(use="number", args={"tolerence": 1}),)))
    with pytest.raises(ConfigError, match="needs the argument 'pattern'"):
        build_judge(RewardPart(members=(Member(use="regex_format"),)))


def test_a_user_s_code_is_never_imported_here():
    import sys

    with judge_of() as judge:
        judge.verdict(GOOD, "7")
        judge.bind()
    assert not [name for name, module in list(sys.modules.items()) if getattr(module, "__file__", None) == str(HOSTILE)]


# ---- identity ----------------------------------------------------------------------------------------------------


def test_bind_gives_each_verifier_its_version():
    part = RewardPart(members=(Member(use="problem"), Member(use="told", args={"scale": 0.5}), Member(use="told")))
    with build_judge(part, user_files=[HOSTILE]) as judge:
        bound = judge.bind([problem_of("7", verifier="number").verifier, problem_of("7", verifier="exact").verifier])
        assert list(bound) == ["told", "told#2", "exact", "number"]
        digests = {spec.digest for spec in bound.values()}
        assert len(digests) == 4 and all(d.startswith("sha256:") for d in digests)
        spec = judge.spec_digest
    with build_judge(part, user_files=[HOSTILE]) as judge:
        judge.bind([problem_of("7", verifier="exact").verifier, problem_of("8", verifier="number").verifier])
        assert judge.spec_digest == spec
    changed = part.model_copy(update={"on_undecided": "zero"})
    with build_judge(changed, user_files=[HOSTILE]) as judge:
        judge.bind([problem_of("7", verifier="exact").verifier, problem_of("8", verifier="number").verifier])
        assert judge.spec_digest != spec
