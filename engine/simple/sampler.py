"""Decoding with any transformers causal language model: its own forward and its own cache."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from jurat.engine.sampling import Draws, draw
from jurat.platform.types import IntArray

if TYPE_CHECKING:
    from transformers import PreTrainedModel

ROWS_PER_DRAW = 64
"""Rows of float32 logits made at once."""


class SimpleDecoder:
    """Prompts are padded on the left; the rows of a batch run until all have ended, then the next batch is admitted."""

    refills = False
    kernels = "torch"

    def __init__(self, model: PreTrainedModel) -> None:
        self.model, self.device = model, model.device
        text = model.config.get_text_config()
        self.max_length: int = getattr(text, "max_position_embeddings", None) or 1 << 30
        known = inspect.signature(model.forward).parameters
        self._positions = "position_ids" in known
        self._last_only: dict[str, Any] = {"logits_to_keep": 1} if "logits_to_keep" in known else {}
        self._cache: Any = None
        self._mask = torch.zeros(0, 0, dtype=torch.int64, device=self.device)

    def admit(self, prompts: Sequence[IntArray], draws: Draws) -> tuple[Tensor, Tensor]:
        unique, group = _unique(prompts)
        width = max(len(prompt) for prompt in unique)
        tokens = torch.zeros(len(unique), width, dtype=torch.int64, device=self.device)
        mask = torch.zeros_like(tokens)
        for place, prompt in enumerate(unique):
            tokens[place, width - len(prompt) :] = torch.from_numpy(prompt)
            mask[place, width - len(prompt) :] = 1
        self._cache, self._mask = None, mask
        logits = self._forward(tokens)
        index = torch.tensor(group, device=self.device)
        if group != list(range(len(unique))):
            self._cache.batch_select_indices(index)
            self._mask = mask[index]
        return self._draw(logits, index, draws)

    def step(self, tokens: Tensor, draws: Draws) -> tuple[Tensor, Tensor]:
        self._mask = torch.cat([self._mask, self._mask.new_ones(len(tokens), 1)], dim=1)
        logits = self._forward(tokens[:, None])
        return self._draw(logits, torch.arange(len(tokens), device=self.device), draws)

    def keep(self, rows: Sequence[int]) -> None:
        if not rows:
            self._cache, self._mask = None, self._mask[:0]
        else:
            index = torch.tensor(rows, device=self.device)
            self._mask = self._mask[index]
            self._cache.batch_select_indices(index)

    def refresh(self) -> None:
        """Nothing: there is no other form of the weights here."""

    def _forward(self, tokens: Tensor) -> Tensor:
        """[B, V] logits after the last of tokens [B, T]."""
        extra = dict(self._last_only)
        if self._positions:
            extra["position_ids"] = (self._mask.cumsum(1) - 1).clamp_(min=0)[:, -tokens.shape[1] :]
        with _evaluating(self.model):
            out = self.model(
                input_ids=tokens, attention_mask=self._mask, past_key_values=self._cache, use_cache=True, **extra
            )
        self._cache = out.past_key_values
        logits: Tensor = out.logits[:, -1]
        return logits

    def _draw(self, logits: Tensor, index: Tensor, draws: Draws) -> tuple[Tensor, Tensor]:
        """Draw for rows that read logits [U, V] at index [B]."""
        found = []
        for rows in torch.arange(len(index), device=self.device).split(ROWS_PER_DRAW):
            part = Draws(draws.uniforms[rows], draws.temperatures[rows], draws.plain)
            found.append(draw(logits[index[rows]], part))
        return torch.cat([tokens for tokens, _ in found]), torch.cat([logprobs for _, logprobs in found])


def _unique(prompts: Sequence[IntArray]) -> tuple[list[IntArray], list[int]]:
    """(prompts without equal neighbours, which of them each row has)."""
    unique: list[IntArray] = []
    group = []
    for prompt in prompts:
        if not unique or prompt.tobytes() != unique[-1].tobytes():
            unique.append(prompt)
        group.append(len(unique) - 1)
    return unique, group


@contextmanager
def _evaluating(model: PreTrainedModel) -> Iterator[None]:
    """A learner that recomputes activations keeps its model in training mode, in which transformers makes no cache."""
    training = model.training
    model.train(False)
    try:
        yield
    finally:
        model.train(training)
