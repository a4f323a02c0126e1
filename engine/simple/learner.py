"""Any transformers causal language model as a network that learns: the reference for the fast path, and the way for all
other architectures. Autograd does the gradients; float32 masters, computation under autocast."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property, partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from jurat.engine.learner import Tally
from jurat.engine.logprobs import (
    Reduce,
    chunked_logprobs,
    fused_logprobs,
    liger_version,
    reduce_logits,
    source_index,
    why_chunked,
)
from jurat.platform.errors import ModelError
from jurat.platform.ports import Objective
from jurat.platform.types import Microbatch

if TYPE_CHECKING:
    from transformers import PreTrainedModel
    from transformers.utils import ModelOutput


class SimpleNetwork:
    """A transformers model whose parameters are views of one flat float32 buffer.

    Segments are packed end to end (positions restart, attention is block-diagonal) where the architecture gives the
    same states packed and alone, which is tried once at the start; else each segment is forwarded by itself. Dropout
    is off: the policy that learns is the one that samples. ``temperature`` is the sampler's; ``fused``: whether a fused
    head may take the place of the chunked one.
    """

    reduce: Reduce = staticmethod(reduce_logits)
    """From logits to log-probs and entropy."""
    tolerance = 1e-3
    """Of states and logits, as norms, in the check at the start; the check runs in float32."""
    fused = False
    chunked = "not tried yet"
    """Why the head runs in chunks of torch's own operations; '' where liger's kernels take their place."""

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        dtype: torch.dtype = torch.bfloat16,
        temperature: float = 1.0,
        checkpointing: bool = False,
        chunk: int = 512,
        fused: bool = False,
    ) -> None:
        self.model, self.dtype, self.temperature, self.chunk, self.fused = model, dtype, temperature, chunk, fused
        silence(model, checkpointing=checkpointing)
        self.master, self.num_matrix = _flatten(self.learned())
        self.device = self.master.device
        self.packs = self._check()

    def learned(self) -> Iterable[nn.Parameter]:
        """The parameters that the master holds."""
        return self.model.parameters()

    @cached_property
    def grad(self) -> Tensor:
        grad = torch.zeros_like(self.master)
        start = self.master.storage_offset()
        for parameter in self.learned():
            at = parameter.storage_offset() - start
            parameter.grad = grad[at : at + parameter.numel()].view_as(parameter)
        return grad

    def views(self) -> Mapping[str, Tensor]:
        seen: set[int] = set()  # a tied tensor once
        named = {}
        for name, tensor in self.model.state_dict().items():
            if tensor.data_ptr() not in seen:
                named[name] = tensor
                seen.add(tensor.data_ptr())
        return named

    def refresh(self) -> None:
        """Nothing: parameters are the masters, and autocast rounds them at each pass."""

    def logprobs(self, mb: Microbatch) -> Tensor:
        return self._logprobs(mb)[0].detach()

    def backward(self, mb: Microbatch, objective: Objective, tally: Tally) -> None:
        assert self.grad is not None  # gradients accumulate in the flat buffer from the first pass on
        current, entropy = self._logprobs(mb)
        tally.forwarded += len(mb.tokens)
        current.backward(tally.judge(objective, current, entropy, mb))

    def _logprobs(self, mb: Microbatch) -> tuple[Tensor, Tensor]:
        """([T] log-probs, 0 off the mask; [K] entropy of the targets)."""
        with torch.autocast(mb.tokens.device.type, torch.bfloat16, enabled=self.dtype != torch.float32):
            hidden = self._hidden(mb.tokens, mb.offsets)[source_index(mb.loss_mask)]
            targets, reads = mb.tokens[mb.loss_mask], partial(chunked_logprobs, self._head, reduce=self.reduce)
            if not self.chunked:
                reads = partial(fused_logprobs, self.model.get_output_embeddings().weight)
            found, entropy = reads(hidden, targets, temperature=self.temperature, chunk=self.chunk)
        zeros = found.new_zeros(len(mb.tokens))
        return zeros.masked_scatter(mb.loss_mask, found), entropy

    def _hidden(self, tokens: Tensor, offsets: Tensor) -> Tensor:
        """[T, d] last hidden states of packed segments."""
        if not self.packs:
            cuts = offsets.diff().tolist()
            parts = [self.model.base_model(input_ids=part[None], use_cache=False)[0][0] for part in tokens.split(cuts)]
            return torch.cat(parts)
        lengths = offsets.diff()
        positions = torch.arange(len(tokens), device=tokens.device) - offsets[:-1].repeat_interleave(lengths)
        out = self.model.base_model(input_ids=tokens[None], position_ids=positions[None], use_cache=False)
        hidden: Tensor = out[0][0]
        return hidden

    def _head(self, hidden: Tensor) -> Tensor:
        """[K, V] logits by the model's own head (scaling and capping included) from [K, d] hidden states."""
        with _instead_of_blocks(self.model, self._outputs(last_hidden_state=hidden[None])):
            logits: Tensor = self.model(input_ids=hidden.new_zeros(1, 1, dtype=torch.int64), use_cache=False).logits[0]
        return logits

    @torch.no_grad()
    def _check(self) -> bool:
        """Whether packing gives each segment's own states; raises ModelError if the head cannot be run by itself."""
        device = self.device
        tokens = torch.arange(1, 8, device=device) % self.model.config.get_text_config().vocab_size
        offsets = torch.tensor([0, 3, 7], device=device)
        self.packs = False
        alone = self._hidden(tokens, offsets)
        self._check_head(tokens[3:], alone[3:])
        if "position_ids" not in inspect.signature(self.model.base_model.forward).parameters:
            return False
        self.packs = True
        return self._close(self._hidden(tokens, offsets), alone)

    def _close(self, found: Tensor, wanted: Tensor) -> bool:
        return bool((found - wanted).norm() <= self.tolerance * wanted.norm())

    def _check_head(self, tokens: Tensor, hidden: Tensor) -> None:
        whole = self.model(input_ids=tokens[None], use_cache=False).logits[0]
        self._outputs = type(self.model.base_model(input_ids=tokens[None], use_cache=False))
        if not self._close(self._head(hidden), whole):
            raise ModelError(f"{type(self.model).__name__}: the head does not give its logits from last hidden states",
                             fix="this architecture needs a network of its own in engine/")  # fmt: skip
        head, uncut = self.model.get_output_embeddings(), self.reduce is reduce_logits
        plain = isinstance(head, nn.Linear) and head.bias is None and uncut
        plain = plain and not getattr(self.model.config, "final_logit_softcapping", None)  # nothing near 0
        self.chunked = why_chunked(
            self.device.type, liger_version(), wanted=self.fused, whole=uncut,
            plain=plain and self._close(nn.functional.linear(hidden, head.weight), whole),
        )  # fmt: skip


class SimpleValueNetwork(SimpleNetwork):
    """A transformers language model with a zero head of one output, ``score.weight`` [1, d], in place of its own.

    Values stand in the place of log-probs: of each target's state before the token is chosen; entropy is 0.
    """

    def __init__(
        self, model: PreTrainedModel, *, dtype: torch.dtype = torch.bfloat16, checkpointing: bool = False
    ) -> None:
        super().__init__(with_value_head(model), dtype=dtype, checkpointing=checkpointing)

    def _logprobs(self, mb: Microbatch) -> tuple[Tensor, Tensor]:
        with torch.autocast(mb.tokens.device.type, torch.bfloat16, enabled=self.dtype != torch.float32):
            hidden = self._hidden(mb.tokens, mb.offsets)[source_index(mb.loss_mask)]
        values = self.model.score(hidden.float()).squeeze(1)
        return values.new_zeros(len(mb.tokens)).masked_scatter(mb.loss_mask, values), torch.zeros_like(values)

    def _check_head(self, tokens: Tensor, hidden: Tensor) -> None:
        """Nothing: the head is applied to last hidden states by definition."""


def layers_of(model: PreTrainedModel) -> nn.ModuleList:
    """The decoder layers: the longest list of modules."""
    lists = [module for module in model.modules() if isinstance(module, nn.ModuleList)]
    if not lists:
        raise ModelError(
            f"{type(model).__name__} has no list of layers", fix="set engine.ranks: 1, and leave engine.compile out"
        )
    return max(lists, key=len)


def compile_layers(model: PreTrainedModel) -> None:
    """Compile each layer's computation at its first use, for any number of tokens."""
    for layer in layers_of(model):
        layer.forward = torch.compile(layer.forward, dynamic=True)


def with_value_head(model: PreTrainedModel) -> PreTrainedModel:
    """``model`` itself, ``score`` (zero) in the place of its head."""
    width = model.get_output_embeddings().weight.shape[1]
    model.set_output_embeddings(nn.Identity())
    model.score = nn.Linear(width, 1, bias=False, device=model.device)
    nn.init.zeros_(model.score.weight)
    return model


@contextmanager
def _instead_of_blocks(model: PreTrainedModel, outputs: ModelOutput) -> Iterator[None]:
    """Within, ``model(...)`` skips its blocks, which are said to have given ``outputs``, and runs its head on them."""
    blocks = model.base_model
    blocks.forward = lambda *args, **kwargs: outputs  # type: ignore[method-assign]
    try:
        yield
    finally:
        del blocks.forward


def _flatten(learned: Iterable[nn.Parameter]) -> tuple[Tensor, int]:
    """Move parameters into one flat float32 buffer, matrices first: (buffer, how many are in matrices)."""
    parameters = sorted(learned, key=lambda parameter: parameter.dim() < 2)  # stable; tied ones come once
    flat = torch.empty(sum(parameter.numel() for parameter in parameters), device=parameters[0].device)
    at = num_matrix = 0
    for parameter in parameters:
        place = flat[at : at + parameter.numel()].view(parameter.shape)
        place.copy_(parameter.detach())
        parameter.data = place
        at += parameter.numel()
        num_matrix += parameter.numel() if parameter.dim() >= 2 else 0
    return flat, num_matrix


def silence(model: PreTrainedModel, *, checkpointing: bool) -> None:
    """No dropout, no embedding row without gradient; layers recompute activations if ``checkpointing``."""
    model.requires_grad_(True)
    for module in model.modules():
        if isinstance(module, nn.Embedding):
            module.padding_idx = None  # pad is often eos, a token like any other
        for name in ("p", "dropout", "attention_dropout", "layer_dropout", "layerdrop"):
            if isinstance(getattr(module, name, None), float):
                setattr(module, name, 0.0)
    model.eval()
    if checkpointing:
        model.train()  # transformers recomputes only in this mode
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
