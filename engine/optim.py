"""The optimiser: AdamW on one flat float32 parameter, global-norm clipping, schedules, refusal of non-finite steps."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from jurat.platform.recipe import Optim

NORM_BLOCK = 1 << 12
"""Elements summed at once in a norm: a float32 sum of 1e8 squares in one go loses digits."""


def learning_rate(optim: Optim, step: int, total: int) -> float:
    """Rate of optimiser step ``step`` (0-based) of ``total``: linear warm-up, then constant, linear or half a cosine.

    The first step of a warm-up of w steps has lr/w, step w the full rate; a decaying rate would be 0 at step ``total``.
    """
    if step < optim.warmup_steps:
        return optim.lr * (step + 1) / optim.warmup_steps
    left = 1.0 - (step - optim.warmup_steps) / max(1, total - optim.warmup_steps)
    left = min(1.0, max(0.0, left))
    match optim.schedule:
        case "constant":
            return optim.lr
        case "linear":
            return optim.lr * left
        case "cosine":
            return optim.lr * 0.5 * (1.0 - math.cos(math.pi * left))


def global_norm(flat: Tensor) -> float:
    """Euclidean norm of a flat float32 buffer, block sums added in float64; nan or inf if any element is."""
    whole = len(flat) // NORM_BLOCK * NORM_BLOCK
    blocks = torch.linalg.vector_norm(flat[:whole].view(-1, NORM_BLOCK), dim=1)
    rest = torch.linalg.vector_norm(flat[whole:])
    return float(torch.cat([blocks, rest[None]]).double().square().sum().sqrt())


class AdamW:
    """Decoupled weight decay Adam (Loshchilov & Hutter 2019, algorithm 2) on a flat master and a flat gradient.

    Weight decay shrinks ``master[:num_matrix]`` (matrices; norms and biases lie behind them). ``total`` optimiser steps
    make up the run, for the schedule.
    """

    def __init__(self, master: Tensor, grad: Tensor, *, num_matrix: int, optim: Optim, total: int) -> None:
        self.settings, self.total = optim, total
        self.master, self.grad, self.num_matrix = master, grad, num_matrix
        self.step_count = 0
        """Steps asked for, skipped ones included: the place in the schedule."""
        self.applied = 0
        """Steps taken: Adam's t."""
        parameter = torch.nn.Parameter(master, requires_grad=True)
        parameter.grad = grad
        self._adam = torch.optim.AdamW(
            [parameter], lr=optim.lr, betas=optim.betas, eps=optim.eps, weight_decay=0.0, fused=True
        )
        self._parameter = parameter

    def _moments(self) -> dict[str, Tensor]:
        state = self._adam.state[self._parameter]
        if not state:
            state["step"] = torch.zeros((), dtype=torch.float32, device=self._parameter.device)
            state["exp_avg"] = torch.zeros_like(self._parameter, requires_grad=False)
            state["exp_avg_sq"] = torch.zeros_like(self._parameter, requires_grad=False)
        return state

    @torch.no_grad()
    def step(self, *, loss: float = 0.0, clip_norm: float | None = None) -> Mapping[str, float]:
        """Clip (at ``clip_norm``, else the settings'), step, zero the gradient; returns ``grad_norm`` (before clipping),
        ``lr`` and ``skipped`` (0 or 1).

        A non-finite gradient or loss changes nothing but the counters.
        """
        settings = self.settings
        rate = learning_rate(settings, self.step_count, self.total)
        norm = global_norm(self.grad)
        self.step_count += 1
        finite = math.isfinite(norm) and math.isfinite(loss)
        if finite:
            self._moments()
            if settings.weight_decay:
                self.master[: self.num_matrix].mul_(1.0 - rate * settings.weight_decay)
            # The fused kernel divides the gradient by grad_scale as it reads it: clipping costs no pass of its own.
            self._adam.grad_scale = self.grad.new_tensor(max(1.0, norm / (clip_norm or settings.clip_norm)))  # type: ignore[attr-defined]
            self._adam.param_groups[0]["lr"] = rate
            self._adam.step()
            self.applied += 1
        self.grad.zero_()
        return {"grad_norm": norm, "lr": rate, "skipped": float(not finite)}

    def tensors(self) -> Mapping[str, Tensor]:
        """The two moments, flat, as they are (no copy)."""
        state = self._moments()
        return {"exp_avg": state["exp_avg"], "exp_avg_sq": state["exp_avg_sq"]}

    def counters(self) -> Mapping[str, int]:
        return {"step_count": self.step_count, "applied": self.applied}

    def restore(self, counters: Mapping[str, int]) -> None:
        """Continue from ``counters``, once ``tensors()`` hold the moments that belong to them."""
        self.step_count, self.applied = counters["step_count"], counters["applied"]
        self._moments()["step"].fill_(float(self.applied))
