"""Which column is what, guessed from names and contents, for a person to confirm in a recipe."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from jurat.datasets.gold import is_prose
from jurat.datasets.load import GIVEN, Holds
from jurat.platform.errors import DataError
from jurat.platform.recipe import Fields

QUESTIONS = ("question", "problem", "prompt", "query", "instruction", "input", "messages")
ANSWERS = (
    "answer", "final_answer", "gold", "ground_truth", "target", "expected_answer", "reference", "label",
    "reward_model.ground_truth", "solution", "output", "response", "completion", "canonical_solution",
)  # fmt: skip
SOLUTIONS = ("solution", "rationale", "reasoning", "explanation", "generated_solution", "cot")


def guess_holds(rows: Sequence[Mapping[str, Any]]) -> Holds:
    """Pairs where most rows have a chosen and a rejected completion, labels where a completion and true or false."""
    names = {name: None for row in rows for name in row}
    if all(_first((name,), names, rows) == name for name in GIVEN["pairs"]):
        return "pairs"
    if all(_first((name,), names, rows) == name for name in GIVEN["labels"]):
        labels = [str(row["label"]).casefold() for row in rows if row.get("label") is not None]
        good = sum(label in ("true", "false", "0", "1") for label in labels)
        return "labels" if good * 2 > len(labels) else "answers"
    return "answers"


def guess_fields(
    rows: Sequence[Mapping[str, Any]], *, where: str, question: str | None = None, answer: str | None = None,
    holds: Holds = "answers",
) -> Fields:  # fmt: skip
    """A field map that fits most of ``rows``, with ``question`` and ``answer`` where they are given.

    Raises DataError listing the columns if none is likely.
    """
    names = {name: None for row in rows for name in row}
    question = question or _first(QUESTIONS, names, rows)
    if holds == "pairs" or (
        holds == "labels" and question is not None
    ):  # pairs may be conversations that begin with it
        return Fields(question=question or Fields().question, answer=answer or Fields().answer)
    answer = answer or _first(tuple(a for a in ANSWERS if a != question), names, rows)
    if question is None or answer is None:
        missing = "question" if question is None else "answer"
        raise DataError(f"no column looks like the {missing}; columns: {', '.join(names) or 'none'}", where=where,
                        fix=f"name it with --{missing}")  # fmt: skip
    texts = [str(value) for row in rows if (value := _get(row, answer)) is not None]
    solution = _first(tuple(s for s in SOLUTIONS if s != answer), names, rows)
    return Fields(question=question, answer=answer, solution=solution, gold=_rule(texts))


def _rule(texts: Sequence[str]) -> Literal["auto", "plain", "hashes", "boxed"]:
    def most(count: int) -> bool:
        return count > len(texts) / 2

    if most(sum("####" in t for t in texts)):
        return "hashes"
    if most(sum("\\boxed" in t for t in texts)):
        return "boxed"
    return "auto" if any(is_prose(t) for t in texts) else "plain"


def _first(wanted: Sequence[str], names: Mapping[str, None], rows: Sequence[Mapping[str, Any]]) -> str | None:
    """The first wanted column, in its own spelling, that most rows fill."""
    spelled = {name.casefold(): name for name in names}
    for name in wanted:
        head, _, rest = name.partition(".")
        found = spelled.get(head)
        if found is None:
            continue
        path = f"{found}.{rest}" if rest else found
        if sum(_get(row, path) not in (None, "") for row in rows) * 2 > len(rows):
            return path
    return None


def _get(row: Mapping[str, Any], path: str) -> Any:
    value: Any = row
    for part in path.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value
