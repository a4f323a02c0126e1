"""Two models, tensor by tensor: whether they have the same bits, and if not how far they are apart."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from jurat.engine.folders import weight_files


@dataclass(slots=True, kw_only=True)
class Comparison:
    """Of tensors that both have in the same shape, but for ``only_a``, ``only_b`` and ``shapes``."""

    tensors: int = 0
    numbers: int = 0
    equal_tensors: int = 0
    """Of the same dtype and the same bits."""
    different_numbers: int = 0
    largest: float = 0.0
    """max |a - b|; infinite where one is no number and the other is another."""
    at: str = ""
    """The tensor that it is in."""
    distance: float = 0.0
    """|a - b| as a norm over all tensors, divided by |a|; 0 where |a| is."""
    dtypes: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Of tensors whose dtypes differ."""
    shapes: dict[str, tuple[list[int], list[int]]] = field(default_factory=dict)
    """Of tensors whose shapes differ; they are not compared."""
    only_a: tuple[str, ...] = ()
    only_b: tuple[str, ...] = ()

    @property
    def same_bytes(self) -> bool:
        """The same names, shapes, dtypes and bits."""
        return self.equal_tensors == self.tensors and not (self.only_a or self.only_b or self.shapes)


def compare(a: Path, b: Path) -> Comparison:
    """The weights of two Hugging Face folders, one tensor of each in memory at a time. Raises ModelError."""
    found = Comparison()
    with _opened(a) as one, _opened(b) as two:
        found.only_a, found.only_b = tuple(sorted(one.keys() - two.keys())), tuple(sorted(two.keys() - one.keys()))
        moved = norm = 0.0
        for name in sorted(one.keys() & two.keys()):
            x, y = one[name].get_tensor(name), two[name].get_tensor(name)
            if x.shape != y.shape:
                found.shapes[name] = (list(x.shape), list(y.shape))
                continue
            found.tensors += 1
            found.numbers += x.numel()
            if x.dtype != y.dtype:
                found.dtypes[name] = (str(x.dtype).removeprefix("torch."), str(y.dtype).removeprefix("torch."))
            elif torch.equal(_bits(x), _bits(y)):
                found.equal_tensors += 1
                norm += float(x.double().square().sum())
                continue
            apart = _apart(x.double(), y.double())
            found.different_numbers += int((apart != 0).sum())
            most = float(apart.max()) if apart.numel() else 0.0
            if most > found.largest:
                found.largest, found.at = most, name
            moved += float(apart.square().sum())
            norm += float(x.double().square().sum())
    found.distance = (moved / norm) ** 0.5 if norm else 0.0
    return found


def _apart(x: Tensor, y: Tensor) -> Tensor:
    """|x - y|, 0 where both are the same infinity or no number."""
    alike = (x == y) | (x.isnan() & y.isnan())
    return (x - y).abs().nan_to_num(nan=torch.inf).masked_fill(alike, 0.0)


def _bits(tensor: Tensor) -> Tensor:
    return tensor.contiguous().reshape(-1).view(torch.uint8)


@contextmanager
def _opened(folder: Path) -> Iterator[dict[str, Any]]:
    """{name: the open file that has it}"""
    from safetensors import safe_open

    with ExitStack() as files:
        opened = [files.enter_context(safe_open(path, framework="pt")) for path in weight_files(folder)]
        yield {name: file for file in opened for name in file.keys()}  # noqa: SIM118 (not a mapping)
