"""Sizes of a Llama-like decoder as its ``config.json`` has them: one reading for the fast path and for the estimate of memory.

No torch: ``jurat estimate`` reads them without it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from jurat.platform.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """What of a configuration says how large the model is."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ff: int
    vocab: int
    tied: bool
    """The head is the embedding."""
    max_length: int
    """Positions the model was made for."""

    @property
    def qkv(self) -> int:
        """Rows of the joint q, k, v matrix."""
        return (self.heads + 2 * self.kv_heads) * self.head_dim


def sizes_of(config: Mapping[str, Any], *, where: str) -> dict[str, Any]:
    """The fields of ``Sizes``. Raises KeyError for a size that is not there, and ConfigError, which names ``where`` and the
    key, for one that is no size."""

    def size(key: str) -> int:
        value = config[key]
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ConfigError(f"{key} is {str(value)[:80]!r}, expected a whole number from 1 up", where=f"{where}: {key}",
                              fix="fetch the model again")  # fmt: skip
        return value

    heads, hidden = size("num_attention_heads"), size("hidden_size")
    return {
        "layers": size("num_hidden_layers"), "hidden": hidden, "heads": heads,
        "kv_heads": size("num_key_value_heads") if config.get("num_key_value_heads") else heads,
        "head_dim": size("head_dim") if config.get("head_dim") else hidden // heads,
        "ff": size("intermediate_size"), "vocab": size("vocab_size"),
        "tied": bool(config.get("tie_word_embeddings", False)), "max_length": size("max_position_embeddings"),
    }  # fmt: skip
