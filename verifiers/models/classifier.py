"""Verifiers ``reward_model`` and ``process_reward_model``: a classifier's chance that an answer, or a step of it, is right.

score = sigmoid(z / T): z is the one logit, or the second less the first of two; T is the folder's temperature. Texts are never padded:
those of one length go through the model together, so a score depends on nothing but its own text.
"""

from __future__ import annotations

import dataclasses
import math
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from jurat.platform.types import Problem, Step, Verdict, status_of
from jurat.verifiers.models import folder as folders
from jurat.verifiers.steps.split import How, split
from jurat.verifiers.steps.verdicts import whole

TooLong = Literal["keep_end", "refuse"]
RIGHT = 0.5
"""A step with a lower chance is called wrong."""


class Encoded(NamedTuple):
    """Question and answer as tokens."""

    inputs: Mapping[str, list[int]]
    """``input_ids``, and ``token_type_ids`` where the tokenizer has them."""
    offsets: list[tuple[int, int]]
    """Characters of the answer that each token covers; (0, 0): none."""

    def last(self, count: int) -> Encoded:
        """The first token, by which many classifiers tell, and the last ``count - 1``."""
        if len(self.offsets) <= count:
            return self
        inputs = {name: [values[0], *values[1 - count :]] for name, values in self.inputs.items()}
        return Encoded(inputs, [self.offsets[0], *self.offsets[1 - count :]])


class _Model:
    """A model of a folder, loaded once a process."""

    _loaded: dict[tuple[str, str, str], _Model] = {}
    _lock = threading.Lock()

    def __init__(self, folder: Path, kind: str, device: str) -> None:
        import torch
        from transformers import (
            AutoModelForSequenceClassification,
            AutoModelForTokenClassification,
            AutoTokenizer,
        )

        made = {"sequence": AutoModelForSequenceClassification, "token": AutoModelForTokenClassification}[kind]
        how: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
        self.tokenizer = AutoTokenizer.from_pretrained(folder, **how)
        self.model = made.from_pretrained(folder, use_safetensors=True, dtype=torch.float32, **how).to(device).eval()
        config = self.model.config
        self.limit = int(min(getattr(config, "max_position_embeddings", 1 << 20), self.tokenizer.model_max_length))
        # a decoder that knows no padding reads one row at a time
        self.alone = kind == "sequence" and getattr(config, "pad_token_id", None) is None
        self.temperature = folders.temperature(folder)
        self.torch, self.device = torch, device

    @classmethod
    def of(cls, folder: Path, kind: str, device: str) -> _Model:
        key = (str(folder.resolve()), kind, device)
        with cls._lock:
            if key not in cls._loaded:
                cls._loaded[key] = cls(folder, kind, device)
            return cls._loaded[key]

    def encoded(self, question: str, answer: str) -> Encoded:
        texts = (text.encode("utf-8", "replace").decode() for text in (question, answer))
        # marks that a text spells are text: it may not close its own part
        got = self.tokenizer(*texts, return_offsets_mapping=True, truncation=False, split_special_tokens=True)
        offsets = [
            (span[0], span[1]) if part == 1 else (0, 0)
            for part, span in zip(got.sequence_ids(0), got["offset_mapping"], strict=True)
        ]
        return Encoded({name: list(got[name]) for name in ("input_ids", "token_type_ids") if name in got}, offsets)

    def chances(self, rows: Sequence[Encoded], batch: int) -> list[list[float]]:
        """Of each row its chances: one, or one a token."""
        out: list[list[float]] = [[] for _ in rows]
        batch = 1 if self.alone else batch
        by_length: dict[int, list[int]] = {}
        for place, row in enumerate(rows):
            by_length.setdefault(len(row.offsets), []).append(place)
        with self.torch.inference_mode():
            for places in by_length.values():
                for at in range(0, len(places), batch):
                    some = places[at : at + batch]
                    inputs = {
                        name: self.torch.tensor([rows[place].inputs[name] for place in some], device=self.device)
                        for name in rows[some[0]].inputs
                    }
                    mask = self.torch.ones_like(inputs["input_ids"])
                    logits = self.model(**inputs, attention_mask=mask).logits.float()
                    z = logits[..., 0] if logits.shape[-1] == 1 else logits[..., 1] - logits[..., 0]
                    found = self.torch.sigmoid(z / self.temperature).cpu().tolist()
                    for place, chance in zip(some, found, strict=True):
                        out[place] = chance if isinstance(chance, list) else [chance]
        return out


class _Learned:
    kind: Literal["sequence", "token"]

    def __init__(self, model: str, too_long: TooLong = "keep_end", batch: int = 16, device: str = "cpu") -> None:
        self.folder = folders.checked(model, where="argument 'model'")
        self.too_long, self.batch, self.device = too_long, batch, device

    def __fingerprint__(self) -> list[str]:
        """The weights, and what a score depends on; not where or in what batches it is computed."""
        return [folders.identity(self.folder), self.kind, self.too_long]

    def __call__(self, problems: Sequence[Problem], completions: Sequence[str]) -> list[Verdict]:
        model = _Model.of(self.folder, self.kind, self.device)
        asked = [model.encoded(_question(p), c) for p, c in zip(problems, completions, strict=True)]
        fits = [len(each.offsets) <= model.limit for each in asked]
        read = [fit or self.too_long == "keep_end" for fit in fits]
        rows = [each.last(model.limit) for each, taken in zip(asked, read, strict=True) if taken]
        found = iter(zip(rows, model.chances(rows, self.batch), strict=True))
        made = []
        for taken, fit, completion in zip(read, fits, completions, strict=True):
            if not taken:
                made.append(Verdict.of("abstained", why=f"longer than the model's {model.limit} tokens"))
                continue
            row, chances = next(found)
            if not all(math.isfinite(chance) for chance in chances):
                made.append(Verdict.of("error", why="the model's number is not finite"))
                continue
            verdict = self.judged(chances, row.offsets, completion)
            made.append(verdict if fit else _flagged(verdict))
        return made

    def judged(self, chances: Sequence[float], offsets: Sequence[tuple[int, int]], completion: str) -> Verdict:
        raise NotImplementedError


class reward_model(_Learned):
    """The chance that an answer is right, by a sequence classifier.

    Args:
        model: a folder of safetensors, with one label or two.
        too_long: ``keep_end`` reads the last tokens that fit, ``refuse`` abstains.
        batch: texts of one length that go through the model together.
        device: as torch names it.
    """

    kind = "sequence"

    def judged(self, chances: Sequence[float], offsets: Sequence[tuple[int, int]], completion: str) -> Verdict:
        score = min(1.0, max(0.0, chances[0]))
        return Verdict.of(status_of(score), score, why=f"chance {score:.4f}")


class process_reward_model(_Learned):
    """The chance that each step is right, by a token classifier, read at the last token of the step.

    Args:
        how: how steps are cut; see ``verifiers/steps/split.py``. The others as of ``reward_model``.

    The verdict is that of the worst step. A step of which no token was read has no score.
    """

    kind = "token"

    def __init__(
        self, model: str, too_long: TooLong = "keep_end", batch: int = 16, device: str = "cpu", how: How = "auto"
    ) -> None:
        super().__init__(model, too_long, batch, device)
        self.how = how

    def __fingerprint__(self) -> list[str]:
        return [*super().__fingerprint__(), self.how]

    def judged(self, chances: Sequence[float], offsets: Sequence[tuple[int, int]], completion: str) -> Verdict:
        steps = []
        for start, end in split(completion, self.how):
            last = max((place for place, (a, b) in enumerate(offsets) if a < end and b > start), default=None)
            if last is None:
                steps.append(Step(start=start, end=end, status="abstained", score=None, why="not read"))
                continue
            score = min(1.0, max(0.0, chances[last]))
            steps.append(Step(start=start, end=end, status=status_of(score), score=score, why=f"chance {score:.4f}"))
        known = [step.score for step in steps if step.score is not None]
        if not known:
            return whole(steps, evidence={})
        low = min(known)
        first = next(
            (place for place, step in enumerate(steps, 1) if step.score is not None and step.score < RIGHT), None
        )
        return Verdict.of(
            status_of(low),
            low,
            why=f"worst step, chance {low:.4f}",
            steps=tuple(steps),
            evidence={"first_error": first},
        )


def _question(problem: Problem) -> str:
    return "\n".join(message.content for message in problem.messages)


def _flagged(verdict: Verdict) -> Verdict:
    return dataclasses.replace(verdict, flags=(*verdict.flags, "cut to the model's context"))
