"""What this machine has beyond a CPU."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from typing import Any


def accelerators() -> Mapping[str, Any]:
    """``gpus``: [{name, memory_bytes, capability}]; ``cuda`` of this torch build and ``nccl``, else None."""
    import torch

    gpus = []
    if torch.cuda.is_available():
        for index in range(torch.cuda.device_count()):
            found = torch.cuda.get_device_properties(index)
            capability = f"{found.major}.{found.minor}"
            gpus.append({"name": found.name, "memory_bytes": found.total_memory, "capability": capability})
    collectives = torch.distributed.is_available() and torch.distributed.is_nccl_available()
    nccl = ".".join(map(str, torch.cuda.nccl.version())) if collectives and gpus else None  # type: ignore[no-untyped-call]
    return {"torch": torch.__version__, "gpus": gpus, "cuda": torch.version.cuda, "nccl": nccl}


def gpu_bytes(device: str) -> int | None:
    """Memory of the smallest GPU; None where ``device`` is the CPU, or there is none."""
    if device == "cpu" or importlib.util.find_spec("torch") is None:
        return None
    return min((gpu["memory_bytes"] for gpu in accelerators()["gpus"]), default=None)
