"""A run that trains on programs: from a file of code problems to a reward that says whether they run."""

from __future__ import annotations

import inspect
import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from jurat.platform.config import validate
from jurat.platform.errors import ConfigError, DataError
from jurat.platform.runs.rollouts import read
from jurat.platform.runs.store import Store
from jurat.trainers import launch
from jurat.verifiers.code.cases import MODES
from jurat.verifiers.programs import code

RECIPE: dict[str, Any] = {
    "model": "tiny-random",
    "data": {"train": {"source": "programs.jsonl", "verifier": "code", "verifier_args": {"unfenced": True, "seconds": 2.0}}},
    "optim": {"lr": 2e-3},
    "sampling": {"max_new_tokens": 12},
    "engine": {"dtype": "float32", "threads": 1},
    "evaluate": {"final_problems": 8, "samples": 2},
    "stages": [
        {"name": "sft", "steps": 40, "algorithm": {"name": "sft"}, "prompts_per_step": 8},
        {"name": "grpo", "steps": 2, "algorithm": {"name": "grpo"}, "prompts_per_step": 4, "optim": {"lr": 1e-4}},
    ],
}  # fmt: skip


def rows(**more: Any) -> list[dict[str, Any]]:
    return [
        {
            "question": f"Print {n}.",
            "answer": {"mode": "stdio", "tests": [{"stdin": "", "stdout": f"{n}\n"}]},
            "solution": f"print({n})",
            **more,
        }
        for n in range(8)
    ]


def written(home: Path, given: list[dict[str, Any]]) -> Path:
    (home / "programs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in given))
    return home


def test_it_trains_on_programs(launched: Any, tmp_path: Path) -> None:
    """Each sample's program ran apart, and its verdict says where, by which version of the verifier, and what came out."""
    done, screen = launched(written(tmp_path, rows()), RECIPE)
    assert done.state == "finished" and len(screen.steps) == 42
    store = Store.open(None, tmp_path)
    records = read(store, store.run(done.run), stage="grpo", limit=None).records
    verdicts = [verdict for record in records for verdict in record.scored.judgement.verdicts.values()]
    assert len(verdicts) == 2 * 4 * 8
    assert {verdict.status for verdict in verdicts} <= {"correct", "incorrect", "limit"}
    assert {verdict.verifier.name for verdict in verdicts} == {"code"}
    assert len({verdict.verifier.digest for verdict in verdicts}) == 1
    isolation = [verdict.evidence["isolation"] for verdict in verdicts]
    assert {one["level"] for one in isolation} <= {"ns", "seccomp"} and len(
        {one["fingerprint"] for one in isolation}
    ) == 1
    # SFT taught it the form of a solution, so that some programs run and print the number that was asked for.
    assert any(verdict.status == "correct" for verdict in verdicts)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"answer": {"mode": "stdio", "tests": []}}, "tests is a list that is not empty"),
        (
            {"answer": {"mode": "stdio", "tests": [{"stdin": "", "stdout": "nothing like it"}]}},
            "token 1: expected 'nothing'",
        ),
    ],
)
def test_cases_that_are_none_or_that_the_solution_fails_stop_it_before_it_starts(
    launched: Any, tmp_path: Path, change: dict[str, Any], said: str
) -> None:
    with pytest.raises(DataError) as told:
        launched(written(tmp_path, rows(**change)), RECIPE)
    assert said in str(told.value) and "programs.jsonl:1" in str(told.value)


def test_a_level_that_is_refused_stops_it_before_it_starts(launched: Any, tmp_path: Path) -> None:
    train = {**RECIPE["data"]["train"], "verifier_args": {"level": "rlimits"}}
    with pytest.raises(ConfigError, match="rlimits limits time and memory and keeps nothing apart"):
        launched(written(tmp_path, rows()), {**RECIPE, "data": {"train": train}})


def test_the_page_s_example_is_a_run(root: Path, tmp_path: Path) -> None:
    """Its rows are problems whose solutions pass, its recipe is one."""
    page = (root / "docs" / "code.md").read_text()
    blocks = dict(re.findall(r"```(yaml|jsonl)\n(.*?)```", page, re.DOTALL))
    (tmp_path / "problems.jsonl").write_text(blocks["jsonl"])
    recipe = validate(yaml.safe_load(blocks["yaml"]), where="docs/code.md")
    prepared = launch.prepare(recipe, base=tmp_path)
    assert [problem.verifier.name for problem in prepared.sets["train"].problems] == ["code", "code"]
    assert set(prepared.verifiers) == {"code"}


def test_the_page_names_every_argument_and_mode(root: Path) -> None:
    page = (root / "docs" / "code.md").read_text()
    arguments = inspect.signature(code).parameters.values()
    for name in [p.name for p in arguments if p.kind is p.KEYWORD_ONLY and p.name != "finish"] + [*MODES]:
        assert f"`{name}`" in page, name
