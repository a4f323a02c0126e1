"""What a decode step does between its matrix products: by torch anywhere, or in C for bfloat16 on a CPU.

At 16 rows half of a step of torch operations is their dispatch: about 40 small ones per layer. The C file does the same in
three calls a layer. It is compiled at first use with the machine's C compiler and kept in the user's cache folder, by the
digest of source, compiler and processor; without a compiler torch does the work.

Axes: B rows, H hidden, F feed-forward.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

SOURCE = Path(__file__).with_suffix(".c")
FLAGS = (
    "-std=c11", "-O3", "-march=native", "-fopenmp", "-fno-math-errno", "-fno-trapping-math", "-fassociative-math",
    "-fno-signed-zeros", "-shared", "-fPIC",
)  # fmt: skip
COMPILE_SECONDS = 60


class Kernels(Protocol):
    def add_norm(self, x: Tensor, y: Tensor | None, weight: Tensor) -> Tensor:
        """x [B, H] float32 += y, in place; RMSNorm (Zhang & Sennrich 2019) of it, rounded for the next product."""
        ...

    def gated(self, gate_up: Tensor) -> Tensor:
        """[B, 2 F] -> silu(gate) * up [B, F]"""
        ...


class TorchKernels:
    name = "torch"

    def __init__(self, dtype: torch.dtype, eps: float) -> None:
        self.dtype, self.eps = dtype, eps

    def add_norm(self, x: Tensor, y: Tensor | None, weight: Tensor) -> Tensor:
        if y is not None:
            x += y
        scale = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        scale.square_().div_(x.shape[-1]).add_(self.eps).rsqrt_()
        return (x * scale).mul_(weight).to(self.dtype)

    def gated(self, gate_up: Tensor) -> Tensor:
        gate, up = gate_up.chunk(2, dim=-1)
        return F.silu(gate) * up


class NativeKernels:
    """The C file. Tensors are contiguous, on the CPU; streams and norms float32, the rest bfloat16."""

    name = "native"

    def __init__(self, library: ctypes.CDLL, eps: float) -> None:
        self._library, self._eps = library, ctypes.c_float(eps)

    def add_norm(self, x: Tensor, y: Tensor | None, weight: Tensor) -> Tensor:
        out = torch.empty(x.shape, dtype=torch.bfloat16)
        given = None if y is None else y.data_ptr()
        self._library.add_norm(x.data_ptr(), given, weight.data_ptr(), out.data_ptr(), *x.shape, self._eps)
        return out

    def gated(self, gate_up: Tensor) -> Tensor:
        out = torch.empty(len(gate_up), gate_up.shape[1] // 2, dtype=torch.bfloat16)
        self._library.gated(gate_up.data_ptr(), out.data_ptr(), *out.shape)
        return out

    def attend(
        self, qkv: Tensor, turns: Tensor, places: Tensor, own: tuple[int, int], capacity: int, t: int,
        prompt: tuple[int, int], width: int, lengths: Tensor, per_group: int, heads: int, kv: int,
    ) -> Tensor:  # fmt: skip
        """Rotate, append and attend: qkv [B, heads + 2 kv, d] -> [B, heads d]. Caches are addresses of keys and values.

        Raises MemoryError.
        """
        out = torch.empty(len(qkv), heads * qkv.shape[-1], dtype=torch.bfloat16)
        if self._library.attend(
            qkv.data_ptr(), turns.data_ptr(), places.data_ptr(), len(qkv), *own, capacity, t, *prompt, width,
            lengths.data_ptr(), per_group, heads, kv, qkv.shape[-1], out.data_ptr(),
        ):  # fmt: skip
            raise MemoryError("no memory for the scores of one row")
        return out


@functools.cache
def native_library() -> ctypes.CDLL | None:
    """The compiled C file, or None where there is no compiler, or it fails, or its cache cannot be written."""
    compiler = shutil.which(os.environ.get("CC", "cc"))
    if compiler is None:
        return None
    try:
        about = subprocess.run([compiler, "--version"], capture_output=True, timeout=COMPILE_SECONDS, check=True).stdout
        known = hashlib.sha256(b"\0".join((SOURCE.read_bytes(), " ".join(FLAGS).encode(), about, _processor())))
        folder = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "jurat"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        owner = folder.stat()
        if owner.st_uid != os.getuid() or owner.st_mode & 0o022:  # what others can write is not loaded
            return None
        path = folder / f"decode-{known.hexdigest()[:24]}.so"
        if not path.exists():
            with tempfile.TemporaryDirectory(dir=folder) as made:
                part = Path(made) / path.name
                subprocess.run(
                    [compiler, *FLAGS, "-o", str(part), str(SOURCE), "-lm"],
                    capture_output=True, timeout=COMPILE_SECONDS, check=True,
                )  # fmt: skip
                part.replace(path)
        library = ctypes.CDLL(str(path))
    except (OSError, RuntimeError, subprocess.SubprocessError):
        return None
    p, n = ctypes.c_void_p, ctypes.c_int64
    library.add_norm.argtypes, library.add_norm.restype = (p, p, p, p, n, n, ctypes.c_float), None
    library.gated.argtypes, library.gated.restype = (p, p, n, n), None
    library.attend.argtypes = (p, p, p, n, p, p, n, n, p, p, n, p, n, n, n, n, p)
    library.attend.restype = ctypes.c_int
    return library


def _processor() -> bytes:
    """What ``-march=native`` looks at; a home folder may be shared by machines that differ."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return b""
    return "\n".join(sorted({line for line in lines if line.startswith(("model name", "flags"))})).encode()


def choose(dtype: torch.dtype, device: torch.device, eps: float) -> TorchKernels | NativeKernels:
    """C where it fits and compiles, else torch."""
    if dtype == torch.bfloat16 and device.type == "cpu":
        library = native_library()
        if library is not None:
            return NativeKernels(library, eps)
    return TorchKernels(dtype, eps)
