"""Bounded staleness: what draws may lag behind what learns, by so much and no more; each sample is trained once, with the
versions of its tokens; in lockstep numbers do not depend on speed; and what a checkpoint holds of rows in flight."""

import asyncio
import hashlib
import json
import random
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from jurat.engine import local, models
from jurat.platform import faults
from jurat.platform.config import override, validate
from jurat.platform.runs.rollouts import read
from jurat.platform.runs.store import Store
from jurat.platform.types import PHASES
from jurat.trainers import launch, prepare
from jurat.trainers.loop import SETTLING
from jurat.trainers.metrics import is_timed
from screens import Screen, interrupt

RECIPE = {
    "model": "tiny-random",
    "data": {"train": {"source": "generated:plain", "levels": [1], "size": 40}},
    "reward": {"members": [{"use": "problem"}, {"use": "fluency"}]},
    "algorithm": {"name": "grpo"},
    "optim": {"lr": 1e-2},
    "sampling": {"max_new_tokens": 6},
    "engine": {"dtype": "float32", "threads": 1},
    "steps": 5,
    "prompts_per_step": 3,
    "updates_per_step": 1,
    "allocation": {"samples_per_prompt": 4},
    "seed": 3,
}


class Delays:
    """Seeded sleeps in the ports: answers of the sampler and judge come late, updates begin late, decode steps are slow, and
    then also wait for judge and learner, so that rows are in flight when the next version is published."""

    def __init__(self, seed=0, *, answer=0.0, judge=0.0, update=0.0, decode=0.0):
        self.random = random.Random(seed)
        self.answer, self.judge, self.update, self.decode = answer, judge, update, decode
        self.published = {}
        """version -> the weights that it was published with"""
        self.busy = 0

    def pause(self, most):
        return asyncio.sleep(self.random.random() * most)

    def late(self, method, most):
        async def call(*args, **kwargs):
            found = await method(*args, **kwargs)
            await self.pause(most)
            return found

        return call

    def waited_for(self, method, most):
        late = self.late(method, most)

        async def call(*args, **kwargs):
            self.busy += 1
            try:
                return await late(*args, **kwargs)
            finally:
                self.busy -= 1

        return call

    def slow(self, method):
        def call(*args):
            while self.decode and self.busy:
                time.sleep(0.001)
            time.sleep(self.decode)
            return method(*args)

        return call

    def engine(self, made):
        sampler, learner = made.sampler, made.learner
        publish = sampler.publish

        async def publishing(version):
            self.published[version] = {name: view.clone() for name, view in learner.network.views().items()}
            await publish(version)

        sampler.sample, sampler.publish = self.late(sampler.sample, self.answer), publishing
        learner.update = self.waited_for(learner.update, self.update)
        decoder = sampler._decoding.decoder
        decoder.step = self.slow(decoder.step)
        return made


@pytest.fixture
def train(tmp_path, monkeypatch):
    """Runs a recipe with delays: (rows, reports, weights, screen)."""

    def run(home="h", *, delays=None, after=None, resume=None, apart=False, **changes):
        delays = delays or Delays()
        build, judging = local.build, prepare.build_judge

        def engine(folder, part, *args, **kwargs):
            part = part.model_copy(update={"max_lag": 1}) if apart else part
            return delays.engine(build(folder, part, *args, **kwargs))

        def judge(*args, **kwargs):
            made = judging(*args, **kwargs)
            made.judge = delays.waited_for(made.judge, delays.judge)
            return made

        with monkeypatch.context() as patch:
            patch.setattr(local, "build", engine)
            patch.setattr(prepare, "build_judge", judge)
            recipe = None if resume else validate(override(RECIPE, changes), where="test")
            screen = Screen(after=after)
            outcome = launch.train(
                recipe, home=tmp_path / home, base=tmp_path, reporter=screen, resume=resume,
                run_id=None if resume else "r",
            )  # fmt: skip
        return recorded(tmp_path / home), screen.steps, weights(outcome), screen

    return run


def recorded(home):
    store = Store.open(None, home)
    page = read(store, store.run("r"), limit=None)
    store.close()
    assert page.faults == ()
    return sorted(page.records, key=lambda r: (r.step, r.scored.rollout.id))


def numbers(rows):
    """All that must be equal where numbers do not depend on speed."""
    return [
        (
            row.step,
            row.position,
            (r := row.scored.rollout).id,
            r.tokens.tolist(),
            r.sampler_logprobs.tolist(),
            [(span.start, span.end, span.version) for span in r.spans],
            row.scored.judgement.reward.value,
        )
        for row in rows
    ]


def learnt(reports):
    return [{name: value for name, value in r.metrics.items() if not is_timed(name)} for r in reports]


def weights(outcome):
    files = sorted((Path(outcome.checkpoint) / "policy").glob("*.safetensors"))
    return [hashlib.sha256(file.read_bytes()).hexdigest() for file in files]


def check_once(rows, steps, per_step, max_lag):
    """Each sample once, in a full batch, by versions that are contiguous, cover its tokens and lag no more than allowed."""
    assert len({row.scored.rollout.id for row in rows}) == len(rows) == steps * per_step
    keys = [(r.scored.rollout.problem.id, r.scored.rollout.visit, r.scored.rollout.index) for r in rows]
    assert len(set(keys)) == len(keys)
    for row in rows:
        rollout = row.scored.rollout
        ends = [0, *(span.end for span in rollout.spans)]
        assert [span.start for span in rollout.spans] == ends[:-1]
        assert ends[-1] == rollout.num_completion_tokens
        versions = [span.version for span in rollout.spans]
        assert versions == sorted(set(versions))
        assert all(row.step - max_lag <= version <= row.step for version in versions)


LOCKSTEP = {"engine.lockstep": True}


def test_lag_0_with_sampler_and_learner_apart_is_the_loop_in_which_they_take_turns(train):
    together = train("a")
    apart = train("b", apart=True, delays=Delays(1, answer=0.01, judge=0.02, update=0.02))
    assert numbers(apart[0]) == numbers(together[0])
    assert learnt(apart[1]) == learnt(together[1])
    assert apart[2] == together[2]
    assert {report.metrics["lag/max"] for report in apart[1]} == {0.0}


@pytest.mark.parametrize("lag", [1, 2])
def test_in_lockstep_numbers_do_not_depend_on_speed(lag, train):
    runs = [
        train("a", **LOCKSTEP, **{"engine.max_lag": lag}),
        train("b", **LOCKSTEP, **{"engine.max_lag": lag}, delays=Delays(1, answer=0.03, judge=0.03)),
        train("c", **LOCKSTEP, **{"engine.max_lag": lag}, delays=Delays(2, update=0.2, decode=0.001)),
    ]
    for rows, reports, found, _ in runs:
        assert numbers(rows) == numbers(runs[0][0])
        assert learnt(reports) == learnt(runs[0][1])
        assert found == runs[0][2]
    rows, reports, _, _ = runs[0]
    check_once(rows, 5, 12, lag)
    drawn = {row.step: {span.version for span in row.scored.rollout.spans} for row in rows}
    assert drawn == {step: {max(0, step - lag)} for step in range(5)}
    assert [report.metrics["lag/max"] for report in reports] == [min(step, lag) for step in range(5)]
    assert numbers(rows) != numbers(train("d")[0])


@pytest.mark.parametrize("path", ["fast", "simple"])
def test_rows_go_on_under_new_weights_and_every_token_is_of_the_policy_that_its_span_names(path, train, tmp_path):
    delays = Delays(decode=0.01)
    rows, reports, _, _ = train(
        delays=delays,
        **{"engine.max_lag": 1, "engine.path": path, "sampling.max_new_tokens": 24, "sampling.temperature": 0.7},
    )
    check_once(rows, 5, 12, 1)
    mixed = [row for row in rows if len(row.scored.rollout.spans) > 1]
    assert mixed
    stale = [report.metrics["lag/stale"] for report in reports]
    assert stale[0] == 0.0 < max(stale) <= 1.0
    assert all(
        0.0 <= report.metrics[f"utilisation/{role}"] <= 1.0 for report in reports for role in ("sampler", "learner")
    )
    for step, report in enumerate(reports):  # the record holds what the metrics are made of
        seconds = [row.scored.seconds for row in rows if row.step == step]
        for phase in PHASES:
            mean = np.mean([each[phase] for each in seconds])
            assert np.isclose(mean, report.metrics[f"timeline/{phase}_mean"], rtol=1e-5)
        assert min(each["decode"] for each in seconds) > 0
    folder = models.resolve("tiny-random", tmp_path / "h")
    policies = {version: policy(folder, found) for version, found in delays.published.items()}
    for row in rows:
        rollout = row.scored.rollout
        found = {}
        start = len(rollout.tokens) - rollout.num_completion_tokens
        for span in rollout.spans:
            if span.version not in found:
                found[span.version] = logprobs(policies[span.version], rollout.tokens, 0.7)
            part = slice(start + span.start, start + span.end)
            assert np.abs(rollout.sampler_logprobs[part] - found[span.version][part]).max() < 1e-4


def policy(folder, found):
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    model.load_state_dict(found, strict=False)
    return model


@torch.no_grad()
def logprobs(model, tokens, temperature):
    """[L], 0 at the first token."""
    logits = model(input_ids=torch.from_numpy(tokens)[None]).logits[0, :-1].float() / temperature
    found = logits.log_softmax(-1).gather(1, torch.from_numpy(tokens)[1:, None])[:, 0]
    return np.concatenate([[0.0], found.numpy()])


@pytest.mark.parametrize("lag", [1, 2])
def test_in_lockstep_a_stopped_run_resumes_equal(lag, train):
    settings = {**LOCKSTEP, "engine.max_lag": lag, "checkpoint.every": 2}
    whole = train("a", **settings)
    first = train("b", **settings, after={3: interrupt}, delays=Delays(1, judge=0.05))
    again = train("b", resume="r", delays=Delays(2, answer=0.02))
    assert [report.step for report in (*first[1], *again[1])] == list(range(5))
    assert numbers(again[0]) == numbers(whole[0])
    assert learnt([*first[1], *again[1]]) == learnt(whole[1])
    assert again[2] == whole[2]


class Hanging(Delays):
    """Judgements of what version 2 draws never come."""

    def pause(self, most):
        return asyncio.Event().wait() if most and max(self.published) >= 2 else asyncio.sleep(0)


class Gone(Exception):
    pass


def gone():
    raise Gone


def test_in_lockstep_a_stop_waits_and_what_ends_the_wait_costs_a_step(train, monkeypatch):
    """Ctrl-C in the third step, whose rows in flight never end: from the checkpoint of the second it goes on as a run that
    nobody stopped."""
    settings = {**LOCKSTEP, "engine.max_lag": 1, "checkpoint.every": 1}
    whole = train("a", **settings)
    with monkeypatch.context() as patch:
        patch.setenv("JURAT_FAULT", "loop.between_update_and_publish:3:INT")
        patch.setattr(faults, "_visits", {})
        with pytest.raises(Gone):
            train("b", **settings, delays=Hanging(judge=1.0), after={SETTLING: gone})
    rows, reports, state, _ = train("b", resume="r")
    assert [report.step for report in reports] == [2, 3, 4]
    assert numbers(rows) == numbers(whole[0])
    assert state == whole[2]


def test_with_a_lag_a_checkpoint_keeps_rows_in_flight_and_the_run_goes_on_from_them(train, tmp_path):
    """Stopped with a batch half drawn and half judged: nothing is drawn twice, what was drawn keeps its versions."""
    settings = {"engine.max_lag": 1, "sampling.max_new_tokens": 24, "checkpoint.every": 1, "checkpoint.keep": 9}
    train(**settings, after={3: interrupt}, delays=Delays(1, decode=0.01, judge=0.05))
    folder = tmp_path / "h" / "runs" / "r" / "checkpoints" / "main" / "step-000003"
    saved = json.loads((folder / "state.json").read_text())["source"]
    kept = saved["source"]["rows"]["3"]
    begun = {name: row for name, row in kept.items() if row["spans"]}
    assert begun
    rows, reports, _, _ = train(resume="r", delays=Delays(2, decode=0.005))
    assert [report.step for report in reports] == [3, 4]
    check_once(rows, 5, 12, 1)
    found = {row.scored.rollout.id: row.scored.rollout for row in rows if row.step == 3}
    for name, row in begun.items():
        spans = [[span.start, span.end, span.version] for span in found[name].spans]
        assert spans[: len(row["spans"]) - 1] == row["spans"][:-1]
        assert spans[len(row["spans"]) - 1][0] == row["spans"][-1][0]
        assert spans[len(row["spans"]) - 1][1] >= row["spans"][-1][1]
