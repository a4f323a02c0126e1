"""Rows in flight as JSON and back, exactly: numbers of tokens as base64 of their bytes, everything else as it is.

What a completion is about (prompt, problem, text) is not here: it is made anew from the plan and the tokenizer.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jurat.platform.types import Completion, Judgement, Reward, Span, Step, Verdict, VerifierSpec

State = dict[str, Any]
"""JSON values only."""
TOKEN, LOGPROB = np.dtype("<i4"), np.dtype("<f4")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Drawn:
    """How far a rollout is: tokens, all of them or some, and what was judged of them."""

    completion: Completion
    judgement: Judgement | None = None
    score_seconds: float = 0.0
    ready: float = 0.0
    """``time.perf_counter()`` when it was judged; another process begins to count when it restores."""

    def state(self) -> State:
        completion = self.completion
        return {
            "tokens": _packed(completion.token_ids, TOKEN),
            "logprobs": _packed(completion.logprobs, LOGPROB),
            "finish": completion.finish,
            "spans": [[span.start, span.end, span.version] for span in completion.spans],
            "seconds": dict(completion.seconds),
            "judgement": None if self.judgement is None else _judgement(self.judgement),
            "score_seconds": self.score_seconds,
        }

    @classmethod
    def of(cls, state: Mapping[str, Any], *, now: float) -> Drawn:
        """The row that ``state`` was made of."""
        completion = Completion(
            token_ids=_unpacked(state["tokens"], TOKEN).astype(np.int64),
            logprobs=_unpacked(state["logprobs"], LOGPROB).astype(np.float32),
            finish=state["finish"],
            spans=tuple(Span(start=start, end=end, version=version) for start, end, version in state["spans"]),
            seconds=dict(state["seconds"]),
        )
        judged = state["judgement"]
        judgement = None if judged is None else _judgement_of(judged)
        return cls(completion=completion, judgement=judgement, score_seconds=state["score_seconds"], ready=now)


def _packed(values: NDArray[Any], dtype: np.dtype[Any]) -> str:
    return base64.b64encode(values.astype(dtype).tobytes()).decode("ascii")


def _unpacked(text: str, dtype: np.dtype[Any]) -> NDArray[Any]:
    return np.frombuffer(base64.b64decode(text), dtype=dtype)


def _judgement(judgement: Judgement) -> State:
    reward = judgement.reward
    return {
        "verdicts": {name: _verdict(verdict) for name, verdict in judgement.verdicts.items()},
        "order": list(judgement.verdicts),  # a checkpoint sorts the keys of its objects
        "reward": {
            "value": reward.value,
            "parts": [[name, score] for name, score in reward.parts.items()],
            "steps": [asdict(step) for step in reward.steps],
            "trainable": reward.trainable,
            "gate": reward.gate,
        },
    }


def _judgement_of(state: Mapping[str, Any]) -> Judgement:
    given = state["reward"]
    reward = Reward(
        value=given["value"],
        parts=dict(given["parts"]),
        steps=tuple(Step(**step) for step in given["steps"]),
        trainable=given["trainable"],
        gate=given.get("gate", ""),
    )
    return Judgement(verdicts={name: _verdict_of(state["verdicts"][name]) for name in state["order"]}, reward=reward)


def _verdict(verdict: Verdict) -> State:
    spec = verdict.verifier
    bare = asdict(replace(verdict, verifier=None, evidence={}, steps=()))
    return {
        **bare,
        "evidence": dict(verdict.evidence),
        "flags": list(verdict.flags),
        "steps": [asdict(step) for step in verdict.steps],
        "verifier": None if spec is None else {"name": spec.name, "args": dict(spec.args), "digest": spec.digest},
    }


def _verdict_of(state: Mapping[str, Any]) -> Verdict:
    spec = state["verifier"]
    return Verdict(
        **{
            **state,
            "flags": tuple(state["flags"]),
            "steps": tuple(Step(**step) for step in state["steps"]),
            "verifier": None if spec is None else VerifierSpec(**spec),
        }
    )
