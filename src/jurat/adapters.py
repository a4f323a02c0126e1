"""A registered verifier as other frameworks expect a reward.

| function       | for               | shape                                                                  |
|----------------|-------------------|------------------------------------------------------------------------|
| ``trl_reward`` | TRL reward_funcs  | ``f(prompts, completions, **columns) -> list[float or None]``          |
| ``verl_score`` | verl custom score | ``f(data_source, solution_str, ground_truth, extra_info=None) -> dict``|
| ``plain``      | anything          | ``f(completion, gold) -> float or None``                               |

None means that no verdict was reached: the sample should be left out and not be called wrong. Each adapter starts its
worker processes on first use, only if its verifier needs them, and may be pickled: it travels as name and arguments.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jurat.platform.errors import ConfigError, DataError

if TYPE_CHECKING:
    from jurat.platform.types import Problem, Verdict
    from jurat.verifiers.judge import LocalJudge


class _Adapter:
    """Holds the verifier by name and builds its judge on first use, in whatever process that is."""

    def __init__(
        self, verifier: str, *, args: Mapping[str, Any], user_files: Sequence[Path | str], workers: int
    ) -> None:
        self.verifier, self.args, self.workers = verifier, dict(args), workers
        self.user_files = tuple(str(file) for file in user_files)
        self.__name__ = verifier
        self._lock = threading.Lock()
        self._judge: LocalJudge | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in vars(self).items() if key not in ("_lock", "_judge")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _lock=threading.Lock(), _judge=None)

    @property
    def judge(self) -> LocalJudge:
        """The judge of this process."""
        from jurat.platform.recipe import Member, RewardPart
        from jurat.verifiers.judge import build_judge

        with self._lock:
            if self._judge is None:
                part = RewardPart(members=(Member(use=self.verifier, args=self.args),), workers=self.workers)
                self._judge = build_judge(part, user_files=self.user_files)
            return self._judge

    def verdicts(self, problems: Sequence[Problem], texts: Sequence[str]) -> list[Verdict]:
        """One verdict for each pair, in order."""
        made = dict(self.judge.judge_many(zip(problems, texts, strict=True)))
        return [next(iter(made[i].verdicts.values())) for i in range(len(texts))]

    def close(self) -> None:
        """End the worker processes, if any were started."""
        with self._lock:
            judge, self._judge = self._judge, None
        if judge is not None:
            judge.close()


_NOT_COLUMNS = frozenset({"completion_ids", "trainer_state", "log_extra", "log_metric", "environments"})
"""What TRL passes beside the data set's columns."""


class _TRL(_Adapter):
    def __init__(self, verifier: str, *, gold: str, **given: Any) -> None:
        super().__init__(verifier, **given)
        self.gold = gold

    def __call__(self, prompts: Sequence[Any], completions: Sequence[Any], **columns: Any) -> list[float | None]:
        if self.gold not in columns:
            listed = ", ".join(sorted(columns)) or "none"
            raise ConfigError(
                f"the data set has no column {self.gold!r} for the reference answer",
                where=f"trl_reward({self.verifier!r})",
                fix=f'say which one holds it: trl_reward({self.verifier!r}, gold="..."); columns: {listed}',
            )
        golds = columns[self.gold]
        if not len(prompts) == len(completions) == len(golds):
            raise DataError(
                f"{len(prompts)} prompts, {len(completions)} completions, {len(golds)} references: counts must be equal",
                where=f"trl_reward({self.verifier!r})",
            )
        given = {k: v for k, v in columns.items() if k not in _NOT_COLUMNS and isinstance(v, (list, tuple))}
        rest = {k: v for k, v in given.items() if len(v) == len(golds)}
        problems = [
            _problem(self.verifier, str(gold), prompt, {k: v[i] for k, v in rest.items()})
            for i, (gold, prompt) in enumerate(zip(golds, prompts, strict=True))
        ]
        return [verdict.score for verdict in self.verdicts(problems, [_text(c) for c in completions])]


class _Verl(_Adapter):
    def __init__(self, verifier: str, *, undecided: float, **given: Any) -> None:
        super().__init__(verifier, **given)
        self.undecided = undecided

    def __call__(
        self, data_source: str, solution_str: str, ground_truth: str, extra_info: Any = None, **_: Any
    ) -> dict[str, Any]:
        columns = dict(extra_info) if isinstance(extra_info, Mapping) else {}
        told = {"data_source": data_source, **columns}
        problem = _problem(self.verifier, str(ground_truth), columns.get("prompt", ""), told)
        verdict = self.verdicts([problem], [solution_str])[0]
        return {
            "score": self.undecided if verdict.score is None else verdict.score,
            "decided": verdict.score is not None, "status": verdict.status, "pred": verdict.read, "why": verdict.why,
        }  # fmt: skip


class _Plain(_Adapter):
    def __call__(self, completion: str, gold: str) -> float | None:
        return self.verdicts([_problem(self.verifier, gold, "", {})], [completion])[0].score


def trl_reward(
    verifier: str, *, gold: str = "answer", args: Mapping[str, Any] | None = None,
    user_files: Sequence[Path | str] = (), workers: int = 1,
) -> _TRL:  # fmt: skip
    """For ``GRPOTrainer(reward_funcs=[trl_reward("math")])``. ``gold`` is the data set's column of reference answers.

    Completions may be texts or conversations. A completion without a verdict gets None, which TRL leaves out.
    """
    return _TRL(verifier, gold=gold, args=args or {}, user_files=user_files, workers=workers)


def verl_score(
    verifier: str, *, undecided: float, args: Mapping[str, Any] | None = None,
    user_files: Sequence[Path | str] = (), workers: int = 1,
) -> _Verl:  # fmt: skip
    """For verl's ``custom_reward_function``. verl cannot leave a sample out, so ``undecided`` says what one without a
    verdict is worth; the key ``decided`` tells them apart in its logs.
    """
    return _Verl(verifier, undecided=undecided, args=args or {}, user_files=user_files, workers=workers)


def plain(
    verifier: str, *, args: Mapping[str, Any] | None = None, user_files: Sequence[Path | str] = (), workers: int = 1
) -> _Plain:
    """``f(completion, gold)``: a score in [0, 1], or None without a verdict."""
    return _Plain(verifier, args=args or {}, user_files=user_files, workers=workers)


def _text(completion: Any) -> str:
    """A text as it is; of a conversation, the assistant's turns."""
    if isinstance(completion, str):
        return completion
    turns = [m["content"] for m in completion if isinstance(m, Mapping) and m.get("role", "assistant") == "assistant"]
    return "\n".join(turn for turn in turns if isinstance(turn, str))


def _problem(verifier: str, gold: str, prompt: Any, columns: Mapping[str, Any]) -> Problem:
    from jurat.platform.types import Message
    from jurat.verifiers.verdicts import problem_of

    if not isinstance(prompt, str):
        prompt = [Message(role=m["role"], content=str(m["content"])) for m in prompt if isinstance(m, Mapping)]
    kept = {str(key): value for key, value in columns.items() if _is_json(value)}
    return problem_of(gold, prompt=prompt, verifier=verifier, columns=kept)


def _is_json(value: Any) -> bool:
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        return False
    return True
