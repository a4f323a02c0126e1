"""Verdicts at the door: what a verifier returned becomes a checked Verdict; verdicts and problems travel as JSON."""

from __future__ import annotations

import dataclasses
import json
import math
import numbers
import sys
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, get_args

from jurat.platform.types import (
    FAULTS,
    UNSCORED,
    Fault,
    Message,
    Problem,
    Step,
    Verdict,
    VerifierSpec,
    status_of,
)

MAX_TEXT = 2_000
"""Characters kept of ``read`` and ``why``."""
MAX_EVIDENCE = 16_000
"""Characters of JSON kept of ``evidence``."""
MAX_FLAGS = 32
"""Flags kept, of 100 characters each."""
MAX_STEPS = 4_096
"""Steps a verdict may have."""
EXPECTED = "a bool, a float in [0, 1], None or a jurat.Verdict"


def as_verdict(name: str, kind: str, raw: Any) -> Verdict:
    """The verdict for what verifier ``name`` returned. Anything but the four allowed forms is an ``error`` verdict."""
    if isinstance(raw, Verdict):
        return _checked(name, raw)
    if raw is None:
        return Verdict.of("abstained", why=f"{name} returned None")
    # NumPy is not imported for this; where it is not, nothing is of its type.
    if isinstance(raw, (bool, getattr(sys.modules.get("numpy"), "bool_", bool))):
        return Verdict.of("correct" if raw else "incorrect", why=name)
    if isinstance(raw, numbers.Real):
        score = float(raw)
        if not math.isfinite(score) or not 0.0 <= score <= 1.0:
            return error(f"{name} returned {score!r}, expected {EXPECTED}")
        return Verdict.of(status_of(score), score, why=name)
    if kind == "steps" and isinstance(raw, (list, tuple)) and raw and all(isinstance(step, Step) for step in raw):
        scores = [step.score for step in raw]
        known = [score for score in scores if score is not None]
        if len(known) < len(scores):
            return _checked(name, Verdict.of("undecided", why=f"{name}: a step without a score", steps=tuple(raw)))
        low = min(known)
        return _checked(name, Verdict.of(status_of(low), low, why=f"{name}: lowest step", steps=tuple(raw)))
    return error(f"{name} returned {_shown(raw)}, expected {EXPECTED}")


def error(why: str, **evidence: Any) -> Verdict:
    """The verifier is at fault: no score."""
    return Verdict.of("error", why=why[:MAX_TEXT], evidence=capped(evidence))


def _shown(raw: Any) -> str:
    try:
        text = repr(raw)
    except Exception as fault:
        text = f"<repr raised {type(fault).__name__}>"
    return f"{type(raw).__name__} {text[:80]}"


def _checked(name: str, verdict: Verdict) -> Verdict:
    fault = problem_with(verdict)
    if fault:
        return error(f"{name} returned a Verdict with {fault}")
    seconds = verdict.seconds
    known = isinstance(seconds, (int, float)) and math.isfinite(seconds) and seconds >= 0
    return replaced(
        verdict, read=str(verdict.read)[:MAX_TEXT], why=str(verdict.why)[:MAX_TEXT], evidence=capped(verdict.evidence),
        flags=tuple(flag[:100] for flag in verdict.flags[:MAX_FLAGS]), certified=verdict.certified is True,
        steps=tuple(dataclasses.replace(step, why=str(step.why)[:MAX_TEXT]) for step in verdict.steps),
        seconds=seconds if known else 0.0,
    )  # fmt: skip


def problem_with(verdict: Verdict) -> str:
    """'' if status, score and fault agree, else what is wrong."""
    if not isinstance(verdict.status, str) or verdict.status not in FAULTS:
        return f"status {_shown(verdict.status)}, expected one of {', '.join(FAULTS)}"
    if verdict.fault is not None and verdict.fault not in get_args(Fault):
        return f"fault {_shown(verdict.fault)}, expected one of {', '.join(get_args(Fault))} or None"
    if not isinstance(verdict.flags, (tuple, list)) or not all(isinstance(flag, str) for flag in verdict.flags):
        return f"flags {_shown(verdict.flags)}, expected a tuple of strings"
    if not isinstance(verdict.evidence, Mapping):
        return f"evidence {_shown(verdict.evidence)}, expected a mapping"
    if not isinstance(verdict.steps, (tuple, list)) or not all(isinstance(step, Step) for step in verdict.steps):
        return f"steps {_shown(verdict.steps)}, expected a tuple of jurat.Step"
    if len(verdict.steps) > MAX_STEPS:
        return f"{len(verdict.steps)} steps, at most {MAX_STEPS}"
    score = verdict.score
    if score is None:
        return "" if verdict.status in UNSCORED else f"status {verdict.status!r} and no score"
    if isinstance(score, bool) or not isinstance(score, numbers.Real) or not 0.0 <= float(score) <= 1.0:
        return f"score {score!r:.40}, expected a number in [0, 1]"
    implied = {"correct": 1.0, "partial": float(score)}.get(verdict.status, 0.0)
    if float(score) != implied:
        return f"status {verdict.status!r} and score {score!r}, expected {implied}"
    if verdict.status in UNSCORED and verdict.fault != "policy":
        return f"status {verdict.status!r} and a score, which only fault 'policy' may have"
    for step in verdict.steps:
        low, high, given = step.start, step.end, step.score
        if not 0 <= low <= high or step.status not in FAULTS:
            return f"a step [{low}, {high}) of status {step.status!r}"
        if given is not None and not (isinstance(given, numbers.Real) and 0.0 <= float(given) <= 1.0):
            return f"a step score {given!r:.40}, expected a number in [0, 1]"
    return ""


def replaced(verdict: Verdict, **changes: Any) -> Verdict:
    """A copy with some fields changed."""
    return dataclasses.replace(verdict, **changes)


def capped(evidence: Mapping[str, Any]) -> Mapping[str, Any]:
    """``evidence`` as plain JSON of at most MAX_EVIDENCE characters; what JSON cannot hold becomes its repr."""
    try:
        text = json.dumps(dict(evidence), default=lambda item: repr(item)[:200], allow_nan=False)
    except (ValueError, TypeError, RecursionError):
        text = json.dumps({str(key)[:100]: repr(item)[:200] for key, item in evidence.items()})
    if len(text) > MAX_EVIDENCE:
        return {"cut": text[:MAX_EVIDENCE]}
    plain: dict[str, Any] = json.loads(text)
    return plain


# ---- as JSON -----------------------------------------------------------------------------------------------------


def verdict_to_json(verdict: Verdict) -> dict[str, Any]:
    """Plain JSON, defaults left out; without ``verifier``, which the receiver knows."""
    out: dict[str, Any] = {"status": verdict.status, "score": None if verdict.score is None else float(verdict.score)}
    for key in ("fault", "read", "why", "certified", "seconds"):
        value = getattr(verdict, key)
        if value:
            out[key] = value
    if verdict.evidence:
        out["evidence"] = dict(verdict.evidence)
    if verdict.flags:
        out["flags"] = list(verdict.flags)
    if verdict.steps:
        out["steps"] = [[s.start, s.end, s.status, s.score, s.why] for s in verdict.steps]
    return out


def verdict_from_json(value: Mapping[str, Any]) -> Verdict:
    """The verdict, checked again. Raises ValueError if it is not one."""
    try:
        steps = tuple(
            Step(start=int(a), end=int(b), status=status, score=score, why=str(why))
            for a, b, status, score, why in value.get("steps", ())
        )
        made = Verdict(
            status=value["status"], score=value["score"], fault=value.get("fault"), read=str(value.get("read", "")),
            why=str(value.get("why", "")), evidence=dict(value.get("evidence", {})), steps=steps,
            certified=value.get("certified", False) is True, seconds=float(value.get("seconds", 0.0)),
            flags=value.get("flags", ()),
        )  # fmt: skip
    except (KeyError, TypeError, ValueError, AttributeError) as fault:
        raise ValueError(f"not a verdict: {fault!r}") from None
    wrong = problem_with(made)
    if wrong:
        raise ValueError(f"a verdict with {wrong}")
    return replaced(made, flags=tuple(made.flags))


def problem_to_json(problem: Problem) -> dict[str, Any]:
    """Everything of a problem but the digest of its verifier."""
    return {
        "id": problem.id,
        "messages": [[m.role, m.content] for m in problem.messages],
        "reference": problem.reference,
        "verifier": [problem.verifier.name, dict(problem.verifier.args)],
        "source": problem.source,
        "split": problem.split,
        "columns": dict(problem.columns),
    }


def problem_from_json(value: Mapping[str, Any]) -> Problem:
    name, args = value["verifier"]
    return Problem(
        id=value["id"],
        messages=tuple(Message(role=role, content=content) for role, content in value["messages"]),
        reference=value["reference"],
        verifier=VerifierSpec(name=name, args=args),
        source=value["source"],
        split=value["split"],
        columns=value["columns"],
    )


def problem_of(
    gold: str,
    *,
    prompt: str | Sequence[Message] = "",
    verifier: str = "math",
    columns: Mapping[str, Any] = MappingProxyType({}),
) -> Problem:
    """A problem made by hand, for one verdict. Example: ``problem_of("1/2", prompt="Half of one?")``."""
    from jurat.platform.canonical import digest

    messages = (Message(role="user", content=prompt),) if isinstance(prompt, str) else tuple(prompt)
    key = digest({"messages": [[m.role, m.content] for m in messages], "reference": gold})
    return Problem(
        id=key,
        messages=messages,
        reference=gold,
        verifier=VerifierSpec(name=verifier),
        source="given",
        columns=dict(columns),
    )
