"""Verifiers made of verifiers. Each takes ``of``: names, or ``{use: name, args: {...}}``, to be rebuilt from a log.

From Python the functions return a callable to register: ``jurat.verifier("strict")(compose.all_of("math", "tags"))``.
A part without a score (an error, a time-out, undecided) is never counted as wrong: unless the other parts already
settle the result, the whole has no score either and carries that part's status.
"""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jurat.platform.errors import ConfigError
from jurat.platform.types import Finish, Problem, Verdict, status_of

Part = str | Mapping[str, Any] | Callable[..., Any]
"""A registered name, a name with arguments, or a verifier function."""


class _Composite:
    """Parts in order, made one verdict of."""

    together = False
    """Whether a judge may ask the parts apart from one another, and put their verdicts together by ``put``."""

    def __init__(self, of: Sequence[Part]) -> None:
        if not of:
            raise ConfigError(f"{type(self).__name__} needs at least one verifier in `of`", where=type(self).__name__)
        self.of = tuple(of)
        if not self.together:
            self._calls  # noqa: B018  unknown names are refused where it is made

    @functools.cached_property
    def _calls(self) -> list[tuple[str, Callable[[Problem, str, Finish], Verdict]]]:
        return [_resolved(part) for part in self.of]

    def __call__(self, problem: Problem, completion: str, finish: Finish = "stop") -> Verdict:
        raise NotImplementedError

    def __fingerprint__(self) -> list[str]:
        """The versions of the parts, in order."""
        return [_version(part) for part in self.of]

    def _judged(self, index: int, problem: Problem, completion: str, finish: Finish) -> Verdict:
        name, call = self._calls[index]
        started = time.perf_counter()
        verdict = call(problem, completion, finish)
        return dataclasses.replace(verdict, seconds=time.perf_counter() - started, why=f"{name}: {verdict.why}")


def named(part: Part) -> str:
    return getattr(part, "__name__", "verifier") if callable(part) else use_of(part)[0]


def use_of(part: str | Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """(verifier, its arguments)"""
    return (part, {}) if isinstance(part, str) else (part["use"], dict(part.get("args", {})))


def _resolved(part: Part) -> tuple[str, Callable[[Problem, str, Finish], Verdict]]:
    from jurat.verifiers import catalog, verdicts

    if callable(part):
        name, kind, call, wants = named(part), "outcome", part, False
    else:
        name, args = use_of(part)
        definition = catalog.check(name, args, where="of")
        if definition.batch:
            raise ConfigError(f"{name!r} takes batches and cannot be part of another verifier", where="of")
        call, kind, wants = definition.build(args), definition.kind, definition.wants_finish

    def judged(problem: Problem, completion: str, finish: Finish) -> Verdict:
        made = call(problem, completion, finish=finish) if wants else call(problem, completion)
        return verdicts.as_verdict(name, kind, made)

    return name, judged


def _version(part: Part) -> str:
    from jurat.platform.identity import identify
    from jurat.verifiers import catalog, versions

    if callable(part):
        return identify(part, config={}).digest
    name, args = use_of(part)
    return versions.identity_of(catalog.check(name, args), args).digest


def _unscored(parts: Sequence[Verdict]) -> Verdict | None:
    return next((part for part in parts if part.score is None), None)


def _made(score: float, why: str, parts: Sequence[Verdict]) -> Verdict:
    evidence = {"parts": [[part.status, part.score, part.why[:200]] for part in parts]}
    return Verdict.of(
        status_of(score), score, why=why[:500], evidence=evidence, certified=all(part.certified for part in parts),
        read=next((part.read for part in parts if part.read), ""), steps=tuple(s for p in parts for s in p.steps),
        flags=tuple(dict.fromkeys(flag for part in parts for flag in part.flags)),
    )  # fmt: skip


class all_of(_Composite):
    """The lowest score of all parts. One certain 0 settles it."""

    def __call__(self, problem: Problem, completion: str, finish: Finish = "stop") -> Verdict:
        parts = [self._judged(i, problem, completion, finish) for i in range(len(self.of))]
        zero = next((part for part in parts if part.score == 0), None)
        missing = _unscored(parts)
        if zero is None and missing is not None:
            return missing
        least = zero or min(parts, key=lambda part: part.score or 0.0)
        return _made(least.score or 0.0, least.why, parts)


class any_of(_Composite):
    """The highest score of all parts. One certain 1 settles it."""

    def __call__(self, problem: Problem, completion: str, finish: Finish = "stop") -> Verdict:
        parts = [self._judged(i, problem, completion, finish) for i in range(len(self.of))]
        one = next((part for part in parts if part.score == 1), None)
        missing = _unscored(parts)
        if one is None and missing is not None:
            return missing
        most = one or max(parts, key=lambda part: part.score or 0.0)
        return _made(most.score or 0.0, most.why, parts)


class gated(_Composite):
    """The last part's verdict if every part before it is correct, else 0; parts behind a closed gate do not run."""

    def __call__(self, problem: Problem, completion: str, finish: Finish = "stop") -> Verdict:
        parts = []
        for i in range(len(self.of)):
            part = self._judged(i, problem, completion, finish)
            parts.append(part)
            last = i == len(self.of) - 1
            if part.score is None:
                return part
            if part.score < 1 and not last:
                return _made(0.0, f"gate closed: {part.why}", parts)
        return _made(parts[-1].score or 0.0, parts[-1].why, parts)


class weighted(_Composite):
    """The mean of the parts' scores with ``weights``, which are normalised to sum to 1."""

    def __init__(self, of: Sequence[Part], weights: Sequence[float]) -> None:
        super().__init__(of)
        if len(weights) != len(of) or any(w < 0 for w in weights) or not sum(weights) > 0:
            raise ConfigError(
                f"weights must be {len(of)} numbers >= 0 with a positive sum, got {list(weights)}", where="weighted"
            )
        self.weights = tuple(weight / sum(weights) for weight in weights)

    def __fingerprint__(self) -> list[str]:
        return [*super().__fingerprint__(), *(float(weight).hex() for weight in self.weights)]

    def __call__(self, problem: Problem, completion: str, finish: Finish = "stop") -> Verdict:
        parts = [self._judged(i, problem, completion, finish) for i in range(len(self.of))]
        missing = _unscored(parts)
        if missing is not None:
            return missing
        score = sum(weight * (part.score or 0.0) for weight, part in zip(self.weights, parts, strict=True))
        return _made(min(1.0, max(0.0, round(score, 12))), "weighted", parts)


class first_decisive(_Composite):
    """The first part that decides: statuses correct, incorrect or partial. The next is asked only if the one before
    abstained, read no answer, or could not tell.
    """

    def __call__(self, problem: Problem, completion: str, finish: Finish = "stop") -> Verdict:
        made = None
        for i in range(len(self.of)):
            made = self._judged(i, problem, completion, finish)
            if made.status in ("correct", "incorrect", "partial"):
                return made
        assert made is not None
        return made
