"""Low-rank adapters of any transformers model, by peft."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from jurat.engine.learner import LocalScorer
from jurat.engine.lora import Layout, Merged
from jurat.engine.simple.learner import SimpleNetwork
from jurat.platform.types import FloatArray, Microbatch

if TYPE_CHECKING:
    from transformers import PreTrainedModel

NAME = "default"
"""Of the one adapter, inside peft."""


class SimpleLoRA(SimpleNetwork):
    """``model`` with adapters of peft: it stays float32 and frozen, and the buffers hold adapters alone."""

    def __init__(self, model: PreTrainedModel, layout: Layout, **settings: Any) -> None:
        from peft import inject_adapter_in_model

        inject_adapter_in_model(layout.peft(), model, adapter_name=NAME)
        self.layout = layout
        super().__init__(model, **settings)
        learns = {id(parameter) for parameter in self.learned()}
        for parameter in model.parameters():
            parameter.requires_grad_(id(parameter) in learns)

    def learned(self) -> Iterable[nn.Parameter]:
        for layer in self._layers().values():
            yield layer.lora_A[NAME].weight
            yield layer.lora_B[NAME].weight

    def base(self) -> Mapping[str, Tensor]:
        named = {name.replace(".base_layer.", "."): tensor for name, tensor in super().views().items()}
        return {name: tensor for name, tensor in named.items() if ".lora_" not in name}

    def pairs(self) -> Mapping[str, tuple[Tensor, Tensor]]:
        return {n: (each.lora_A[NAME].weight, each.lora_B[NAME].weight) for n, each in self._layers().items()}

    def views(self) -> Mapping[str, Tensor]:
        deltas = {f"{n}.weight": partial(each.get_delta_weight, NAME) for n, each in self._layers().items()}
        return Merged(self.base(), deltas)

    def rebase(self) -> None:
        """Nothing: the tensors of ``base`` are those of the model."""

    @contextmanager
    def bare(self) -> Iterator[None]:
        """Within, the model is the one without adapters."""
        for layer in self._layers().values():
            layer.enable_adapters(False)
        try:
            yield
        finally:
            for layer in self._layers().values():
                layer.enable_adapters(True)

    def _layers(self) -> dict[str, Any]:
        """{name: peft's layer}."""
        return {name: self.model.get_submodule(name) for name in self.layout.layers}


class BareScorer(LocalScorer):
    """The model that the stage began with, as the reference: adapters off, no second model."""

    network: SimpleLoRA

    def _score(self, mb: Microbatch) -> FloatArray:
        with self.network.bare():
            return super()._score(mb)
