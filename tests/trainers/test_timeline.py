"""Lag and phases by hand; rows in flight as JSON, exactly."""

import dataclasses
import json
import time

import numpy as np

from jurat.platform.config import validate
from jurat.platform.recipe import Correction
from jurat.platform.types import (
    Allocation,
    Batch,
    Completion,
    Group,
    Judgement,
    Message,
    Problem,
    Reward,
    Rollout,
    Scored,
    Span,
    Step,
    Verdict,
    VerifierSpec,
    Visit,
)
from jurat.trainers.controllers import build_controllers
from jurat.trainers.presets import filled, staleness
from jurat.trainers.snapshot import Drawn
from jurat.trainers.timeline import lag_metrics, phase_metrics, waited

PROBLEM = Problem(
    id="p", messages=(Message(role="user", content="?"),), reference="1", verifier=VerifierSpec(name="math")
)


def scored(*spans, seconds=None, ready=0.0):
    count = max((end for _, end, _ in spans), default=0)
    rollout = Rollout(
        id="r", problem=PROBLEM, visit=0, index=0, tokens=np.zeros(2 + count, dtype=np.int64),
        loss_mask=np.arange(2 + count) >= 2, sampler_logprobs=np.zeros(2 + count, dtype=np.float32),
        spans=tuple(Span(start=start, end=end, version=version) for start, end, version in spans), text="",
        char_ends=np.zeros(count, dtype=np.int64), finish="stop",
    )  # fmt: skip
    judgement = Judgement(verdicts={}, reward=Reward(value=1.0))
    return Scored(rollout=rollout, judgement=judgement, seconds=seconds or {}, ready=ready)


def batch(*samples, step=3, discarded=()):
    def group(of):
        visit = Visit(problem=PROBLEM, visit=0, position=0)
        return Group(visit=visit, scored=of, allocation=Allocation(samples=len(of), reason="uniform"))

    return Batch(step=step, groups=(group(samples),), discarded=tuple((group((each,)), "why") for each in discarded))


def test_lag_is_counted_by_tokens():
    made = batch(scored((0, 2, 1), (2, 8, 2)), scored((0, 4, 3)))
    assert lag_metrics(made) == {"lag/mean": (2 * 2 + 6 * 1) / 12, "lag/max": 2.0, "lag/stale": 8 / 12}
    assert lag_metrics(batch(scored((0, 4, -1)))) == {}  # given completions


def test_phases_are_of_all_samples_drawn():
    made = batch(
        scored((0, 1, 3), seconds={"decode": 1.0, "score": 0.5}),
        scored((0, 1, 3), seconds={"decode": 2.0}),
        discarded=[scored((0, 1, 3), seconds={"decode": 6.0})],
    )
    found = phase_metrics(made)
    assert found["timeline/decode_mean"] == 3.0
    assert found["timeline/decode_p95"] == np.quantile([1.0, 2.0, 6.0], 0.95)
    assert (found["timeline/score_mean"], found["timeline/queued_p95"]) == (0.5 / 3, 0.0)
    assert phase_metrics(batch(scored((0, 1, -1)))) == {}


def test_a_sample_waits_from_its_verdict_until_its_batch_is_taken():
    ready = time.perf_counter() - 5.0
    found = waited(batch(scored((0, 1, 3), seconds={"score": 1.0}, ready=ready), scored((0, 1, -1))))
    first, given = found.groups[0].scored
    assert first.seconds["score"] == 1.0 and first.seconds["wait"] >= 5.0
    assert given.seconds == {}


def test_a_row_in_flight_comes_back_from_json_as_it_was():
    completion = Completion(
        token_ids=np.array([0, 151_000, 7]), logprobs=np.array([-0.1, -np.float32(1e-30), -17.3], dtype=np.float32),
        finish="aborted", spans=(Span(start=0, end=1, version=4), Span(start=1, end=3, version=5)),
        seconds={"queued": 0.1, "decode": 2.0},
    )  # fmt: skip
    verdict = Verdict.of(
        "partial", 0.25, read="\ud800x", why="half", evidence={"b": {"c": [1, 0.1, None, "ß"]}, "a": True}, certified=True,
        flags=("f", "g"), steps=(Step(start=0, end=3, status="partial", score=None, why="w"),), seconds=0.3,
        verifier=VerifierSpec(name="v", args={"n": [1, 2]}, digest="sha256:1"), attempt=2, isolation="sandbox",
    )  # fmt: skip
    reward = Reward(value=0.25, parts={"z": 0.25, "a": None}, steps=verdict.steps, trainable=False)
    judgement = Judgement(verdicts={"z": verdict, "a": Verdict.of("error")}, reward=reward)
    for row in (Drawn(completion=completion), Drawn(completion=completion, judgement=judgement, score_seconds=0.5)):
        state = json.loads(json.dumps(row.state(), sort_keys=True, allow_nan=False))
        found = Drawn.of(state, now=9.0)
        assert found.completion.token_ids.tolist() == [0, 151_000, 7]
        assert found.completion.logprobs.tobytes() == completion.logprobs.tobytes()
        rest = {f.name for f in dataclasses.fields(Completion)} - {"token_ids", "logprobs", "spans"}
        assert all(getattr(found.completion, name) == getattr(completion, name) for name in rest)
        assert list(map(dataclasses.asdict, found.completion.spans)) == list(map(dataclasses.asdict, completion.spans))
        assert (found.score_seconds, found.ready) == (row.score_seconds, 9.0)
        if row.judgement is None:
            assert found.judgement is None
        else:
            assert dataclasses.asdict(found.judgement) == dataclasses.asdict(judgement)
            assert list(found.judgement.verdicts) == ["z", "a"]


# ---- what a lag sets in a recipe ---------------------------------------------------------------------------------------


def recipe(lag=1, **changes):
    algorithm = {"name": "grpo", **changes.pop("algorithm", {})}
    made = {"model": "m", "data": {"train": {"source": "generated"}}, "algorithm": algorithm, **changes}
    return filled(validate({**made, "engine": {"max_lag": lag, **changes.get("engine", {})}}, where="t"))


def test_with_a_lag_the_sampler_is_corrected_for_unless_the_recipe_says_otherwise():
    assert recipe(0).algorithm.corrections == ()
    assert recipe(1).algorithm.corrections == (Correction(name="tis", high=2.0),)
    assert filled(recipe(1)) == recipe(1)
    assert recipe(1, algorithm={"corrections": []}).algorithm.corrections == ()
    given = recipe(2, algorithm={"corrections": [{"name": "icepop"}]})
    assert [each.name for each in given.algorithm.corrections] == ["icepop"]
    staged = recipe(1, stages=[{"name": "a", "steps": 1, "algorithm": "sft"}, {"name": "b", "steps": 1}])
    assert [each.name for each in staged.staged()[1][1].algorithm.corrections] == ["tis"]


def test_what_a_lag_does_is_said():
    assert staleness(recipe(0)) == []
    assert staleness(recipe(1)) == [
        "engine.max_lag 1: tokens may be of a policy up to 1 step old; algorithm.corrections weighs each by tis up to 2"
    ]
    assert "nothing corrects for it" in staleness(recipe(3, algorithm={"corrections": [{"name": "reject"}]}))[0]
    assert "within [0.5, 2]" in staleness(recipe(3, algorithm={"corrections": [{"name": "icepop"}]}))[0]
    assert "lockstep does nothing" in staleness(recipe(0, engine={"lockstep": True, "max_lag": 0}))[0]
    assert "learns from given completions" in staleness(recipe(2, algorithm={"name": "sft"}))[0]


def test_with_a_lag_an_update_begins_away_from_the_sampler_so_that_a_clip_by_their_distance_has_something_to_go_by():
    assert build_controllers(recipe(1, optim={"kl_clip": {"target": 0.01}})).clip is not None
