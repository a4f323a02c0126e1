"""How much memory this process has had at most since it was last asked: resident, and of its GPU what torch allocated."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from jurat.platform.memory import host_peak


def meter(device: str) -> Callable[[], Mapping[str, int]]:
    """What gives {"host": bytes, and on a GPU "gpu": bytes}."""
    host = host_peak()
    if torch.device(device).type == "cpu":
        return lambda: {"host": host()}

    def both() -> Mapping[str, int]:
        allocated = torch.cuda.max_memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        return {"host": host(), "gpu": allocated}

    return both
