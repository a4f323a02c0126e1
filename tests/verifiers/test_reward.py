"""Scores of members into one reward: gates, combiners, what is undecided; and the digest of all of it."""

import itertools
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jurat.platform.config import validate
from jurat.platform.errors import ConfigError, RunFailed
from jurat.platform.identity.rewards import reward_digest
from jurat.platform.recipe import Member, RewardPart
from jurat.platform.types import Step, Verdict, VerifierSpec
from jurat.verifiers.reward import COMBINERS, combine, digest_of_before, labels, spec_of, versions_of


def scored(score, steps=()):
    if score is None:
        return Verdict.of("abstained")
    status = {0.0: "incorrect", 1.0: "correct"}.get(score, "partial")
    return Verdict.of(status, score, steps=tuple(steps))


def worth(part, *scores, steps=()):
    made = {
        label: scored(score, steps if member.role == "process" else ())
        for label, member, score in zip(labels(part.members), part.members, scores, strict=True)
    }
    return combine(part, made)


def three(**more):
    members = (
        Member(use="math", weight=1.0),
        Member(use="length", role="style", weight=0.25),
        Member(use="tags", role="format", weight=0.5, gate=more.pop("gate", None)),
    )
    return RewardPart(members=members, **more)


@pytest.mark.parametrize(
    ("rule", "value"),
    [("sum", 1 + 0.25 * 0.5 + 0.5 * 0.25), ("mean", 1.25 / 1.75), ("min", 0.25), ("product", 0.5**0.25 * 0.25**0.5)],
)
def test_combiners_by_hand(rule, value):
    assert worth(three(combine=rule), 1.0, 0.5, 0.25).value == pytest.approx(value, rel=1e-15)


def test_a_closed_gate_makes_the_whole_nothing_and_an_open_one_changes_nothing():
    part = three(gate=0.5)
    assert (worth(part, 1.0, 1.0, 0.5).value, worth(part, 1.0, 1.0, 0.5).gate) == (1.5, "")
    shut = worth(part, 1.0, 1.0, 0.25)
    assert (shut.value, shut.gate, shut.trainable) == (0.0, "tags", True)
    assert shut.parts == {"math": 1.0, "length": 1.0, "tags": 0.25}  # what was said stays


@pytest.mark.parametrize(
    ("policy", "scores", "value", "gate"),
    [
        ("exclude", (None, 1.0, 1.0), None, ""),
        ("exclude", (1.0, 1.0, None), None, ""),  # nobody knows whether the gate is open
        ("exclude", (None, 1.0, 0.0), 0.0, "tags"),  # settled, whatever the other would have said
        ("zero", (None, 1.0, 1.0), 0.75, ""),
        ("zero", (1.0, 1.0, None), 0.0, "tags"),
    ],
)
def test_members_without_a_score(policy, scores, value, gate):
    found = worth(three(gate=1.0, on_undecided=policy), *scores)
    assert (found.value, found.gate, found.trainable) == (value, gate, value is not None)


def test_raise_raises_at_a_closed_gate_too():
    with pytest.raises(RunFailed, match="no score: abstained"):
        worth(three(gate=1.0, on_undecided="raise"), None, 1.0, 0.0)


def test_only_process_members_give_steps_and_a_closed_gate_takes_their_scores():
    steps = (
        Step(start=0, end=3, status="correct", score=1.0, why="3 = 3"),
        Step(start=3, end=5, status="abstained", score=None, why="prose"),
    )
    part = RewardPart(members=(Member(use="a"), Member(use="b", role="process", weight=0.0, gate=0.5)))
    assert worth(part, 1.0, 1.0, steps=steps).steps == steps
    assert [step.score for step in worth(part, 1.0, 0.0, steps=steps).steps] == [0.0, None]
    said = {"a": scored(1.0, steps), "b": scored(1.0)}
    assert combine(part, said).steps == ()  # an outcome's steps are its evidence, no credit


@given(st.lists(st.tuples(st.floats(0.01, 4), st.floats(0, 1)), min_size=1, max_size=6))
def test_combiners_stay_within_the_scores_and_rise_with_each(pairs):
    scores = [score for _, score in pairs]
    for rule in ("mean", "min"):
        assert min(scores) - 1e-12 <= COMBINERS[rule](pairs) <= max(scores) + 1e-12
    assert 0 <= COMBINERS["product"](pairs) <= 1
    for rule, place in itertools.product(COMBINERS, range(len(pairs))):
        better = [(w, min(1.0, s + 0.1) if n == place else s) for n, (w, s) in enumerate(pairs)]
        assert COMBINERS[rule](better) >= COMBINERS[rule](pairs) - 1e-12


@pytest.mark.parametrize(
    ("reward", "said"),
    [
        ({"members": []}, "reward.members is empty"),
        ({"members": [{"use": "problem", "weight": 0}]}, "every weight of reward.members is 0"),
        ({"combine": "product", "members": [{"use": "problem", "weight": -1}]}, "weights of 0 and above, got -1"),
        ({"combine": "mean", "members": [{"use": "a", "weight": 0, "role": "process"}]}, "needs a weight above 0"),
        ({"members": [{"use": "problem", "gate": 0}]}, "expected more than 0"),
        ({"members": [{"use": "problem", "gate": 1.5}]}, "expected at most 1"),
        ({"combine": "average"}, "'average' is none of sum, mean, min, product"),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_is_loaded(reward, said):
    with pytest.raises(ConfigError, match=re.escape(said)):
        validate({"model": "m", "data": {"train": {"source": "generated"}}, "reward": reward}, where="test")


def test_the_digest_is_over_everything_that_makes_the_number():
    bound = {"math": VerifierSpec(name="math", digest="sha256:aa"), "length": VerifierSpec(name="length", digest="sha256:bb"),
             "tags": VerifierSpec(name="tags", digest="sha256:cc")}  # fmt: skip

    def named(part, used=bound, **later):
        return reward_digest(spec_of(part, **later), versions_of(used))

    base = three()
    others = [
        named(three(gate=0.5)), named(three(gate=1.0)), named(three(combine="mean")), named(three(on_undecided="zero")),
        named(RewardPart(members=base.members[::-1])), named(base, bound | {"tags": VerifierSpec(name="tags", digest="sha256:dd")}),
        named(base, shaping={"scale": 2.0}), named(base, normalise={"over": "batch"}),
        named(RewardPart(members=(base.members[0].model_copy(update={"role": "safety"}), *base.members[1:]))),
        named(RewardPart(members=(base.members[0].model_copy(update={"weight": 2.0}), *base.members[1:]))),
        named(RewardPart(members=(base.members[0].model_copy(update={"args": {"x": 1}}), *base.members[1:]))),
    ]  # fmt: skip
    assert len({named(base), *others}) == len(others) + 1
    same = RewardPart(members=base.members, workers=3, max_undecided=0.5)  # how, not what
    assert named(same) == named(base)
    read_back = {**spec_of(base), "members": [{**each, "weight": each["weight"]} for each in spec_of(base)["members"]]}
    read_back["members"][0]["weight"] = 1  # a database may give a whole number back
    assert reward_digest(read_back, versions_of(bound)) == named(base)


def test_runs_of_before_are_known_by_the_digest_that_they_have():
    """Schema 1, written down when it was made."""
    bound = {"length": VerifierSpec(name="length", args={"max": 5}, digest="sha256:bb"),
             "exact": VerifierSpec(name="exact", digest="sha256:aa")}  # fmt: skip
    part = RewardPart(members=(Member(use="problem"), Member(use="length", role="style", weight=0.1, args={"max": 5})))
    assert digest_of_before(part, bound) == "sha256:456ab4b7568750258538c6b13a2056648aa220ff49e8a17bc25b206c2cfd8111"
    assert digest_of_before(part.model_copy(update={"combine": "mean"}), bound) == ""


def test_a_member_that_counts_for_nothing_excludes_nobody():
    """A checker of steps with weight 0 abstains where nothing can be checked: the outcome stands."""
    part = RewardPart(members=(Member(use="a"), Member(use="b", role="process", weight=0.0)))
    assert worth(part, 1.0, None).value == 1.0
    assert worth(part.model_copy(update={"on_undecided": "raise"}), 1.0, None).value == 1.0
