"""Benchmarks as modules: they are files, no package."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"


def benchmark(name: str) -> ModuleType:
    """``benchmarks/NAME.py``, imported once."""
    module = f"benchmarks_{name}"
    if module not in sys.modules:
        spec = importlib.util.spec_from_file_location(module, FOLDER / f"{name}.py")
        assert spec is not None and spec.loader is not None
        sys.modules[module] = importlib.util.module_from_spec(spec)  # before it runs: dataclasses look their module up
        spec.loader.exec_module(sys.modules[module])
    return sys.modules[module]
