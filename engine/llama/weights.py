"""All weights of a Llama-like model in one flat buffer, with named views: float32 master and a working copy.

Layout (one offset table for master, gradient, moments and working copy alike)::

    embed [V, H] | head [V, H] unless tied, [1, H] of a value model | per layer: q k v o gate up down | norms: per layer 2 x [H], final [H]

q, k, v of a layer are adjacent, and so are gate and up: each makes one matrix by a view. Norms come last: weight decay
covers exactly the first ``num_matrix`` numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from jurat.engine.folders import weight_files
from jurat.engine.sizes import Sizes, sizes_of
from jurat.platform.errors import ModelError

if TYPE_CHECKING:
    from transformers import PretrainedConfig

ARCHITECTURES = ("llama", "mistral")
ROPE_TYPES = ("default", "linear", "llama3")
TOGETHER = "config.json and the weight files must belong together"


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape(Sizes):
    """A Llama-like decoder: RMSNorm before attention and before SwiGLU, rotary positions, no biases.

    Example: SmolLM2-135M is ``Shape(layers=30, hidden=576, heads=9, kv_heads=3, head_dim=64, ff=1536, ...)``
    """

    inv_freq: tuple[float, ...]
    """[head_dim / 2] radians per position, scaling applied."""
    rms_eps: float
    values: bool = False
    """The head has one output, ``score.weight`` [1, H] as transformers name it: a value model."""


@dataclass(frozen=True, slots=True)
class Layer:
    """Views of one layer in some flat buffer."""

    norm1: Tensor
    """[H]"""
    qkv: Tensor
    """[(heads + 2 kv_heads) * head_dim, H]; rows of q, then k, then v."""
    o: Tensor
    """[H, heads * head_dim]"""
    norm2: Tensor
    """[H]"""
    gate_up: Tensor
    """[2 FF, H]; gate, then up."""
    down: Tensor
    """[H, FF]"""


@dataclass(frozen=True, slots=True)
class Views:
    """A flat buffer seen as a model."""

    embed: Tensor
    """[V, H]"""
    head: Tensor
    """[V, H]; the same memory as embed when tied. [1, H] of a value model."""
    norm: Tensor
    """[H]"""
    layers: tuple[Layer, ...]


def fits(config: PretrainedConfig) -> str:
    """'' if the fast path covers a transformers config, else the reason that it does not."""
    kind = config.model_type
    if kind not in ARCHITECTURES:
        return f"model_type {kind!r} is not one of {', '.join(ARCHITECTURES)}"
    if getattr(config, "quantization_config", None):
        return "the weights are quantised"
    if config.hidden_act not in ("silu", "swish"):
        return f"hidden_act {config.hidden_act!r} is not 'silu'"
    for key in ("attention_bias", "mlp_bias"):
        if getattr(config, key, False):
            return f"{key} is true"
    window = getattr(config, "sliding_window", None)
    if window is not None and window < config.max_position_embeddings:
        return f"attention has a sliding window of {window}"
    rope = _rope_type(config)
    if rope not in ROPE_TYPES:
        return f"rope type {rope!r} is not one of {', '.join(ROPE_TYPES)}"
    if config.num_attention_heads % config.num_key_value_heads:
        return f"{config.num_attention_heads} heads do not divide by {config.num_key_value_heads} key-value heads"
    return ""


def shape_of(config: PretrainedConfig) -> Shape:
    """The shape of a transformers config that ``fits``."""
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    reason = fits(config)
    if reason:
        raise ModelError(f"the fast path does not cover this model: {reason}", fix="set engine.path: auto or simple")
    rotary = LlamaRotaryEmbedding(config)
    return Shape(
        inv_freq=tuple(rotary.inv_freq.double().tolist()),
        rms_eps=config.rms_norm_eps,
        **sizes_of(config.to_dict(), where=config._name_or_path or config.model_type),
    )


def _rope_type(config: PretrainedConfig) -> str:
    rope = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    return rope.get("rope_type", "default")


def _table(shape: Shape) -> tuple[dict[str, tuple[int, tuple[int, ...]]], int, int]:
    """{HF name: (offset, shape)}, numbers in matrices, numbers in all."""
    heads, kv, hidden = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim, shape.hidden
    matrices: list[tuple[str, tuple[int, ...]]] = [("model.embed_tokens.weight", (shape.vocab, hidden))]
    norms: list[tuple[str, tuple[int, ...]]] = []
    if shape.values:
        matrices.append(("score.weight", (1, hidden)))
    elif not shape.tied:
        matrices.append(("lm_head.weight", (shape.vocab, hidden)))
    for index in range(shape.layers):
        at = f"model.layers.{index}."
        matrices += [
            (at + "self_attn.q_proj.weight", (heads, hidden)),
            (at + "self_attn.k_proj.weight", (kv, hidden)),
            (at + "self_attn.v_proj.weight", (kv, hidden)),
            (at + "self_attn.o_proj.weight", (hidden, heads)),
            (at + "mlp.gate_proj.weight", (shape.ff, hidden)),
            (at + "mlp.up_proj.weight", (shape.ff, hidden)),
            (at + "mlp.down_proj.weight", (hidden, shape.ff)),
        ]
        norms += [(at + "input_layernorm.weight", (hidden,)), (at + "post_attention_layernorm.weight", (hidden,))]
    norms.append(("model.norm.weight", (hidden,)))
    table, offset = {}, 0
    for name, size in matrices + norms:
        table[name] = (offset, size)
        offset += _count(size)
    return table, offset - sum(_count(size) for _, size in norms), offset


def _count(size: tuple[int, ...]) -> int:
    return size[0] * (size[1] if len(size) == 2 else 1)


class FlatWeights:
    """One flat float32 ``master`` [n] and a ``working`` copy [n] in ``dtype`` on the same layout.

    In float32 the working copy *is* the master. Other buffers of the layout (gradient, moments) come from ``like``.
    ``drawn``: only a decoder reads them; then a master beside a working copy has the norms alone, [n - num_matrix].
    """

    def __init__(self, shape: Shape, *, dtype: torch.dtype, device: str = "cpu", drawn: bool = False) -> None:
        self.shape, self.dtype = shape, dtype
        self.table, self.num_matrix, self.size = _table(shape)
        whole = dtype == torch.float32 or not drawn
        self.master = torch.zeros(self.size if whole else self.size - self.num_matrix, device=device)
        self.working = self.master if dtype == torch.float32 else self.like(dtype)

    @classmethod
    def from_folder(cls, folder: Path, *, dtype: torch.dtype = torch.bfloat16, device: str = "cpu") -> FlatWeights:
        """Read an HF folder. Raises ModelError if it does not fit or a tensor is missing, unknown or misshapen."""
        from transformers import AutoConfig

        weights = cls(shape_of(AutoConfig.from_pretrained(folder)), dtype=dtype, device=device)
        weights.read(folder)
        return weights

    @classmethod
    def from_state_dict(
        cls, config: PretrainedConfig, state: Mapping[str, Tensor], *, dtype: torch.dtype = torch.bfloat16
    ) -> FlatWeights:
        """From a transformers model: ``from_state_dict(model.config, model.state_dict())``."""
        weights = cls(shape_of(config), dtype=dtype)
        weights._fill(iter(state.items()), where="state dict")
        return weights

    def copy(self) -> FlatWeights:
        """The same weights, apart."""
        made = FlatWeights(self.shape, dtype=self.dtype, device=str(self.master.device))
        made.master.copy_(self.master)
        made.refresh_working()
        return made

    def apart(self) -> FlatWeights:
        """The same master, with a working copy of its own, in float32 too: one that may come to differ from it."""
        made = FlatWeights.__new__(FlatWeights)
        vars(made).update(vars(self), working=self.master.to(self.dtype, copy=True))
        return made

    def take(self, other: FlatWeights) -> None:
        """Become what a decoder reads of ``other``: its working copy, and of its master the norms."""
        self.working.copy_(other.working)
        norms = self.size - self.num_matrix
        self.master[-norms:].copy_(other.master[-norms:])

    def read(self, folder: Path) -> None:
        """Replace the master by the weights of an HF folder, and refresh the working copy."""
        self._fill(_tensors(folder), where=str(folder))

    def _fill(self, tensors: Iterator[tuple[str, Tensor]], *, where: str) -> None:
        views, missing = self.views(self.master), set(self.table)
        for name, tensor in tensors:
            if name.endswith("rotary_emb.inv_freq") or (self.shape.tied and name == "lm_head.weight"):
                continue
            if name not in views:
                raise ModelError(f"tensor {name!r} has no place in this model", where=where, fix=TOGETHER)
            if views[name].shape != tensor.shape:
                raise ModelError(
                    f"tensor {name!r}: got shape {list(tensor.shape)}, config.json says {list(views[name].shape)}",
                    where=where,
                    fix=TOGETHER,
                )
            views[name].copy_(tensor)
            missing.discard(name)
        if missing:
            raise ModelError(
                f"{len(missing)} tensors are missing, first {min(missing)!r}",
                where=where,
                fix="fetch the model again: a weight file is incomplete",
            )
        self.refresh_working()

    def like(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """A zero buffer [n] of this layout: a gradient or a moment."""
        return torch.zeros(self.size, dtype=dtype, device=self.master.device)

    def views(self, buffer: Tensor) -> dict[str, Tensor]:
        """{HF name: view} of any buffer of this layout."""
        return {name: buffer[at : at + _count(size)].view(size) for name, (at, size) in self.table.items()}

    def norms(self) -> dict[str, Tensor]:
        """{HF name: view} of the master's norms: what a decoder reads in float32."""
        start = self.size - len(self.master)
        return {
            name: self.master[at - start : at - start + _count(size)]
            for name, (at, size) in self.table.items()
            if at >= self.num_matrix
        }

    def model(self, buffer: Tensor) -> Views:
        """The same views by role, with q, k, v joined and gate, up joined."""
        shape, named = self.shape, self.views(buffer)

        def joined(first: str, rows: int) -> Tensor:
            at = self.table[first][0]
            return buffer[at : at + rows * shape.hidden].view(rows, shape.hidden)

        layers = []
        for index in range(shape.layers):
            at = f"model.layers.{index}."
            layers.append(
                Layer(
                    norm1=named[at + "input_layernorm.weight"],
                    qkv=joined(at + "self_attn.q_proj.weight", shape.qkv),
                    o=named[at + "self_attn.o_proj.weight"],
                    norm2=named[at + "post_attention_layernorm.weight"],
                    gate_up=joined(at + "mlp.gate_proj.weight", 2 * shape.ff),
                    down=named[at + "mlp.down_proj.weight"],
                )
            )
        embed = named["model.embed_tokens.weight"]
        head = named["score.weight"] if shape.values else embed if shape.tied else named["lm_head.weight"]
        return Views(embed=embed, head=head, norm=named["model.norm.weight"], layers=tuple(layers))

    def refresh_working(self) -> None:
        """Round the master into the working copy; in float32 they are one."""
        if self.working is not self.master:
            self.working.copy_(self.master)


def _tensors(folder: Path) -> Iterator[tuple[str, Tensor]]:
    """(name, tensor) of every safetensors file of an HF folder, one in memory at a time."""
    from safetensors import SafetensorError, safe_open

    for path in weight_files(folder):
        try:
            with safe_open(path, framework="pt") as file:
                for name in file.keys():  # noqa: SIM118 (not a mapping)
                    yield name, file.get_tensor(name)
        except SafetensorError as error:
            raise ModelError(f"damaged weights: {error}", where=str(path), fix="fetch the model again") from error
