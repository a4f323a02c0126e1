"""Log-probs from a head whose vocabulary is cut over tensor-parallel ranks: no rank has a whole row of logits.

Megatron-LM's vocabulary-parallel cross-entropy (Shoeybi et al. 2019, section 3): only three numbers a row are added up.
Axes: K target rows, V vocabulary, W = V / tp its part on this rank.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


@dataclass(frozen=True, slots=True)
class VocabularyParallel:
    """In the place of ``reduce_logits``, on logits [K, W] of tokens ``start .. start + W - 1``; every rank gets the same.

    The loss that follows is computed alike on every rank, so each logit's gradient is that of its own part alone.
    """

    start: int
    group: ProcessGroup

    def __call__(self, logits: Tensor, targets: Tensor, temperature: float = 1.0) -> tuple[Tensor, Tensor]:
        """(log p(target) [K], entropy [K], no gradient), float32."""
        import torch.distributed as dist

        logits = logits.float() if temperature == 1.0 else logits.float() / temperature
        top = logits.detach().amax(-1)
        dist.all_reduce(top, dist.ReduceOp.MAX, group=self.group)
        powers = (logits - top[:, None]).exp()
        logz = top + _Added.apply(powers.sum(-1), self.group).log()
        place = targets - self.start
        here = (place >= 0) & (place < logits.shape[-1])
        own = logits.gather(-1, place.where(here, 0)[:, None]).squeeze(-1)
        chosen = _Added.apply(own.where(here, 0.0), self.group) - logz
        with torch.no_grad():  # H = log Z - sum_v p_v z_v
            mean = (powers * logits).sum(-1) / (logz - top).exp()
            dist.all_reduce(mean, group=self.group)
        return chosen, (logz - mean).detach()


class _Added(torch.autograd.Function):
    """The sum over ranks, whose gradient goes to each part as it is."""

    @staticmethod
    def forward(ctx: Any, part: Tensor, group: ProcessGroup) -> Tensor:
        import torch.distributed as dist

        whole = part.clone()
        dist.all_reduce(whole, group=group)
        return whole

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        return slope, None
