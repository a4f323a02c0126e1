"""Runs on preference files: each stage lowers its own held-out loss, stages chain, a resumed stage keeps its reference."""

import asyncio
import json
import math
from pathlib import Path

import numpy as np
import pytest

from jurat.datasets.load import holds, load_problems
from jurat.engine import local
from jurat.platform.config import validate
from jurat.platform.errors import ConfigError, DataError
from jurat.platform.recipe import Prompt, Source
from jurat.platform.runs.store import Store
from jurat.platform.types import Visit
from jurat.trainers import launch
from jurat.trainers.algorithms import build_algorithm
from jurat.trainers.evaluate import loss_of
from jurat.trainers.offline import KINDS, RolloutMaker


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return {"source": str(path)}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """{kind: data} of generated sums: the right answer is chosen, that of the next sum is rejected."""
    folder = tmp_path_factory.mktemp("files")
    made = {}
    for split, size in (("train", 800), ("held_out", 200)):
        source = Source(source="generated:plain", levels=(3,), size=size, split=split)
        sums = [
            (p.messages[0].content, int(p.reference)) for p in load_problems(source, Prompt(), split=split).problems
        ]
        others = [right for _, right in (*sums[1:], *sums[:1])]
        wrong = [other + (other == right) for (_, right), other in zip(sums, others, strict=True)]
        rows = {
            "sft": [{"question": q, "answer": str(right)} for q, right in sums],
            "dpo": [
                {"question": q, "chosen": str(right), "rejected": str(off)}
                for (q, right), off in zip(sums, wrong, strict=True)
            ],
            "kto": [
                {"question": q, "completion": str(right if n % 2 else off), "label": n % 2 == 1}
                for n, ((q, right), off) in enumerate(zip(sums, wrong, strict=True))
            ],
        }
        for kind, each in rows.items():
            made.setdefault(kind, {})[split] = write(folder / f"{kind}-{split}.jsonl", each)
    return made


BASE = {
    "sampling": {"max_new_tokens": 6},
    "engine": {"dtype": "float32", "threads": 1},
    "evaluate": {"final_problems": 8, "samples": 2},
    "optim": {"lr": 1e-3},
    "prompts_per_step": 16,
}


@pytest.fixture(scope="module")
def train(launched):
    def run(home, *, stop=None, **given):
        return launched(home, {**BASE, **given}, stop=stop)

    return run


@pytest.fixture(scope="module")
def start(tmp_path_factory, files, train):
    """A model that has seen some demonstrations."""
    home = tmp_path_factory.mktemp("start")
    done, _ = train(home, model="tiny-random", data=files["sft"], algorithm={"name": "sft"}, steps=30)
    return f"{done.checkpoint}/policy"


def losses(evaluations, name):
    return [e.losses[name] for e in evaluations if name in e.losses]


BLOCKS = 10
T = 2.262
"""Quantile 0.975 of Student's t with BLOCKS - 1 degrees of freedom."""


def fall(recipe, start, trained):
    """What training took off the loss of each of ``BLOCKS`` disjoint sets of held-out rows: mean and half of the 95 %
    interval. A block's rows are met with the same reference, so that the difference is paired."""
    source, name = recipe.data.held_out, recipe.algorithm.name
    problems = load_problems(
        source, recipe.prompt, split="held_out", holds=holds(recipe.algorithm, "held_out")
    ).problems
    first, last = (
        local.build(Path(folder), recipe.engine, recipe.optim, recipe.sampling, total_steps=1)
        for folder in (start, trained)
    )
    visits = [Visit(problem=problem, visit=0, position=at) for at, problem in enumerate(problems)]
    cut = np.array_split(np.arange(len(visits)), BLOCKS)  # not every tenth row: labels take turns
    maker = RolloutMaker("", "", first.tokenizer)
    blocks = [KINDS[name].groups([visits[at] for at in each], maker) for each in cut]

    async def losses(policy):
        scorers = {"policy": policy.learner, "reference": first.learner}
        return np.array([await loss_of(block, build_algorithm(recipe), scorers, tokens=4096) for block in blocks])

    fell = asyncio.run(losses(first)) - asyncio.run(losses(last))
    return fell.mean(), T * fell.std(ddof=1) / math.sqrt(BLOCKS)


@pytest.mark.parametrize(
    ("algorithm", "kind", "untrained"),
    [
        ({"name": "sft"}, "sft", None),
        ({"name": "dpo"}, "dpo", math.log(2)),
        ({"name": "dpo", "kind": "ipo"}, "ipo", 25.0),
        ({"name": "kto", "beta": 0.5}, "kto", 0.5),
    ],
    ids=["sft", "dpo", "ipo", "kto"],
)
def test_it_lowers_its_own_held_out_loss(algorithm, kind, untrained, start, files, train, tmp_path):
    given = {
        "model": start, "data": files[algorithm["name"]], "algorithm": algorithm, "steps": 20, "optim": {"lr": 3e-4},
        "evaluate": {"final_problems": 200, "problems": 30, "samples": 1, "every": 10},
    }  # fmt: skip
    done, screen = train(tmp_path, **given)
    assert [e.step for e in done.evaluations] == [0, 10, 20]
    before, _, after = losses(done.evaluations, kind)
    if untrained:
        assert before == pytest.approx(untrained, abs=1e-5)
    mean, half = fall(validate({**BASE, **given}, where="test"), start, f"{done.checkpoint}/policy")
    print(f"{kind}: held-out loss {before:.4f} -> {after:.4f}, fall {mean:.4f} +- {half:.4f}")  # pytest -rP shows it
    assert mean - half > 0 and after < before, (before, after, mean, half)
    assert all((e.accuracy is None) is (kind != "sft") for e in done.evaluations)
    recorded = [m.result for m in Store.open(None, tmp_path).evaluations(Store.open(None, tmp_path).run(done.run))]
    assert [(e.step, dict(e.losses), e.final, e.problems) for e in recorded] == [
        (e.step, dict(e.losses), e.step != 10, 30 if e.step == 10 else 200) for e in done.evaluations
    ]
    first, last = screen.steps[0].metrics, screen.steps[-1].metrics
    if kind == "kto":
        assert any(report.metrics["policy/reference_point"] > 0 for report in screen.steps)
    elif kind != "sft":
        assert (first["policy/margin"], first["policy/preferred"]) == (0.0, 0.0)
        assert last["policy/margin"] > 0 and last["policy/preferred"] > 0.5


def manifest(folder):
    return json.loads((Path(folder) / "manifest.json").read_text())


def test_stages_chain_with_their_lineage(files, train, tmp_path):
    """SFT -> DPO -> GRPO: each begins from the last checkpoint of the one before; one table holds what each came to."""
    stages = [
        {"name": "sft", "steps": 4, "algorithm": {"name": "sft"}},
        {"name": "dpo", "steps": 3, "algorithm": {"name": "dpo"}, "data": files["dpo"], "optim": {"lr": 1e-4}},
        {"name": "grpo", "steps": 2, "algorithm": {"name": "grpo"}, "prompts_per_step": 4},
    ]
    allocation = {"samples_per_prompt": 4}
    done, _ = train(tmp_path, model="tiny-random", data=files["sft"], stages=stages, allocation=allocation)
    store = Store.open(None, tmp_path)
    kept = {each.stage: each.ref for each in store.checkpoints(store.run(done.run))}
    assert [kept[name].step for name in ("sft", "dpo", "grpo")] == [4, 3, 2]
    assert [kept[name].parent for name in ("sft", "dpo", "grpo")] == ["", kept["sft"].digest, kept["dpo"].digest]
    assert kept["dpo"].meta["stage"] == "dpo"
    told = [(e.stage, e.step, [*e.losses], e.accuracy is not None) for e in done.evaluations]
    assert told == [
        ("sft", 0, ["sft"], True), ("sft", 4, ["sft"], True), ("dpo", 0, ["dpo"], False), ("dpo", 3, ["dpo"], False),
        ("grpo", 0, [], True), ("grpo", 2, [], True),
    ]  # fmt: skip
    assert losses(done.evaluations, "dpo")[0] == pytest.approx(math.log(2), abs=1e-6)


@pytest.mark.parametrize("name", ["dpo", "kto"])
def test_a_resumed_stage_compares_with_its_first_weights(name, start, files, train, launched, tmp_path):
    given = {
        "model": start, "data": files[name], "algorithm": {"name": name}, "steps": 4, "checkpoint": {"every": 1},
        "updates_per_step": 2, "prompts_per_step": 4,
    }  # fmt: skip
    whole, told = train(tmp_path / "whole", **given)
    first, _ = train(tmp_path / "halves", stop=2, **given)
    assert (first.state, first.step) == ("interrupted", 2)
    done, screen = launched(tmp_path / "halves", resume=first.run)
    assert losses(done.evaluations, name) == losses(whole.evaluations, name)[1:]
    assert losses(whole.evaluations, name)[1] != losses(whole.evaluations, name)[0]
    for got, wanted in zip(screen.steps, told.steps[2:], strict=True):
        keys = [key for key in wanted.metrics if key.startswith("policy/")]
        assert {key: got.metrics[key] for key in keys} == {key: wanted.metrics[key] for key in keys}


def test_where_rows_have_answers_accuracy_is_measured_too(start, train, tmp_path):
    rows = [{"question": f"{n}+1=", "chosen": str(n + 1), "rejected": "0", "answer": str(n + 1)} for n in range(8)]
    data = {"train": write(tmp_path / "a.jsonl", rows[:4]), "held_out": write(tmp_path / "b.jsonl", rows[4:])}
    done, _ = train(tmp_path, model=start, data=data, algorithm={"name": "dpo"}, steps=1, prompts_per_step=2)
    assert all(e.accuracy is not None and e.samples == 2 and "dpo" in e.losses for e in done.evaluations)
    rows[5]["answer"] = r"\frac{1"
    data["held_out"] = write(tmp_path / "b.jsonl", rows[4:])
    with pytest.raises(DataError, match="1 of 4 gold answers do not pass"):
        train(tmp_path, model=start, data=data, algorithm={"name": "dpo"}, steps=1)


def test_unseen_problems_are_answered(start, files, train, tmp_path):
    data = {**files["dpo"], "unseen": {"source": "generated:plain", "levels": [2], "size": 4}}
    done, _ = train(tmp_path, model=start, data=data, algorithm={"name": "dpo"}, steps=1)
    assert [(e.name, e.step, e.accuracy is None) for e in done.evaluations] == [
        ("held_out", 0, True), ("unseen", 0, False), ("held_out", 1, True), ("unseen", 1, False),
    ]  # fmt: skip


def test_long_completions_are_left_out_of_training_and_of_the_held_out_loss(start, train, tmp_path):
    rows = [{"question": f"{n}+1=", "chosen": str(n + 1), "rejected": "0" * (1 + 9 * (n == 3))} for n in range(8)]
    data = {"train": write(tmp_path / "a.jsonl", rows[:4]), "held_out": write(tmp_path / "b.jsonl", rows[3:])}
    with pytest.raises(DataError, match="1 of 5 held-out problems are trained on"):
        train(tmp_path, model=start, data=data, algorithm={"name": "dpo"}, steps=1)
    data["held_out"] = write(tmp_path / "b.jsonl", [{**rows[4], "rejected": "0" * 12}, *rows[5:]])
    part = {"name": "dpo", "max_completion_tokens": 8}
    done, screen = train(tmp_path, model=start, data=data, algorithm=part, steps=1, prompts_per_step=2)
    assert [e.problems for e in done.evaluations] == [3, 3]
    assert sum("completions of data." in note for note in screen.notes) == 2
    with pytest.raises(DataError, match=r"1 of 4 completions of data.train"):
        train(tmp_path, model=start, data={**data, "long_prompts": "refuse"}, algorithm=part, steps=1)


def test_a_dry_run_and_what_it_refuses(files, tmp_path):
    given = {**BASE, "model": "tiny-random", "data": files["dpo"], "algorithm": {"name": "dpo"}}
    (stage,) = launch.dry_run(validate(given, where="test"), home=tmp_path, base=tmp_path)["stages"]
    assert (stage["algorithm"], stage["problems"]) == ("dpo", {"train": 800, "held_out": 200})
    assert stage["max_new_tokens_per_step"] == 0
    idle = {**given, "allocation": {"samples_per_prompt": 4}}
    with pytest.raises(ConfigError, match="allocation is about samples"):
        launch.dry_run(validate(idle, where="test"), home=tmp_path, base=tmp_path)


def test_kto_needs_two_questions_and_says_where_every_label_is_the_same(tmp_path):
    rows = [{"question": "1+1=", "completion": str(n), "label": n == 2} for n in range(4)]
    given = {**BASE, "model": "tiny-random", "algorithm": {"name": "kto"}, "prompts_per_step": 2}

    def rehearse(rows):
        made = {**given, "data": {"train": write(tmp_path / "a.jsonl", rows)}}
        return launch.dry_run(validate(made, where="test"), home=tmp_path, base=tmp_path)["notes"]

    with pytest.raises(DataError, match=r"'kto' .* all 4 rows of data.train ask the same"):
        rehearse(rows)
    assert rehearse([*rows, {**rows[0], "question": "2+0="}]) == []
    (note,) = rehearse([{**row, "question": f"{n}+1=", "label": False} for n, row in enumerate(rows)])
    assert "every completion of data.train is labelled bad" in note


@pytest.mark.parametrize("name", ["sft", "dpo", "kto"])
def test_the_temperature_of_sampling_is_not_that_of_given_completions(name, start, files, train, tmp_path):
    given = {"model": start, "data": files[name], "algorithm": {"name": name}, "steps": 2, "prompts_per_step": 4}
    told = []
    for heat in (1.0, 0.5):
        done, screen = train(tmp_path, **given, sampling={"temperature": heat, "max_new_tokens": 6})
        told.append((losses(done.evaluations, name), [step.metrics["policy/loss"] for step in screen.steps]))
    assert told[0] == told[1]
