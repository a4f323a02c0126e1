"""Low-rank adapters over ranks: adapters and frozen model are cut alike, and only adapters have gradients and moments."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from jurat.engine.folders import weight_files
from jurat.engine.fsdp.learner import FsdpLearner, FsdpScorer
from jurat.engine.fsdp.network import ShardedNetwork, local_of, parameters_without_memory, skeleton
from jurat.engine.fsdp.storing import opened
from jurat.engine.lora import FOLDER, PREFIX, Layout, Merged, initialise, refuse_base
from jurat.engine.reshard import within

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh
    from transformers import PreTrainedModel

    from jurat.engine.fsdp.learner import Hosts
    from jurat.engine.fsdp.worker import RankSpec

NAME = "default"
"""Of the one adapter, inside peft."""
WEIGHTS = "adapter_model.safetensors"


class ShardedLoRA(ShardedNetwork):
    """``ShardedNetwork`` with adapters of peft; without tensor parallelism."""

    def __init__(self, folder: Path, mesh: DeviceMesh, *, adapters: Layout, seed: int, **settings: Any) -> None:
        self.adapters, self.seed = adapters, seed
        super().__init__(folder, mesh, **settings)

    def made(self, folder: Path) -> PreTrainedModel:
        from peft import inject_adapter_in_model

        model = skeleton(folder)
        with parameters_without_memory():
            inject_adapter_in_model(self.adapters.peft(), model, adapter_name=NAME)
        return model

    def named(self) -> dict[str, nn.Parameter]:
        named = {name.replace(".base_layer.", "."): parameter for name, parameter in super().named().items()}
        return {name: parameter for name, parameter in named.items() if ".lora_" not in name}

    def learning(self) -> dict[str, nn.Parameter]:
        """By their names in peft's files."""
        return {
            name: getattr(self.model.get_submodule(layer), which)[NAME].weight
            for layer in self.adapters.layers
            for name, which in zip(names_of(layer), ("lora_A", "lora_B"), strict=True)
        }

    @torch.no_grad()
    def begin(self) -> None:
        """First values: the same on any number of ranks."""
        first = {
            layer: (torch.empty(self.adapters.rank, into), torch.empty(out, self.adapters.rank))
            for layer, (out, into) in self.adapters.layers.items()
        }
        initialise(first, self.seed)
        learned = self.learned_slices()
        for layer, pair in first.items():
            for name, values in zip(names_of(layer), pair, strict=True):
                box = self.layout.box(name, self.learned_shapes[name], self.rank)
                learned[name].copy_(within(values, tuple((0, size) for size in values.shape), box))

    @torch.no_grad()
    def published(self) -> Mapping[str, Tensor]:
        """Merged; adapters are gathered, and each of the model's boxes is made when it is read."""
        whole = {name: _whole(parameter) for name, parameter in self._learning.items()}
        deltas: dict[str, Callable[[], Tensor]] = {}
        for layer in self.adapters.layers:
            name = f"{layer}.weight"
            rows = slice(*self.layout.box(name, self.shapes[name], self.rank)[0])
            a, b = (whole[each] for each in names_of(layer))
            deltas[name] = partial(self._delta, a, b, rows)
        return Merged(self.slices(), deltas)

    def _delta(self, a: Tensor, b: Tensor, rows: slice) -> Tensor:
        found = a.T[rows] @ b.T if self.adapters.transposed else b[rows] @ a
        return found * self.adapters.scale

    @contextmanager
    def bare(self) -> Iterator[None]:
        """Within, the model is the one without adapters."""
        layers = [self.model.get_submodule(layer) for layer in self.adapters.layers]
        for layer in layers:
            layer.set_scale(NAME, 0.0)  # peft's own switch changes what requires a gradient, of which FSDP has notes
        try:
            yield
        finally:
            for layer in layers:
                layer.set_scale(NAME, 1.0)


class FsdpLoRALearner(FsdpLearner):
    """Its folders are those of ``LoRALearner``, moments by name; either goes on from the other's."""

    def __init__(self, spec: RankSpec, processes: Hosts) -> None:
        assert spec.adapters is not None
        super().__init__(spec, processes)
        self.adapters = spec.adapters
        self._began, self._digest = spec.folder, ""

    @property
    def learned(self) -> Mapping[str, tuple[int, ...]]:
        return shapes_of(self.adapters)

    @property
    def checkpoint_bytes(self) -> int:
        return 4 * (self.parameters + 3 * self.adapters.trainable)

    def keep(self, name: str) -> FsdpScorer:
        """The model that the stage began with: adapters off, no copy."""
        return FsdpScorer(self, name)

    def state(self) -> dict[str, Any]:
        return {**super().state(), "base": self._base_digest()}

    def files(self) -> dict[str, tuple[Mapping[str, tuple[int, ...]], str]]:
        return {**super().files(), f"{FOLDER}/{WEIGHTS}": (self.learned, "adapter")}

    def write_side_files(self, folder: Path) -> None:
        super().write_side_files(folder)
        (folder / FOLDER).mkdir()
        self.adapters.peft(str(self._began)).save_pretrained(str(folder / FOLDER))

    def _load(self, folder: Path, weights_only: bool) -> None:
        if weights_only:
            super()._load(folder, weights_only)
            self._began, self._digest = folder, ""
        else:
            found = json.loads((folder / "learner.json").read_text()).get("base")
            refuse_base(found, self._base_digest(), began=self._began, folder=folder)
            self._everywhere("restore", folder)

    def _base_digest(self) -> str:
        """As ``LoRALearner`` has it, of the folder that the frozen model was read from."""
        if not self._digest:
            sha, places = hashlib.sha256(), dict[str, Path]()
            for path in weight_files(self._began):
                with opened(path) as file:
                    places |= dict.fromkeys(file.keys(), path)
            for name in sorted(self.shapes):
                with opened(places[name]) as file:
                    sha.update(name.encode())
                    sha.update(file.get_tensor(name).float().contiguous().reshape(-1).view(torch.uint8).numpy())
            self._digest = "sha256:" + sha.hexdigest()
        return self._digest


def names_of(layer: str) -> tuple[str, str]:
    """A and B of a layer in peft's files."""
    return f"{PREFIX}{layer}.lora_A.weight", f"{PREFIX}{layer}.lora_B.weight"


def shapes_of(adapters: Layout) -> dict[str, tuple[int, int]]:
    found = {}
    for layer, (out, into) in adapters.layers.items():
        a, b = names_of(layer)
        found[a], found[b] = (adapters.rank, into), (out, adapters.rank)
    return found


def places_of(adapters: Layout) -> dict[str, int]:
    """{name: where its tensor begins in the flat buffer of one process}."""
    places, at = {}, 0
    for name, (rows, columns) in shapes_of(adapters).items():
        places[name] = at
        at += rows * columns
    return places


def _whole(parameter: Tensor) -> Tensor:
    from torch.distributed.tensor import DTensor

    return parameter.full_tensor().detach() if isinstance(parameter, DTensor) else local_of(parameter)
