"""Reading and writing tensors as safetensors in one pass: no pickle, no copy of a large tensor, the digest on the way.

Format: 8 bytes little-endian header length, JSON header ``{name: {dtype, shape, data_offsets}}``, the data end to end.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import struct
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from jurat.engine.folders import copy_side_files
from jurat.platform.errors import ModelError

BLOCK = 1 << 24
"""Bytes hashed and written at a time."""
DIGESTS = "digests.json"
DTYPES = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16", torch.int64: "I64"}
OWN_FILES = (DIGESTS, "learner.json")
"""Files of a checkpoint that are no part of the model in it."""


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> str:
    """Write and fsync a safetensors file; returns ``sha256:<hex>`` of its bytes. Raises OSError, as of a full disk."""
    head, _ = _head({name: (tensor.dtype, tensor.shape) for name, tensor in tensors.items()})
    sha = hashlib.sha256()
    with open(path, "wb", buffering=0) as file, ThreadPoolExecutor(1) as hashing:  # hashlib and write release the GIL

        def put(data: memoryview) -> None:
            for start in range(0, len(data), BLOCK):
                block = data[start : start + BLOCK]
                hashed = hashing.submit(sha.update, block)
                while len(block):
                    block = block[file.write(block) :]
                hashed.result()

        put(memoryview(head))
        for tensor in tensors.values():
            flat = tensor.detach().contiguous().cpu().reshape(-1)
            put(memoryview(flat.view(torch.uint8).numpy()))  # type: ignore[arg-type]
        os.fsync(file.fileno())
    return "sha256:" + sha.hexdigest()


def lay_out(
    path: Path, shapes: Mapping[str, Sequence[int]], *, dtype: torch.dtype, mark: str = ""
) -> Mapping[str, int]:
    """Make a safetensors file of zeros, its room taken on the disk; {name: first byte}, for several writers to fill.

    ``mark`` stands in its first bytes. Raises OSError, as of a full disk: once this returns, writing cannot fail for want of room.
    """
    head, ends = _head({name: (dtype, shape) for name, shape in shapes.items()}, mark)
    with open(path, "wb") as file:
        file.write(head)
        file.flush()
        reserve(file.fileno(), ends[-1])
    return dict(zip(shapes, ends, strict=False))


def map_tensors(
    path: Path, shapes: Mapping[str, Sequence[int]], *, dtype: torch.dtype, mark: str = ""
) -> Mapping[str, Tensor]:
    """Lay out such a file and map it: what is written to the tensors is what others read in it. Raises OSError."""
    places = lay_out(path, shapes, dtype=dtype, mark=mark)
    whole = torch.from_numpy(np.memmap(path, np.uint8, "r+"))
    return {
        name: whole[place : place + math.prod(shapes[name]) * dtype.itemsize].view(dtype).view(*shapes[name])
        for name, place in places.items()
    }


def reserve(handle: int, size: int) -> None:
    """Make a file that long, with room taken where the system can: who maps it dies if there is none. Raises OSError."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(handle, 0, size)
    else:
        os.ftruncate(handle, size)


def _head(tensors: Mapping[str, tuple[torch.dtype, Sequence[int]]], mark: str = "") -> tuple[bytes, list[int]]:
    """(header of a safetensors file, first byte of each tensor and the end of the last)."""
    header: dict[str, object] = {"__metadata__": {"format": "pt", **({"mark": mark} if mark else {})}}
    ends = [0]
    for name, (dtype, shape) in tensors.items():
        ends.append(ends[-1] + math.prod(shape) * dtype.itemsize)
        header[name] = {"dtype": DTYPES[dtype], "shape": list(shape), "data_offsets": ends[-2:]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    head = struct.pack("<Q", len(text)) + text
    return head, [len(head) + end for end in ends]


def read_tensors(path: Path, into: Mapping[str, Tensor]) -> None:
    """Fill ``into`` from a safetensors file of exactly those names and shapes. Raises ModelError otherwise."""
    from safetensors import safe_open

    with safe_open(path, framework="pt") as file:
        found = set(file.keys())
        if found != set(into):
            odd = sorted(found ^ set(into))
            raise ModelError(f"{len(odd)} tensors differ from what this model has, first {odd[0]!r}", where=str(path),
                             fix="resume with the recipe and model that wrote this checkpoint")  # fmt: skip
        for name, tensor in into.items():
            value = file.get_tensor(name)
            if value.shape != tensor.shape:
                raise ModelError(
                    f"tensor {name!r}: got shape {list(value.shape)}, this model has {list(tensor.shape)}",
                    where=str(path), fix="resume with the recipe and model that wrote this checkpoint",
                )  # fmt: skip
            tensor.copy_(value)


def load_tensors(path: Path, *, dtype: torch.dtype) -> dict[str, Tensor]:
    """All tensors of a safetensors file, rounded to ``dtype``."""
    from safetensors import safe_open

    with safe_open(path, framework="pt") as file:
        return {name: file.get_tensor(name).to(dtype) for name in file.keys()}  # noqa: SIM118 (not a mapping)


def digest_of(path: Path) -> str:
    """``sha256:<hex>`` of a file."""
    with open(path, "rb") as file:
        return "sha256:" + hashlib.file_digest(file, "sha256").hexdigest()


def record_digests(folder: Path, known: Mapping[str, str]) -> None:
    """Write ``digests.json``: each file's sha256; ``known`` ones are not read again. Everything is fsynced."""
    digests = {}
    for path in sorted(path for path in folder.iterdir() if path.is_file() and path.name != DIGESTS):
        digests[path.name] = known.get(path.name) or digest_of(path)
        if path.name not in known:
            sync(path)
    (folder / DIGESTS).write_text(json.dumps(digests, indent=2, sort_keys=True) + "\n")
    sync(folder / DIGESTS)
    sync(folder)


def sync(path: Path) -> None:
    """fsync a file or a folder."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_side_files(source: Path, folder: Path, *, dtype: torch.dtype) -> None:
    """What an HF folder holds beside weights (config, tokenizer, chat template); its config says ``dtype``."""
    folder.mkdir(parents=True, exist_ok=True)
    copy_side_files(source, folder)
    for own in OWN_FILES:
        (folder / own).unlink(missing_ok=True)
    config = json.loads((source / "config.json").read_text())
    config.pop("torch_dtype", None)
    config["dtype"] = str(dtype).removeprefix("torch.")
    (folder / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
