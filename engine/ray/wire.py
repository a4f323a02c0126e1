"""What travels: microbatches and weights as plain arrays, which Ray's object store carries without a copy."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from jurat.platform.errors import RunFailed
from jurat.platform.types import COLUMNS, Microbatch, Rounds

Array = NDArray[Any]
Arrays = Mapping[str, Array | None]
WireRounds = tuple[tuple[Arrays, ...], ...]
NAMES = ("tokens", "offsets", "loss_mask", *COLUMNS)


def to_wire(rounds: Rounds) -> WireRounds:
    """Each tensor as an array of its own: a view would carry its whole storage along."""

    def arrays(mb: Microbatch) -> Arrays:
        return {name: None if (c := getattr(mb, name)) is None else np.ascontiguousarray(c.numpy()) for name in NAMES}

    return tuple(tuple(map(arrays, ranks)) for ranks in rounds)


def from_wire(rounds: WireRounds) -> Rounds:
    """Tensors of their own: what came through the object store is read-only."""

    def microbatch(arrays: Arrays) -> Microbatch:
        made: dict[str, Any] = {name: None if a is None else torch.tensor(a) for name, a in arrays.items()}
        return Microbatch(**made)

    return tuple(tuple(map(microbatch, ranks)) for ranks in rounds)


def pack_weights(views: Mapping[str, Tensor], dtype: torch.dtype) -> dict[str, Array]:
    """{name: array} of a model: matrices in ``dtype`` (bfloat16 as int16), vectors in float32, as the sampler reads them."""
    packed = {}
    for name, view in views.items():
        tensor = view.detach().to("cpu", dtype if view.ndim > 1 else torch.float32, copy=True)
        packed[name] = as_array(tensor)
    return packed


def as_array(tensor: Tensor) -> Array:
    """The same memory; bfloat16 as int16."""
    found: Array = (tensor.view(torch.int16) if tensor.dtype == torch.bfloat16 else tensor).numpy()
    return found


@torch.no_grad()
def fill(views: Mapping[str, Tensor], packed: Mapping[str, Array]) -> None:
    """Copy packed weights into ``views``. Raises RunFailed if they are another model's."""
    if views.keys() != packed.keys():
        odd = sorted(views.keys() ^ packed.keys())
        raise RunFailed(
            f"the weights that came are of another model: {len(odd)} tensors differ, first {odd[0]!r}",
            where="weights from the learner", fix="see that every machine holds the same model folder",
        )  # fmt: skip
    for name, array in packed.items():
        views[name].copy_(tensor_of(array))


def tensor_of(array: Array) -> Tensor:
    """The same numbers, to be read."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # the array is read-only
        tensor = torch.from_numpy(array)
    return tensor.view(torch.bfloat16) if array.dtype == np.int16 else tensor


def size_of(packed: Mapping[str, Array]) -> int:
    """Bytes."""
    return sum(array.nbytes for array in packed.values())
