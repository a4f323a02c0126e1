"""Several judges of one thing: rules by hand, failing members, disagreement; members asked apart, each in its own way."""

import math
import random
import statistics
import textwrap
from concurrent.futures import Future
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jurat.platform.errors import ConfigError
from jurat.platform.recipe import Member, RewardPart
from jurat.platform.types import Step, Verdict, VerifierSpec
from jurat.verifiers.ensemble import RULES, disagreement, ensemble
from jurat.verifiers.judge import build_judge
from jurat.verifiers.verdicts import problem_of


def verdict(score, **more):
    if score is None:
        return Verdict.of(more.pop("status", "abstained"), **more)
    return Verdict.of({0.0: "incorrect", 1.0: "correct"}.get(score, "partial"), score, **more)


def put(*scores, **args):
    return ensemble(of=["length"] * len(scores), **args).put([verdict(score) for score in scores])


@pytest.mark.parametrize(
    ("rule", "score"),
    [("median", 0.5), ("mean", 0.52), ("trimmed", (0.4 + 0.5 + 0.7) / 3), ("min", 0.0)],
)
def test_rules_by_hand(rule, score):
    assert put(0.0, 0.4, 0.5, 0.7, 1.0, rule=rule).score == pytest.approx(score)


def test_the_lower_bound_takes_off_what_they_are_apart():
    apart = statistics.stdev([0.6, 0.8, 0.7])
    assert put(0.6, 0.8, 0.7, rule="lcb", k=2.0).score == pytest.approx(0.7 - 2 * apart)
    assert put(0.1, 0.9, 0.1, rule="lcb", k=3.0).score == 0.0
    assert put(0.4, rule="lcb", k=3.0).score == 0.4


@given(st.lists(st.floats(0, 1), min_size=1, max_size=9), st.sampled_from(sorted(RULES)))
def test_a_score_is_within_its_members_and_in_no_order(scores, rule):
    made = put(*scores, rule=rule).score
    low = 0.0 if rule == "lcb" else min(scores)
    assert low - 1e-12 <= made <= max(scores) + 1e-12
    assert made == pytest.approx(put(*reversed(scores), rule=rule).score, abs=1e-12)
    assert math.isclose(put(*scores, rule=rule).evidence["disagreement"], disagreement(scores), abs_tol=1e-12)


def test_one_that_fails_is_left_out_and_told():
    made = ensemble(of=["math", "length", {"use": "tags"}]).put(
        [verdict(1.0), Verdict.of("timeout", why="killed after 2 s"), verdict(0.5)]
    )
    assert (made.status, made.score, made.flags) == ("partial", 0.75, ("without length",))
    assert made.evidence["members"][1] == ["length", "timeout", None, "killed after 2 s"]
    few = put(1.0, None, None)
    assert (few.status, few.why) == ("undecided", "1 of 3 members have a score, 2 are needed")
    assert put(1.0, None, None, quorum=1).score == 1.0
    none = ensemble(of=["math", "length"]).put(
        [Verdict.of("infra", why="no process"), Verdict.of("timeout", why="late")]
    )
    assert (none.status, none.fault, none.why) == ("infra", "infra", "no member has a score: no process")


def test_where_they_are_too_far_apart_there_is_no_verdict():
    assert put(0.0, 1.0, 0.5, abstain_above=0.4).status == "undecided"
    assert put(0.0, 1.0, 0.5, abstain_above=0.4).why == "members are 0.5 apart, at most 0.4"
    assert put(0.4, 0.6, 0.5, abstain_above=0.4).score == 0.5


def test_steps_of_one_place_are_put_together():
    a = (
        Step(start=0, end=4, status="correct", score=1.0, why="one"),
        Step(start=5, end=9, status="incorrect", score=0.0, why="no"),
    )
    b = (
        Step(start=0, end=4, status="incorrect", score=0.0, why="two"),
        Step(start=5, end=9, status="abstained", score=None, why=""),
    )
    made = ensemble(of=["math", "length"], rule="mean").put([verdict(1.0, steps=a), verdict(0.0, steps=b)])
    assert [(s.start, s.end, s.status, s.score, s.why) for s in made.steps] == [
        (0, 4, "partial", 0.5, "one; two"), (5, 9, "incorrect", 0.0, "no"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ({"of": ["math"], "rule": "medain"}, "median"), ({"of": ["math"], "quorum": 2}, "quorum"), ({"of": ["math"], "trim": 0.6}, "trim"),
        ({"of": []}, "of"), ({"of": ["math"], "k": -1}, "'k'"), ({"of": ["math"], "abstain_above": "x"}, "abstain_above"),
        ({"of": ["mth"]}, "math"),
    ],
)  # fmt: skip
def test_bad_arguments_are_refused_at_the_door(args, said):
    with pytest.raises(ConfigError, match=said):
        build_judge(RewardPart(members=(Member(use="ensemble", args=args),)))


MEMBERS = textwrap.dedent(
    """
    import time
    import jurat

    @jurat.verifier("hangs", deadline=0.5)
    def hangs(problem, completion):
        if "hang" in completion:
            time.sleep(60)
        return 0.25

    SEEN = []

    @jurat.verifier("many", batch=True)
    def many(problems, completions):
        return [min(1.0, len(problems) / 10)] * len(problems)
    """
)


def test_members_are_asked_apart_each_with_its_deadline_and_in_its_batches(tmp_path):
    (tmp_path / "members.py").write_text(MEMBERS)
    of = ["exact", "hangs", "many"]
    part = RewardPart(members=(Member(use="ensemble", args={"of": of, "rule": "mean"}),), workers=2)
    problem = problem_of("7", verifier="number")
    with build_judge(part, user_files=[tmp_path / "members.py"]) as judge:
        (label,) = bound = judge.bind([])
        assert bound[label].digest.startswith("sha256:")
        texts = ["7"] * 6 + ["hang"]
        found = dict(judge.judge_many([(problem, text) for text in texts]))
        verdicts = [found[place].verdicts["ensemble"] for place in range(7)]
    batched = verdicts[0].evidence["members"][2][2]
    assert batched > 0.1  # more than one in a call
    assert verdicts[0].score == pytest.approx((1.0 + 0.25 + batched) / 3)
    assert verdicts[6].flags == ("without hangs",) and verdicts[6].evidence["members"][1][1] == "timeout"
    assert verdicts[6].score is not None and verdicts[6].verifier.name == "ensemble"


def test_bounded_members_make_a_bounded_whole():
    part = RewardPart(members=(Member(use="ensemble", args={"of": ["exact", "number", "math"]}),))
    with build_judge(part) as judge:
        made = judge.verdict(problem_of("7"), "7.0")
        assert (made.score, made.isolation) == (1.0, "inline")
        assert made.evidence["disagreement"] == pytest.approx(statistics.stdev([0.0, 1.0, 1.0]))
        assert judge.pids() == []


def test_the_version_is_over_members_and_rule():
    def version(**args):
        with build_judge(RewardPart(members=(Member(use="ensemble", args=args),))) as judge:
            return judge.bind([])["ensemble"].digest

    of = ["exact", "number"]
    found = {
        version(of=of), version(of=of, rule="mean"), version(of=of[::-1]), version(of=of, quorum=1), version(of=of, abstain_above=0.5),
        version(of=["exact", {"use": "number", "args": {"tolerance": 0.1}}]),
    }  # fmt: skip
    assert len(found) == 6


def test_a_hacked_member_moves_the_median_little_and_the_mean_much():
    """Three models with noise of 0.1 around a truth; one says 1 for 5 % of the samples (``benchmarks/ensemble.py`` has more)."""
    drawn, off = random.Random(0), {(rule, bad): 0.0 for rule in ("median", "mean") for bad in (False, True)}
    for _ in range(20_000):
        truth = drawn.random()
        scores = [min(1.0, max(0.0, truth + drawn.gauss(0, 0.1))) for _ in range(3)]
        hacked = [1.0, *scores[1:]] if drawn.random() < 0.05 else scores
        for rule, bad in off:
            off[rule, bad] += abs(RULES[rule](hacked if bad else scores, 0.2, 1.0) - truth)
    assert off["median", True] / off["median", False] < 1.05
    assert off["mean", True] / off["mean", False] > 1.10


def test_nobody_waits_for_ever_for_an_ensemble():
    """A member that breaks or is dropped ends the whole, whatever its process did."""
    with build_judge(RewardPart()) as judge:
        use = SimpleNamespace(put=lambda made: made[0], spec=VerifierSpec(name="ensemble"), isolation="process")
        broken, dropped = Future(), Future()
        first, second = judge._together(use, [broken]), judge._together(use, [dropped])
        broken.set_exception(RuntimeError("x"))
        dropped.cancel()
        assert first.result(timeout=1).status == "error" and second.cancelled()
