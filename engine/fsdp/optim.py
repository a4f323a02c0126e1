"""``engine/optim.py``'s AdamW on slices: same schedule, same clipping, same refusal, decided alike on every rank."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from jurat.engine.optim import global_norm, learning_rate
from jurat.platform.recipe import Optim

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

MOMENTS = ("exp_avg", "exp_avg_sq")


class ShardedAdamW:
    """Decoupled weight decay Adam on this rank's ``slices`` {name: float32 box}; moments are boxes of the same shape.

    ``matrices`` names the tensors that weight decay shrinks, ``owned`` those whose box this rank answers for: a box that
    several ranks hold counts once in the norm. Norm and loss are added over ``group`` in float64, in the order of ranks.
    """

    def __init__(
        self,
        slices: Mapping[str, Tensor],
        *,
        matrices: frozenset[str],
        owned: frozenset[str],
        optim: Optim,
        total: int,
        group: ProcessGroup | None = None,
        device: torch.device | None = None,
    ) -> None:
        self.settings, self.total, self.group = optim, total, group
        self.slices, self.matrices, self.owned = slices, matrices, owned
        self.device = device or torch.device("cpu")
        self.step_count = self.applied = 0
        self._parameters = {name: torch.nn.Parameter(tensor) for name, tensor in slices.items() if tensor.numel()}
        self._adam = torch.optim.AdamW(
            self._parameters.values(), lr=optim.lr, betas=optim.betas, eps=optim.eps, weight_decay=0.0, fused=True
        )
        for parameter in self._parameters.values():
            self._adam.state[parameter] = {
                "step": torch.zeros((), dtype=torch.float32, device=parameter.device),
                **{moment: torch.zeros_like(parameter, requires_grad=False) for moment in MOMENTS},
            }

    @torch.no_grad()
    def step(
        self, gradients: Mapping[str, Tensor], *, loss: float = 0.0, clip_norm: float | None = None
    ) -> Mapping[str, float]:
        """Clip, step; ``grad_norm``, ``lr`` and ``skipped``, the same on every rank.

        ``loss`` is what this rank adds to the update's. A non-finite gradient or loss anywhere changes nothing anywhere.
        """
        settings = self.settings
        rate = learning_rate(settings, self.step_count, self.total)
        square = math.fsum(global_norm(gradients[name].reshape(-1)) ** 2 for name in sorted(self.owned))
        square, loss = _summed([square, loss], self.group, self.device)
        norm = math.sqrt(square) if square >= 0 else square  # nan stays nan
        self.step_count += 1
        finite = math.isfinite(norm) and math.isfinite(loss)
        if finite and self._parameters:
            scale = max(1.0, norm / (clip_norm or settings.clip_norm))
            for name, parameter in self._parameters.items():
                if settings.weight_decay and name in self.matrices:
                    parameter.mul_(1.0 - rate * settings.weight_decay)
                parameter.grad = gradients[name]
            self._adam.grad_scale = gradients[next(iter(self._parameters))].new_tensor(scale)  # type: ignore[attr-defined]
            self._adam.param_groups[0]["lr"] = rate
            self._adam.step()
            for parameter in self._parameters.values():
                parameter.grad = None
        self.applied += finite
        return {"grad_norm": norm, "lr": rate, "skipped": float(not finite)}

    def moments(self) -> Mapping[str, Mapping[str, Tensor]]:
        """{moment: {name: box}}, as they are (no copy); empty boxes are left out."""
        state = self._adam.state
        return {moment: {name: state[p][moment] for name, p in self._parameters.items()} for moment in MOMENTS}

    def counters(self) -> Mapping[str, int]:
        return {"step_count": self.step_count, "applied": self.applied}

    def restore(self, counters: Mapping[str, int]) -> None:
        """Continue from ``counters``, once ``moments()`` hold those that belong to them."""
        self.step_count, self.applied = counters["step_count"], counters["applied"]
        for parameter in self._parameters.values():
            self._adam.state[parameter]["step"].fill_(float(self.applied))


def _summed(values: list[float], group: ProcessGroup | None, device: torch.device) -> list[float]:
    """Each value added over the ranks, in one order everywhere, so that all come to the same decision."""
    import torch.distributed as dist

    own = torch.tensor(values, dtype=torch.float64, device=device)
    every = [torch.empty_like(own) for _ in range(dist.get_world_size(group))]
    dist.all_gather(every, own, group=group)
    return torch.stack(every).sum(0).tolist()
