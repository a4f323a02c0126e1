"""Does the gold of a set pass its own verifier? A gold that does not would teach the policy that right is wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor

from jurat.datasets.programs import solution_of
from jurat.platform.errors import DataError
from jurat.platform.types import Problem, Verdict

SHOWN = 5


def as_completion(problem: Problem) -> str:
    r"""What a model would write that knows the gold: in ``\boxed{}`` for `math`, the solution for `code` ('' where the row
    has none), else the reference as it is."""
    if problem.verifier.name == "code":
        return solution_of(problem.columns)
    return rf"\boxed{{{problem.reference}}}" if problem.verifier.name == "math" else problem.reference


def form_only(problems: Iterable[Problem]) -> int:
    """How many golds have nothing that could be run, as cases of programs without a solution: ``check_gold`` sees their form."""
    return sum(bool(problem.reference) and not as_completion(problem) for problem in problems)


def check_gold(
    problems: Iterable[Problem],
    verify: Callable[[Problem, str], Verdict],
    *,
    present: Callable[[Problem], str] = as_completion,
    at_once: int = 1,
) -> list[tuple[Problem, Verdict]]:
    """The problems whose gold is not judged correct, with the verdict. ``present`` makes a completion of the gold; where it
    has none, as for cases of programs, ``no_answer`` says that there is nothing wrong with the gold itself. ``verify`` is
    called from so many threads ``at_once``, for verifiers that work in processes."""
    asked = list(problems)
    completions = [present(problem) for problem in asked]
    with ThreadPoolExecutor(at_once) as threads:
        verdicts = list((map if at_once == 1 else threads.map)(verify, asked, completions))
    return [
        (problem, verdict)
        for problem, completion, verdict in zip(asked, completions, verdicts, strict=True)
        if verdict.status != ("correct" if completion else "no_answer")
    ]


def failure(where: str, gold: str, status: str, why: str) -> str:
    """One failed gold in a line that may be cut: the reason comes first, the gold last and short."""
    return f"{where}: {status}: {why[:200]}; gold {gold[:40]!r}" + ("…" if len(gold) > 40 else "")


def refuse_failed(failed: Sequence[tuple[Problem, Verdict]], total: int, *, where: str = "gold") -> None:
    """Raises DataError listing the first problems whose gold fails."""
    if not failed:
        return
    lines = [failure(p.source or p.id, p.reference, f"{v.status} by {p.verifier.name}", v.why)
             for p, v in failed[:SHOWN]]  # fmt: skip
    more = f"\n  and {len(failed) - SHOWN} more" if len(failed) > SHOWN else ""
    raise DataError(
        f"{len(failed)} of {total} gold answers do not pass their own verifier:\n  " + "\n  ".join(lines) + more,
        where=where, fix="mend the rows, or name the verifier that these answers are meant for",
    )  # fmt: skip
