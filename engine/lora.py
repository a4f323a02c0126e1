"""Low-rank adapters (Hu et al. 2021, arXiv 2106.09685): ``W + (alpha / rank) B A`` in place of W, of which A [rank, in] and
B [out, rank] learn.

Here is what both paths share: which layers have one, the first values, the files of peft, and checkpoints. A critic never
has adapters.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor, nn

from jurat.engine.learner import LocalLearner, Network
from jurat.engine.tensorfile import read_tensors, record_digests, write_tensors
from jurat.platform.errors import ConfigError, ModelError, RunFailed, install, nearest
from jurat.platform.recipe import LoRA, Optim

if TYPE_CHECKING:
    from peft import LoraConfig

FOLDER = "adapter"
"""Inside a learner's folder: the adapter alone, as peft reads it."""
PREFIX = "base_model.model."
"""Of tensor names in peft's files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Which linear layers of a model have an adapter."""

    rank: int
    alpha: float
    targets: tuple[str, ...]
    """As in the recipe; where it names none, the last parts of the layers' names."""
    layers: Mapping[str, tuple[int, int]]
    """{full name of the layer: (out, in)}, in the model's order."""
    transposed: bool
    """Weights lie as [in, out] (transformers' Conv1D)."""
    parameters: int
    """Of the model without adapters."""

    @property
    def scale(self) -> float:
        return self.alpha / self.rank

    @property
    def trainable(self) -> int:
        return sum(self.rank * (out + into) for out, into in self.layers.values())

    def views(self, flat: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
        """{layer: (A, B)} in a flat buffer of ``trainable`` numbers."""
        made, at = {}, 0
        for name, (out, into) in self.layers.items():
            cut = at + self.rank * into
            end = cut + out * self.rank
            made[name] = flat[at:cut].view(self.rank, into), flat[cut:end].view(out, self.rank)
            at = end
        return made

    def peft(self, base: str | None = None) -> LoraConfig:
        """The same in peft's words; ``base`` is the model that the adapter belongs to."""
        from peft import LoraConfig

        return LoraConfig(
            r=self.rank, lora_alpha=self.alpha, target_modules=list(self.targets), lora_dropout=0.0, bias="none",
            fan_in_fan_out=self.transposed, task_type="CAUSAL_LM", base_model_name_or_path=base, inference_mode=True,
        )  # type: ignore[arg-type]  # fmt: skip


def layout(folder: Path, lora: LoRA) -> Layout:
    """Find the layers that ``lora`` means in the model of an HF folder; no weights are read.

    Raises ConfigError where peft is missing, or a target names no linear layer or one that peft refuses, and
    ModelError where transformers does not know the model.
    """
    config = folder / "config.json"
    return _layout(folder, lora, config.stat().st_mtime_ns if config.exists() else 0)


@lru_cache(maxsize=16)
def _layout(folder: Path, lora: LoRA, written: int) -> Layout:
    """Once for a model as ``written``: what a stage says of its adapters and what it builds are one."""
    if importlib.util.find_spec("peft") is None:
        raise ConfigError("LoRA needs peft, which is not installed", where="lora", fix=install("lora"))
    from peft import inject_adapter_in_model
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.pytorch_utils import Conv1D

    try:
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder))
    except (OSError, ValueError) as error:
        raise ModelError(f"transformers does not know this model: {str(error).splitlines()[0]}", where=str(folder),
                         fix="give a causal language model that transformers knows") from error  # fmt: skip
    head = model.get_output_embeddings()
    linear = {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear | Conv1D) and module is not head
    }
    for target in lora.targets:
        if not any(_means(target, name) for name in linear):
            known = list(dict.fromkeys(name.rpartition(".")[2] for name in linear))
            raise ConfigError(
                f"no linear layer is named {target!r}.{nearest(target, known)}", where="lora.targets",
                fix=f"name some of {', '.join(known)}, or leave targets out: all of them (the head never has an adapter)",
            )  # fmt: skip
    targets = lora.targets or tuple(dict.fromkeys(name.rpartition(".")[2] for name in linear))
    chosen = {name: module for name, module in linear.items() if any(_means(target, name) for target in targets)}
    transposed = any(isinstance(module, Conv1D) for module in chosen.values())
    shapes = {name: tuple(module.weight.shape) for name, module in chosen.items()}
    found = Layout(
        rank=lora.rank, alpha=lora.alpha, targets=targets, transposed=transposed,
        layers={name: (cols, rows) if transposed else (rows, cols) for name, (rows, cols) in shapes.items()},
        parameters=sum(parameter.numel() for parameter in model.parameters()),
    )  # fmt: skip
    try:
        with torch.device("meta"):
            inject_adapter_in_model(found.peft(), model)  # peft knows layers that work only as they are
    except ValueError as error:
        raise ConfigError(f"peft: {error}", where="lora.targets", fix="name the layers that it may adapt") from None
    return found


def _means(target: str, name: str) -> bool:
    """As peft reads ``target_modules``: the whole name, or its end."""
    return name == target or name.endswith("." + target)


def initialise(pairs: Mapping[str, tuple[Tensor, Tensor]], seed: int) -> None:
    """A uniform in +-1/sqrt(in), as in peft; B zero: the model starts as it is."""
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for a, b in pairs.values():
            a.copy_((torch.rand(a.shape, generator=draw) * 2 - 1) / math.sqrt(a.shape[1]))
            b.zero_()


class Merged(Mapping[str, Tensor]):
    """A model's tensors with ``deltas`` added as each is read, so that no second model is held."""

    def __init__(self, base: Mapping[str, Tensor], deltas: Mapping[str, Callable[[], Tensor]]) -> None:
        self.base, self.deltas = base, deltas

    @torch.no_grad()
    def __getitem__(self, name: str) -> Tensor:
        return self.base[name] + self.deltas[name]() if name in self.deltas else self.base[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.base)

    def __len__(self) -> int:
        return len(self.base)


class AdaptedNetwork(Network, Protocol):
    """``master`` and ``grad`` hold adapters; ``views()`` gives the merged model, float32."""

    def base(self) -> Mapping[str, Tensor]:
        """{transformers name: tensor} of the frozen model."""
        ...

    def pairs(self) -> Mapping[str, tuple[Tensor, Tensor]]:
        """{layer: (A, B)}: views of the master."""
        ...

    def rebase(self) -> None:
        """The tensors of ``base()`` were replaced."""
        ...


class LoRALearner(LocalLearner):
    """Its folders hold the merged model (so that an export or a next stage reads them as any other), the adapter as peft
    reads it, and the adapter's optimiser; going on needs the model that the stage began with."""

    network: AdaptedNetwork

    def __init__(
        self, network: AdaptedNetwork, optim: Optim, *, total: int, source: Path, layout: Layout, seed: int
    ) -> None:
        initialise(network.pairs(), seed)
        network.refresh()
        super().__init__(network, optim, total=total, source=source)
        self.layout, self.seed = layout, seed
        self._began = source
        self._digest = ""

    @property
    def checkpoint_bytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.network.base().values()) + 3 * self.network.master.nbytes

    def state(self) -> dict[str, Any]:
        return {**super().state(), "base": self._base_digest()}

    def _save(self, folder: Path) -> None:
        super()._save(folder)
        adapter = folder / FOLDER
        adapter.mkdir()
        self.layout.peft(str(self._began)).save_pretrained(str(adapter))
        name = "adapter_model.safetensors"
        record_digests(adapter, {name: write_tensors(adapter / name, self._adapter())})

    def _load(self, folder: Path, *, weights_only: bool) -> None:
        if weights_only:
            with torch.no_grad():
                read_tensors(folder / "model.safetensors", self.network.base())
            self.network.rebase()
            initialise(self.network.pairs(), self.seed)
            self._began, self._digest = folder, ""
        else:
            self._restore(folder)
        self.network.refresh()

    def _restore(self, folder: Path) -> None:
        state = json.loads((folder / "learner.json").read_text())
        if state.get("base") != self._base_digest():
            raise RunFailed(
                f"the adapter of this checkpoint belongs to another model than {self._began}", where=str(folder),
                fix="restore the model or the checkpoint that the stage began with, or begin a run from an export: "
                "its weights are merged",
            )  # fmt: skip
        with torch.no_grad():
            read_tensors(folder / FOLDER / "adapter_model.safetensors", self._adapter())
        read_tensors(folder / "optimizer.safetensors", self.optimizer.tensors())
        self.optimizer.restore(state["optimizer"])

    def _places(self) -> dict[str, int]:
        return {}  # the moments are the adapter's: learners without one have no use for them

    def _adapter(self) -> dict[str, Tensor]:
        """{name in peft's files: view of the master}."""
        named = {}
        for layer, (a, b) in self.network.pairs().items():
            named[f"{PREFIX}{layer}.lora_A.weight"], named[f"{PREFIX}{layer}.lora_B.weight"] = a, b
        return named

    def _base_digest(self) -> str:
        """Of the frozen model's names and numbers, made once."""
        if not self._digest:
            sha = hashlib.sha256()
            for name, tensor in sorted(self.network.base().items()):
                sha.update(name.encode())
                sha.update(tensor.detach().contiguous().cpu().reshape(-1).view(torch.uint8).numpy())  # type: ignore[arg-type]
            self._digest = "sha256:" + sha.hexdigest()
        return self._digest
