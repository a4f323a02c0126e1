"""jurat: reinforcement learning from verification."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from jurat.platform.types import Message, Problem, Step, Verdict, VerifierSpec
    from jurat.runs import Run, train
    from jurat.verifiers.once import verify
    from jurat.verifiers.registry import verifier

_WHERE = {
    "train": "jurat.runs",
    "Run": "jurat.runs",
    "verifier": "jurat.verifiers.registry",
    "verify": "jurat.verifiers.once",
    "Message": "jurat.platform.types",
    "Problem": "jurat.platform.types",
    "Step": "jurat.platform.types",
    "Verdict": "jurat.platform.types",
    "VerifierSpec": "jurat.platform.types",
}
"""Public name -> module it comes from. Looked up on first use, so that ``import jurat`` loads nothing heavy."""

__all__ = ["Message", "Problem", "Run", "Step", "Verdict", "VerifierSpec", "__version__", "train", "verifier", "verify"]


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'jurat' has no attribute {name!r}; it has {', '.join(__all__)}")
    value = getattr(import_module(_WHERE[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
