"""A rank's boxes in whole safetensors files: read from and written to their places, nothing else touched."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from jurat.engine.reshard import Box, Layout, Shape, count, within
from jurat.platform.errors import ModelError

FIX = "resume with the recipe and model that wrote this folder"


@dataclass(frozen=True, slots=True)
class Boxes:
    """The boxes of ``rank``. ``tick`` is called for each tensor."""

    shapes: Mapping[str, Shape]
    layout: Layout
    rank: int
    tick: Callable[[], None]

    def box(self, name: str) -> Box:
        return self.layout.box(name, self.shapes[name], self.rank)

    @torch.no_grad()
    def read(self, paths: Sequence[Path], into: Mapping[str, Tensor], *, prefix: str = "", spare: set[str]) -> None:
        """Fill ``into`` from files that hold ``prefix + name``; those of ``spare`` may be there too.

        Raises ModelError for a tensor that is missing, unknown or of another shape.
        """
        wanted, seen = {prefix + name: name for name in self.shapes}, set[str]()
        for path in paths:
            with opened(path) as file:
                found = {key for key in file.keys() if key.startswith(prefix)}  # noqa: SIM118 (not a mapping)
                for key, name in wanted.items():
                    if key in found:
                        self._fill(into, name, file.get_slice(key), path)
                seen |= found
        unknown = {key for key in seen - set(wanted) - spare if not key.endswith("rotary_emb.inv_freq")}
        odd = sorted((set(wanted) - seen) | unknown)
        if odd:
            what = f"{len(odd)} tensors differ from what this model has, first {odd[0]!r}"
            raise ModelError(what, where=str(paths[0].parent), fix=FIX)

    def _fill(self, into: Mapping[str, Tensor], name: str, view: Any, path: Path) -> None:
        if tuple(view.get_shape()) != self.shapes[name]:
            what = f"tensor {name!r}: got shape {view.get_shape()}, this model has {list(self.shapes[name])}"
            raise ModelError(what, where=str(path), fix=FIX)
        box = self.box(name)
        if count(box):
            into[name].copy_(view[_slices(box)])
        self.tick()

    @torch.no_grad()
    def read_flat(self, path: Path, key: str, into: Mapping[str, Tensor], places: Mapping[str, int]) -> None:
        """Fill ``into`` from one flat tensor ``key`` in which each tensor begins at its place, as one process writes."""
        with opened(path) as file:
            flat = file.get_slice(key)
            for name, tensor in into.items():
                (start, stop), *_ = box = self.box(name)
                row = math.prod(self.shapes[name][1:])
                rows = flat[places[name] + start * row : places[name] + stop * row].view(-1, *self.shapes[name][1:])
                whole = ((start, stop), *((0, size) for size in self.shapes[name][1:]))
                tensor.copy_(within(rows, whole, box))
                self.tick()

    @torch.no_grad()
    def copied(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Copies, on the CPU, of those of ``tensors`` that this rank answers for."""
        answers = (name for name in tensors if count(self.box(name)) and self.layout.owns(name, self.rank))
        return {name: tensors[name].to("cpu", copy=True) for name in answers}

    def write(self, path: Path, tensors: Mapping[str, Tensor], offsets: Mapping[str, int], *, prefix: str = "") -> None:
        """Write float32 ``tensors`` of this rank into a file laid out already, each beginning at its offset.

        Whoever laid it out syncs it once all have written.
        """
        for name, tensor in tensors.items():
            whole = np.memmap(path, np.float32, "r+", offset=offsets[prefix + name], shape=self.shapes[name])
            whole[_slices(self.box(name))] = tensor.numpy()
            self.tick()


def _slices(box: Box) -> tuple[slice, ...]:
    return tuple(slice(start, stop) for start, stop in box)


@contextmanager
def opened(path: Path) -> Iterator[Any]:
    """A safetensors file. Raises ModelError if it is damaged."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            yield file
    except SafetensorError as error:
        raise ModelError(f"damaged weights: {error}", where=str(path), fix="fetch the model again") from error
