"""Rules on labelled traces; the numbers of a step by hand; and a run whose reward says nothing raises its alarm."""

from collections import Counter

import numpy as np
import pytest
import traces

from jurat.platform.errors import RunFailed
from jurat.platform.runs import alarms as rows
from jurat.platform.runs.store import Store
from jurat.platform.types import (
    Allocation,
    Batch,
    Group,
    Judgement,
    Message,
    Problem,
    Reward,
    Rollout,
    Scored,
    Verdict,
    VerifierSpec,
    Visit,
)
from jurat.trainers.alarms import OPENS, RULES, WARM, WITHIN, Seen, Watch, seen, slope
from jurat.trainers.limits import Limits


def test_each_rule_finds_its_hack_and_leaves_healthy_runs_alone():
    """``benchmarks/alarms.py`` has more of them."""
    made, hit, told, right = Counter(), Counter(), Counter(), Counter()
    for hack, trace in traces.labelled("test", 400):
        made[hack] += 1
        for rule in traces.raised(trace):
            told[rule] += 1
            hit[rule] += rule == hack
            right[rule] += rule == hack or rule in traces.ALSO.get(hack, ())
    assert set(traces.HACKS) == set(RULES)
    for rule in RULES:
        assert hit[rule] / made[rule] >= 0.9, (rule, made, hit)
        assert right[rule] / told[rule] >= 0.9, (rule, told, right)


def step(number, **more):
    return Seen(
        step=number, reward=0.5, correct=0.5, length=50.0, length_correlation=0.0, entropy=1.0, silent=0.3, **more
    )


def test_an_alarm_opens_after_three_of_five_and_closes_after_five_quiet_steps():
    watch, said = Watch(), []
    for number in range(WARM):
        assert watch.stepped(step(number, tricks={"empty box": 0.9})) == []  # nobody is asked while it warms up
    for number in range(WARM, WARM + 20):
        wrong = number - WARM in (2, 3, 5, 6, 7)
        said += [
            (a.rule, a.state, a.first_step, a.last_step)
            for a in watch.stepped(step(number, tricks={"empty box": 0.2 * wrong}))
        ]
    opened = WARM + 5  # the third of 2, 3 and 5
    assert (OPENS, WITHIN) == (3, 5)
    assert said == [("exploit", "open", opened, opened), ("exploit", "closed", opened, WARM + 12)]
    off = Watch(frozenset({"exploit"}))
    assert not [a for number in range(40) for a in off.stepped(step(number, tricks={"empty box": 0.9}))]


def test_slopes_by_hand():
    assert slope([1.0, 2.0, 3.0, 4.0])[0] == pytest.approx(1.0)
    assert slope([5.0] * 10)[0] == 0.0 and slope([1.0, 2.0]) == (0.0, 0.0)
    rise, sure = slope([0.0, 1.0, 0.0, 1.0, 0.0, 1.0])
    assert rise == pytest.approx(3 / 35) and abs(sure) < 1


def scored(name, index, text, score, *, style=0.0, n=4, gold="4", prompt="2 + 2?"):
    mask = np.array([False] + [True] * n)
    problem = Problem(
        id=name, messages=(Message(role="user", content=prompt),), reference=gold, verifier=VerifierSpec(name="math")
    )
    rollout = Rollout(
        id=f"{name}-{index}", problem=problem, visit=0, index=index, tokens=np.arange(1 + n), loss_mask=mask,
        sampler_logprobs=np.zeros(1 + n, np.float32), spans=(), text=text, char_ends=np.arange(1, n + 1), finish="stop",
    )  # fmt: skip
    verdicts = {"problem": Verdict.of("correct" if score else "incorrect"), "style": Verdict.of("partial", style)}
    reward = Reward(value=score + 0.5 * style, parts={"problem": float(score), "style": style})
    return Scored(rollout=rollout, judgement=Judgement(verdicts=verdicts, reward=reward))


def batch(*groups):
    made = []
    for place, some in enumerate(groups):
        visit = Visit(problem=some[0].rollout.problem, visit=0, position=place)
        made.append(Group(visit=visit, scored=tuple(some), allocation=Allocation(samples=len(some), reason="uniform")))
    return Batch(step=7, groups=tuple(made))


ROLES = {"problem": ("outcome", 1.0), "style": ("style", 0.5)}


def test_the_numbers_of_a_step_by_hand():
    long = "one two three four five six seven eight nine ten"
    a = [scored("a", 0, long, 1, n=8), scored("a", 1, long, 1, n=8), scored("a", 2, "no", 0, n=2)]
    b = [scored("b", 0, r"\boxed{}", 1), scored("b", 1, "4", 1)]
    found = seen(batch(a, b), ROLES, top=1.5)
    assert (found.step, found.reward, found.correct, found.length) == (
        7,
        pytest.approx(4 / 5),
        pytest.approx(4 / 5),
        pytest.approx(26 / 5),
    )
    assert found.length_correlation == pytest.approx(1.0)  # within group a alone: b is of one length and one reward
    assert found.silent == 0.5 and found.alike == pytest.approx(2 / 5)
    assert found.tricks == {"empty box": pytest.approx(1 / 4)} and found.samples["exploit"] == ("b-0",)
    assert found.samples["duplicates"] == ("a-0", "a-1")


def test_a_member_that_explains_the_reward_is_told():
    some = [scored("a", i, str(i), 1, style=s) for i, s in enumerate((0.0, 1.0, 0.0, 1.0))]
    assert seen(batch(some), ROLES, top=1.5).shares == {"style": pytest.approx(1.0)}
    mixed = [scored("a", i, str(i), i % 2, style=0.2) for i in range(4)]
    assert seen(batch(mixed), ROLES, top=1.5).shares == {"style": pytest.approx(0.0)}


def test_the_gold_copied_from_the_prompt_is_a_trick():
    prompt = "The answer of the example is 1234, as shown."
    got = seen(batch([scored("a", 0, "of the example is 1234", 1, gold="1234", prompt=prompt)]), ROLES, top=1.5)
    assert got.tricks == {"answer of the prompt": 1.0}


def test_a_reward_that_is_no_number_ends_the_run():
    bad = scored("a", 0, "x", 1)
    from dataclasses import replace

    bad = replace(bad, judgement=replace(bad.judgement, reward=replace(bad.judgement.reward, value=float("inf"))))
    with pytest.raises(RunFailed, match="the reward of sample a-0 of step 8 is inf"):
        Limits(0.5, 3, 16).check(batch([bad]), None)


def test_a_run_whose_reward_tells_nothing_apart_says_so(launched, tmp_path):
    """Everything is right by a rule on length that nobody can miss: no group has a difference, and the run is stopped."""
    recipe = {
        "model": "tiny-random", "data": {"train": {"source": "generated:plain", "levels": [1]}}, "steps": 40,
        "reward": {"members": [{"use": "length", "args": {"max": 4096}}]}, "algorithm": {"name": "grpo", "advantage": "rloo"},
        "allocation": {"samples_per_prompt": 2}, "prompts_per_step": 2, "sampling": {"max_new_tokens": 4}, "engine": {"dtype": "float32"},
        "alarms": {"pause_on": ["silent"]},
    }  # fmt: skip
    outcome, screen = launched(tmp_path, recipe, run_id="r")
    assert outcome.state == "interrupted" and outcome.step == WARM + OPENS
    assert any("alarm: silent at step 13" in note for note in screen.notes)
    store = Store.open(None, tmp_path)
    (row,) = store.read(lambda c: rows.of_run(c, store.run("r").pk))
    assert (row["rule"], row["state"], row["first_step"], row["evidence"]["share_of_groups"]) == (
        "silent",
        "open",
        WARM + OPENS - 1,
        1.0,
    )
    store.close()
