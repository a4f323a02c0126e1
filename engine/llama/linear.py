"""Matrix products of the sampler: weights repacked once for oneDNN where that is faster, plain ``F.linear`` elsewhere.

The packing ops are private to torch; this file is the only one that names them.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def can_pack(dtype: torch.dtype, device: torch.device) -> bool:
    """Whether packed products exist here: bfloat16 on a CPU for which oneDNN has bfloat16 kernels."""
    if dtype != torch.bfloat16 or device.type != "cpu" or not torch.backends.mkldnn.is_available():
        return False
    ops = torch.ops.mkldnn
    known = all(hasattr(ops, name) for name in ("_linear_pointwise", "_reorder_linear_weight"))
    return known and bool(ops._is_mkldnn_bf16_supported())


class Matrix:
    """x -> x W^T for a weight [N, K] that changes only at ``refresh``; packed, it is a copy."""

    def __init__(self, weight: Tensor, *, pack: bool) -> None:
        self._pack = pack
        self.refresh(weight)

    def refresh(self, weight: Tensor) -> None:
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), None) if self._pack else weight

    def __call__(self, x: Tensor) -> Tensor:
        """[M, K] -> [M, N]"""
        if self._pack:
            product: Tensor = torch.ops.mkldnn._linear_pointwise(x, self._weight, None, "none", [], "")
            return product
        return F.linear(x, self._weight)
