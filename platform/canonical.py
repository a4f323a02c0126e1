"""One spelling for every JSON value, and its sha256: the identity of problems, configs, reward specs and parts."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel


def _plain(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return _plain(value.model_dump(mode="json"))
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise TypeError(f"canonical JSON needs string keys, got {key!r}")
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"canonical JSON has no {value!r}")
    if value is None or isinstance(value, (str, int, float, bool)):
        return value
    raise TypeError(f"canonical JSON cannot hold {type(value).__name__}: {value!r}")


def canonical_json(value: Any) -> str:
    """Sorted keys, no spaces, UTF-8, no NaN. Raises TypeError or ValueError for what JSON cannot hold."""
    return json.dumps(_plain(value), sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def digest(value: Any) -> str:
    """``sha256:<64 hex>`` of the canonical JSON of a value, or of bytes as they are."""
    data = value if isinstance(value, bytes) else canonical_json(value).encode("utf-8", "surrogatepass")
    return "sha256:" + hashlib.sha256(data).hexdigest()
