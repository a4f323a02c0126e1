"""Whole runs on the tiny model in this process: it learns, and what cannot work says why before a model loads."""

import asyncio
import json
import os
import re
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest

from jurat.engine import checkpoint as checkpointing
from jurat.platform.config import load_recipe, override, validate
from jurat.platform.errors import ConfigError, DataError, ModelError, RunFailed
from jurat.platform.runs.rollouts import read
from jurat.platform.runs.store import Store
from jurat.trainers import launch, stage
from jurat.trainers.algorithms import build_algorithm
from screens import Screen

TINY = {
    "model": "tiny-random",
    "data": {
        "train": {"source": "generated:plain", "levels": [1], "size": 60},
        "held_out": {"source": "generated:plain", "levels": [1], "size": 30, "split": "held_out"},
    },
    "optim": {"lr": 1e-3},
    "sampling": {"max_new_tokens": 6},
    "engine": {"dtype": "float32", "threads": 1},
    "evaluate": {"problems": 10, "final_problems": 30, "samples": 4},
    "steps": 2,
    "prompts_per_step": 4,
    "allocation": {"samples_per_prompt": 4},
}

TEACH = {key: value for key, value in TINY.items() if key != "allocation"} | {"algorithm": {"name": "sft"}}


def run(home: Path, overrides=None, base=TINY, **changes):
    recipe = validate(override({**base, **changes}, overrides or {}), where="test")
    screen = Screen()
    return launch.train(recipe, home=home, base=home, reporter=screen), screen


def test_it_learns(tmp_path):
    """SFT then GRPO lift held-out accuracy beyond its interval; GRPO lifts the reward of what it trains on."""
    stages = [
        {"name": "sft", "steps": 80, "algorithm": {"name": "sft"}, "prompts_per_step": 32},
        {
            "name": "grpo",
            "steps": 50,
            "optim": {"lr": 3e-4},
            "prompts_per_step": 8,
            "allocation": {"samples_per_prompt": 8},
        },
    ]
    sets = {
        "train": {"source": "generated:plain", "levels": [1, 2], "size": 200},
        "held_out": {"source": "generated:plain", "levels": [1, 2], "size": 50, "split": "held_out"},
    }
    outcome, screen = run(tmp_path, {"evaluate.final_problems": 50}, stages=stages, data=sets)
    assert outcome.state == "finished"
    before, _, after = outcome.evaluations
    assert before.accuracy.high < after.accuracy.low
    rewards = [report.metrics["reward/mean"] for report in screen.steps[80:]]
    assert np.mean(rewards[-10:]) > np.mean(rewards[:10]) + 0.2
    sft_losses = [report.metrics["policy/loss"] for report in screen.steps[:80]]
    assert np.mean(sft_losses[-5:]) < 0.5 * np.mean(sft_losses[:5])


def test_the_schedule_counts_the_updates_that_there_are(tmp_path):
    """Two prompts make two updates at most, however many are asked for: the rate ends where it should."""
    rates = []
    for asked in (2, 9):
        shape = {"prompts_per_step": 2, "updates_per_step": asked, "evaluate.problems": 4, "evaluate.final_problems": 4}
        _, screen = run(tmp_path / str(asked), {**shape, "optim.schedule": "linear"})
        rates.append([update.metrics["lr"] for report in screen.steps for update in report.updates])
    assert rates[0] == rates[1] and len(rates[0]) == 4
    assert rates[0][-1] < 0.3 * rates[0][0]


def test_both_paths_of_the_engine_take_the_same_steps(tmp_path):
    """float32: the fast path and plain transformers sample the same tokens and reach the same loss."""
    rows = {}
    for path in ("fast", "simple"):
        outcome, screen = run(tmp_path / path, {"engine.path": path, "steps": 2}, seed=3)
        store = Store.open(None, tmp_path / path)
        page = read(store, store.run(outcome.run), limit=None)
        rows[path] = [r.scored.rollout.tokens.tolist() for r in page.records]
        rows[path + " loss"] = [report.metrics["policy/grad_norm"] for report in screen.steps]
    assert rows["fast"] == rows["simple"]
    np.testing.assert_allclose(rows["fast loss"], rows["simple loss"], rtol=1e-3)


def test_kl_and_several_updates_per_batch(tmp_path):
    stages = [
        {"name": "sft", "steps": 15, "algorithm": {"name": "sft"}, "prompts_per_step": 32},
        {
            "name": "grpo",
            "steps": 2,
            "algorithm": {"name": "grpo", "aggregation": "prompt-mean", "kl": {"coef": 0.1, "estimator": "k2"}},
            "updates_per_step": 2,
            "epochs": 2,
        },
    ]
    _, screen = run(tmp_path, stages=stages)
    first, second = screen.steps[15:]
    assert [len(first.updates), len(second.updates)] == [4, 4]
    assert first.updates[0].metrics["kl_ref"] == pytest.approx(0.0, abs=1e-9)
    assert second.metrics["policy/kl_ref"] > 1e-6


def test_every_rollout_is_recorded_with_its_verifier(tmp_path):
    outcome, _ = run(tmp_path)
    store = Store.open(None, tmp_path)
    page = read(store, store.run(outcome.run), limit=None)
    assert len(page.records) == 2 * 16
    verdicts = [v for r in page.records for v in r.scored.judgement.verdicts.values()]
    assert {v.verifier.name for v in verdicts} == {"math"}
    assert all(v.verifier.digest.startswith("sha256:") for v in verdicts)
    assert store.run(outcome.run).state == "finished"
    groups: dict = {}
    for r in page.records:
        groups.setdefault((r.step, r.position), []).append((r.scored.judgement.reward.value, r.advantage))
    for group in groups.values():
        rewards, advantages = np.array(group, dtype=float).T
        np.testing.assert_allclose(advantages.sum(), 0, atol=1e-5)
        assert np.array_equal(advantages > 0, rewards > rewards.mean() + 1e-9)


def test_a_non_finite_gradient_is_skipped_counted_and_ends_the_run(tmp_path):
    with pytest.raises(RunFailed, match=r"3 updates in a row had a non-finite loss or gradient"):
        run(tmp_path, {"optim.lr": 1e30, "steps": 12}, TEACH)
    assert Store.open(None, tmp_path).run("latest").state == "failed"


def test_too_many_broken_verdicts_end_the_run(tmp_path):
    (tmp_path / "rules.py").write_text(
        "import jurat\n\n@jurat.verifier('broken', version='1')\ndef broken(problem, completion):\n    raise ValueError('no')\n"
    )
    with pytest.raises(
        RunFailed, match=r"16 of 16 samples of step 1 got no score .*'error': 16.*First: broken: error, .*no"
    ):
        run(tmp_path, verifiers=["rules.py"], reward={"members": [{"use": "broken"}]})


def jsonl(path: Path, *rows) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def test_a_gold_that_fails_its_own_verifier_is_named_with_its_row(tmp_path):
    source = jsonl(
        tmp_path / "a.jsonl", {"question": "1+1?", "answer": "2"}, {"question": "2+2?", "answer": r"\frac{1"}
    )
    with pytest.raises(
        DataError, match=r"1 of 2 gold answers do not pass their own verifier:\s+.*a.jsonl:2: .*; gold '\\\\frac\{1'"
    ):
        run(tmp_path, data={"train": {"source": source}})


def test_a_problem_in_two_sets_is_refused(tmp_path):
    source = jsonl(tmp_path / "a.jsonl", {"question": "1+1?", "answer": "2"}, {"question": "2+2?", "answer": "4"})
    with pytest.raises(DataError, match=r"2 of 2 held-out problems are trained on"):
        run(tmp_path, data={"train": {"source": source}, "held_out": {"source": source}})


def test_an_empty_set_is_refused(tmp_path):
    with pytest.raises(DataError, match="no problem is left of 0 rows"):
        run(tmp_path, data={"train": {"source": jsonl(tmp_path / "a.jsonl")}})


def test_long_prompts_are_named_and_skipped_or_refused(tmp_path):
    rows = [{"question": f"{n}+1=", "answer": str(n + 1)} for n in range(8)] + [
        {"question": "1+" * 300 + "1=", "answer": "301"}
    ]
    data = {"train": {"source": jsonl(tmp_path / "a.jsonl", *rows)}, "max_prompt_tokens": 40}
    _, screen = run(tmp_path, data=data)
    assert any(
        "1 of 9 prompts of data.train are longer than 40 tokens" in note and "a.jsonl:9" in note
        for note in screen.notes
    )
    with pytest.raises(DataError, match="1 of 9 prompts"):
        run(tmp_path, data={**data, "long_prompts": "refuse"})


def test_resume_needs_the_same_reward(tmp_path, monkeypatch):
    rules = tmp_path / "rules.py"
    body = "import jurat\n\n@jurat.verifier('mine', version='1')\ndef mine(problem, completion):\n    return {}\n"
    rules.write_text(body.format("len(completion) > 2"))
    outcome, _ = run(tmp_path, verifiers=["rules.py"], reward={"members": [{"use": "mine"}]})
    rules.write_text(body.format("len(completion) > 3"))
    with pytest.raises(launch.JuratError, match=r"the reward of run .* has changed") as caught:
        launch.train(None, home=tmp_path, base=tmp_path, reporter=Screen(), resume=outcome.run)
    assert caught.value.exit_code == 4


def test_a_recipe_or_a_run_not_both(tmp_path):
    with pytest.raises(ConfigError, match="not both"):
        launch.train(None, home=tmp_path, base=tmp_path, reporter=Screen())


@pytest.mark.parametrize("name", ["tiny", "quickstart", "gsm8k", "math", "multiarith_smollm2"])
def test_shipped_recipes_are_valid(name):
    recipe = load_recipe(Path(launch.__file__).parent / "recipes" / f"{name}.yaml")
    assert recipe.about
    for _, each in recipe.staged():
        build_algorithm(each)


def test_gold_is_checked_before_supervised_training_too(tmp_path):
    source = jsonl(tmp_path / "a.jsonl", {"question": "2+2?", "answer": r"\frac{1"})
    with pytest.raises(DataError, match=r"1 of 1 gold answers do not pass their own verifier"):
        run(tmp_path, base=TEACH, data={"train": {"source": source}})


def test_resume_names_damaged_checkpoints_and_does_not_begin_again(tmp_path):
    outcome, _ = run(tmp_path)
    weights = Path(outcome.checkpoint) / "policy" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"x")
    screen = Screen()
    store = Store.open(None, tmp_path)
    again = store.create_run(
        recipe=validate({**TINY}, where="test"),
        recipe_digest="",
        reward_digest="",
        run_id="again",
        meta=store.run(outcome.run).meta,
    )
    (again.folder / "checkpoints").symlink_to(outcome.folder / "checkpoints")
    with pytest.raises(RunFailed, match="every checkpoint of the stage is damaged"):
        launch.train(None, home=tmp_path, base=tmp_path, reporter=screen, resume="again")
    assert any("model.safetensors is damaged" in note for note in screen.notes)


def test_a_long_solution_is_left_out_or_refused_never_cut(tmp_path):
    rows = [{"question": f"{n}+1=", "answer": str(n + 1), "why": str(n + 1)} for n in range(7)]
    rows.append({"question": "9+9=", "answer": "18", "why": "9 and 9 make 18" * 3})
    source = {"source": jsonl(tmp_path / "a.jsonl", *rows), "fields": {"solution": "why"}}
    sft = {"algorithm": {"name": "sft", "max_solution_tokens": 20}, "data": {"train": source}}
    _, screen = run(tmp_path, base=TEACH, **sft)
    assert any("1 of 8 solutions of data.train are longer than 20 tokens" in note for note in screen.notes)
    with pytest.raises(DataError, match=r"1 of 8 solutions of data.train .*a.jsonl:8"):
        run(tmp_path, base=TEACH, **{**sft, "data": {"train": source, "long_prompts": "refuse"}})


def test_a_curriculum_without_sampling_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"algorithm.name 'sft' samples nothing"):
        run(tmp_path, base=TEACH, data={**TINY["data"], "curriculum": {}})


def test_a_dry_run_counts_long_prompts(tmp_path):
    rows = [{"question": f"{n}+1=", "answer": str(n + 1)} for n in range(3)]
    rows.append({"question": "1+" * 300 + "1=", "answer": "301"})
    source = jsonl(tmp_path / "a.jsonl", *rows)
    recipe = validate({**TINY, "data": {"train": {"source": source}, "max_prompt_tokens": 40}}, where="test")
    plan = launch.dry_run(recipe, home=tmp_path, base=tmp_path)
    assert plan["stages"][0]["problems"] == {"train": 3}
    assert "1 of 4 prompts of data.train" in plan["notes"][0]


def interrupted(home, when, **changes):
    """(how it ended, how it went on)"""
    recipe = validate({**TINY, **changes}, where="test")
    first = launch.train(recipe, home=home, base=home, reporter=Screen(when))
    screen = Screen()
    again = launch.train(None, home=home, base=home, reporter=screen, resume=first.run)
    return first, again, screen


def test_a_finished_stage_is_not_measured_again(tmp_path):
    """Stopped in stage 2 before its first checkpoint: the run goes on there, with what stage 1 came to on record."""
    stages = [
        {"name": "sft", "steps": 2, "algorithm": {"name": "sft"}},
        {"name": "grpo", "steps": 2, "algorithm": {"name": "grpo"}},
    ]
    first, again, screen = interrupted(tmp_path, lambda stage, version: stage == "grpo", stages=stages)
    assert (first.state, first.step, again.state) == ("interrupted", 0, "finished")
    assert [said["stage"] for said in screen.starts] == ["grpo"]
    assert [(e.stage, e.step) for e in screen.evaluations] == [("grpo", 2)]


def test_a_stop_in_the_last_step_leaves_the_evaluation_to_the_resumed_run(tmp_path):
    first, again, screen = interrupted(tmp_path, lambda stage, version: version == 2)
    assert (first.state, first.step) == ("interrupted", 2)
    assert (again.state, screen.steps) == ("finished", [])
    assert [e.step for e in screen.evaluations] == [2]


def test_a_full_disk_stops_clearly_and_the_last_checkpoint_is_whole(tmp_path, monkeypatch):
    true, asked = shutil.disk_usage, []

    def filling(path):
        asked.extend([path] if "checkpoints" in path.parts else [])
        return true(path)._replace(free=0) if len(asked) == 2 and path is asked[-1] else true(path)

    monkeypatch.setattr(checkpointing.shutil, "disk_usage", filling)
    with pytest.raises(RunFailed, match=r"MiB are needed and 0 MiB free") as caught:
        run(tmp_path, steps=3, checkpoint={"every": 1})
    assert "then resume: the last checkpoint is intact" in str(caught.value)
    (found,) = Store.open(None, tmp_path).runs()
    assert found.state == "failed"
    again = launch.train(None, home=tmp_path, base=tmp_path, reporter=Screen(), resume=found.id)
    assert (again.state, again.step) == ("finished", 3)


def test_a_checkpoint_that_fails_while_training_goes_on_ends_the_run_at_the_next_step(tmp_path, monkeypatch):
    async def begin(self, **said):
        async def write():
            raise RunFailed("no room for a checkpoint", where="here", fix="make room")

        return asyncio.create_task(write())

    monkeypatch.setattr(checkpointing.FolderCheckpoints, "begin", begin)
    keys = {"data": {"train": TINY["data"]["train"]}, "steps": 6, "checkpoint": {"every": 2}}
    screen = Screen()
    with pytest.raises(RunFailed, match="no room"):
        launch.train(validate({**TINY, **keys}, where="test"), home=tmp_path, base=tmp_path, reporter=screen)
    assert [report.version for report in screen.steps] == [1, 2, 3]


def test_a_stage_is_measured_before_it_begins_unless_the_one_before_came_to_the_same(tmp_path):
    """sft has no held-out set; rl begins with a policy that nobody measured; more asks as rl did, last samples otherwise."""
    rl = {"steps": 1, "algorithm": {"name": "grpo"}}
    stages = [
        {"name": "sft", "steps": 1, "algorithm": {"name": "sft"}, "data": {"train": TINY["data"]["train"]}},
        {"name": "rl", **rl},
        {"name": "more", **rl},
        {"name": "last", **rl, "sampling": {"max_new_tokens": 3}},
    ]
    _, screen = run(tmp_path, stages=stages)
    assert [(e.stage, e.step) for e in screen.evaluations] == [
        ("rl", 0), ("rl", 1), ("more", 1), ("last", 0), ("last", 1),
    ]  # fmt: skip
    plan = launch.dry_run(validate({**TINY, "stages": stages}, where="test"), home=tmp_path, base=tmp_path)
    assert "sft: its data replaces the recipe's whole, so it has no held_out" in plan["notes"]


def test_ctrl_c_ends_an_evaluation_at_once_and_a_resume_makes_it_whole(tmp_path, monkeypatch):
    """In the one before the first step: nothing is recorded of it, no step is taken, and the run goes on from its beginning."""
    true, answers = launch.evaluation.sample_and_judge, []

    async def pressing(*args, **how):
        answers.append(0)
        if len(answers) == 2:
            os.kill(os.getpid(), signal.SIGINT)
            await launch.asyncio.Event().wait()
        return await true(*args, **how)

    monkeypatch.setattr(launch.evaluation, "sample_and_judge", pressing)
    recipe, screen = validate(TINY, where="test"), Screen()
    first = launch.train(recipe, home=tmp_path, base=tmp_path, reporter=screen)
    assert (first.state, first.step, first.evaluations, screen.steps) == ("interrupted", 0, (), [])
    assert "stopping: this evaluation ends here; once more to stop now" in screen.notes
    again = launch.train(None, home=tmp_path, base=tmp_path, reporter=Screen(), resume=first.run)
    assert (again.state, [e.step for e in again.evaluations]) == ("finished", [0, 2])


def test_a_long_evaluation_says_how_far_it_is(tmp_path, monkeypatch):
    """No answer comes before it has said so."""
    true, said, told = launch.evaluation.sample_and_judge, [], launch.asyncio.Event()

    def note(self, text):
        if text.startswith("measuring"):
            said.append(text)
            told.set()

    async def held(*args, **how):
        await told.wait()
        return await true(*args, **how)

    monkeypatch.setattr(Screen, "note", note)
    monkeypatch.setattr(launch.evaluation, "sample_and_judge", held)
    monkeypatch.setattr(stage, "QUIET", 0.001)
    monkeypatch.setattr(stage, "TOLD", 3600.0)
    run(tmp_path, steps=1)
    # 30 problems, 4 samples and a greedy one
    assert re.fullmatch(r"measuring held_out at step 0: 0 of 150 answers after \d+ s", said[0])


def test_a_model_lies_beside_its_recipe(tmp_path):
    made = launch.models.resolve("tiny-random", tmp_path / "other")
    (tmp_path / "mine").symlink_to(made)
    outcome, _ = run(tmp_path, model="./mine", steps=1)
    assert outcome.state == "finished"
    with pytest.raises(ModelError, match=r"no model '\./nowhere'") as caught:
        run(tmp_path, model="./nowhere")
    assert caught.value.where == f"model: no folder at {tmp_path / 'nowhere'} or {Path.cwd() / 'nowhere'}"
    assert len(Store.open(None, tmp_path).runs()) == 1


def test_plain_demonstrations_are_taught_and_their_loss_is_measured(tmp_path):
    rows = [{"q": f"say {word}", "sol": f"well, {word} it is"} for word in ("a", "b", "c", "d")]
    fields = {"question": "q", "solution": "sol"}
    parts = {"train": jsonl(tmp_path / "a.jsonl", *rows[:3]), "held_out": jsonl(tmp_path / "b.jsonl", rows[3])}
    data = {name: {"source": source, "fields": fields} for name, source in parts.items()}
    outcome, _ = run(tmp_path, base=TEACH, data=data, steps=1)
    assert [[*e.losses] for e in outcome.evaluations] == [["sft"], ["sft"]]
    assert all(e.accuracy is None for e in outcome.evaluations)


def test_what_the_ranks_of_a_later_stage_cannot_do_is_refused_before_the_first(tmp_path):
    stages = [{"name": "a", "steps": 1}, {"name": "b", "steps": 1, "lora": {"rank": 2}}]
    recipe = validate({**TINY, "engine": {"ranks": 2, "tp": 2}, "stages": stages}, where="test")
    with pytest.raises(ConfigError, match=r"adapters \(lora\) are cut over ranks"):
        launch.dry_run(recipe, home=tmp_path, base=tmp_path)


@pytest.mark.parametrize("home", ["ray", "local"])
def test_a_verdict_may_not_take_as_long_as_a_judge_that_hangs(tmp_path, home):
    """Two that are judged one after the other; nothing of the cluster is asked for."""
    rule = "import jurat\n" + "".join(
        f"@jurat.verifier('slow_{name}', version='1', deadline={seconds})\ndef {name}(problem, completion): return True\n"
        for name, seconds in (("a", 20.0), ("b", 40.0))
    )
    (tmp_path / "rules.py").write_text(rule)
    members = [{"use": "slow_a"}, {"use": "slow_b"}, {"use": "exact"}]
    changes = {**TINY, "verifiers": ["rules.py"], "reward": {"members": members}}
    recipe = validate({**changes, "engine": {"home": home, "hang_seconds": 60.0}}, where="test")
    if home == "local":
        launch.dry_run(recipe, home=tmp_path, base=tmp_path)
        return
    with pytest.raises(
        ConfigError, match=r"may take 60 s \(deadline of each verifier: slow_a 20, slow_b 40\)"
    ) as caught:
        launch.dry_run(recipe, home=tmp_path, base=tmp_path)
    assert caught.value.where == "engine.hang_seconds" and "engine.hang_seconds 60" in caught.value.what
    assert caught.value.fix == "set it above 60, or lower deadline= in @jurat.verifier of slow_b"
    longer = recipe.model_copy(update={"engine": recipe.engine.model_copy(update={"hang_seconds": 61.0})})
    launch.dry_run(longer, home=tmp_path, base=tmp_path)


@pytest.mark.parametrize(
    ("engine", "said"),
    [
        ({"device": "cuda:63"}, "engine.device is cuda:63"),
        ({"ranks": 3, "tp": 3}, "which 3 ranks cannot share evenly"),
        (
            {"home": "ray", "ray": "h:1", "ranks": 2, "pools": {"main": {"cpus": 1}}},
            "2 ranks need a CPU each, pool main has 1",
        ),
    ],
)
def test_a_dry_run_refuses_what_the_engine_would(tmp_path, engine, said):
    recipe = validate({**TINY, "engine": {**TINY["engine"], **engine}}, where="test")
    with pytest.raises(ConfigError, match=said):
        launch.dry_run(recipe, home=tmp_path, base=tmp_path)


def test_a_dry_run_says_what_it_cannot_check(tmp_path):
    server = {**TINY["engine"], "sampler": "vllm", "vllm_url": "http://127.0.0.1:1"}
    plan = launch.dry_run(validate({**TINY, "engine": server}, where="test"), home=tmp_path, base=tmp_path)
    assert "not checked: the vLLM server (http://127.0.0.1:1)" in plan["notes"]


def test_no_room_for_a_prompt_is_told_of_the_key_that_takes_it(tmp_path):
    recipe = validate({**TINY, "sampling": {"max_new_tokens": 4_000_000}}, where="test")
    with pytest.raises(DataError, match=r"sampling\.max_new_tokens is 4000000, and prompt and completion") as refused:
        launch.dry_run(recipe, home=tmp_path, base=tmp_path)
    assert refused.value.where == "sampling.max_new_tokens" and refused.value.fix.startswith("set it below ")
