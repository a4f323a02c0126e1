"""``@jurat.verifier``: what a user writes to register a verifier, and what is recorded of it.

A verifier is a function ``(problem, completion, **args)``, an async function, a class ``(**args)`` whose instances are
called with ``(problem, completion)``, or, with ``batch=True``, any of these over lists. It returns a ``bool``, a
``float`` in [0, 1], ``None`` (abstain) or a ``Verdict``. One that has a parameter ``finish`` is told why the completion
ended ("stop" or "length").
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cached_property
from typing import Any, Literal, TypeVar

from jurat.platform.errors import ConfigError, nearest
from jurat.platform.registry import Registry

Kind = Literal["outcome", "steps", "judge"]
Blame = Literal["verifier", "policy"]
Target = Callable[..., Any]
F = TypeVar("F", bound=Target)

DEFAULT_DEADLINE = 10.0
"""Seconds of work per call, unless the verifier says otherwise."""
_NAME = re.compile(r"[a-z][a-z0-9_.-]{0,63}\Z")


@dataclass(frozen=True, kw_only=True, eq=False)
class Definition:
    """A registered verifier. Example: ``Definition(name="digit_sum", target=digit_sum, version="1", deadline=2.0)``."""

    name: str
    target: Target
    version: str = "1"
    deadline: float = DEFAULT_DEADLINE
    """Seconds from the start of the work of one call."""
    kind: Kind = "outcome"
    batch: bool = False
    deterministic: bool = True
    deps: tuple[str, ...] = ()
    """Distributions that belong to its identity though no static reading sees them."""
    blame: Blame = "verifier"
    """Who is at fault when the deadline passes."""
    config: Mapping[str, Any] = field(default_factory=dict)
    """JSON by name: stands, in the identity, for a value that cannot be hashed."""
    weights: tuple[str, ...] = ()
    """Files or folders whose content is part of the identity."""
    bounded: bool = False
    """Built-in only: time and memory are bounded by construction, so that it may run in the calling process."""
    values: Callable[[Mapping[str, Any]], None] | None = None
    """Built-in only: raises ConfigError for an argument whose value it cannot use."""
    ready: Callable[[Mapping[str, Any]], None] | None = None
    """Built-in only: raises ConfigError where this machine cannot run it with these arguments. Called by a judge before
    anything is judged."""
    isolation: Literal["process", "sandbox"] = "process"
    """Built-in only: where the completion is run or read, if not in the calling process."""

    @cached_property
    def parameters(self) -> Mapping[str, inspect.Parameter]:
        """Keyword arguments it takes beside problem and completion (``finish`` left out)."""
        skip = 0 if inspect.isclass(self.target) else 2
        given = list(inspect.signature(self.target).parameters.values())[skip:]
        return {p.name: p for p in given if p.name != "finish"}

    @cached_property
    def wants_finish(self) -> bool:
        """True if a call is given ``finish=``."""
        called = self.target.__call__ if inspect.isclass(self.target) else self.target
        return "finish" in inspect.signature(called).parameters

    def check_args(self, args: Mapping[str, Any], *, where: str = "") -> None:
        """Raises ConfigError for an argument it does not take or lacks, or, if built in, a value it cannot use."""
        where = where or f"arguments of verifier {self.name!r}"
        kinds = {p.kind for p in self.parameters.values()}
        if inspect.Parameter.VAR_KEYWORD not in kinds:
            for name in args:
                if name not in self.parameters:
                    raise ConfigError(
                        f"verifier {self.name!r} takes no argument {name!r}.{nearest(name, self.parameters)}",
                        where=where,
                        fix=f"it takes: {', '.join(self.parameters) or 'none'}",
                    )
        needed = [
            p.name
            for p in self.parameters.values()
            if p.default is p.empty and p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL) and p.name not in args
        ]
        if needed:
            raise ConfigError(
                f"verifier {self.name!r} needs the argument {needed[0]!r}", where=where, fix="give it in args:"
            )
        if self.values is not None:
            self.values(args)

    def build(self, args: Mapping[str, Any]) -> Target:
        """The callable ``(problem, completion[, finish])`` for these arguments; a class is instantiated."""
        self.check_args(args)
        if inspect.isclass(self.target):
            built: Target = self.target(**args)  # type: ignore[assignment]
            return built
        target: Any = self.target
        given = dict(args)
        return (lambda *call, **more: target(*call, **given, **more)) if given else target


REGISTERED: Registry[Definition] = Registry("verifier")
"""What this process has registered by the decorator; the built-in ones are in ``catalog.py``."""


def verifier(
    name: str,
    *,
    version: str = "1",
    deadline: float = DEFAULT_DEADLINE,
    kind: Kind = "outcome",
    batch: bool = False,
    deterministic: bool = True,
    deps: tuple[str, ...] | list[str] = (),
    blame: Blame = "verifier",
    config: Mapping[str, Any] | None = None,
    weights: tuple[str, ...] | list[str] = (),
) -> Callable[[F], F]:
    """Register a function or class as a verifier and return it unchanged.

    ``deadline`` is seconds of work per call; past it the process is killed and the verdict is ``timeout``, blamed on
    ``blame``. ``deterministic=False`` keeps its verdicts out of the result cache. ``deps``, ``config`` and ``weights``
    add to the identity what reading the code cannot see. Raises ConfigError for a bad or taken name, or a signature
    that cannot be called with (problem, completion).
    """

    def register(target: F) -> F:
        where = _where(target)
        _check(name, target, where, version=version, deadline=deadline, kind=kind, blame=blame)
        made = Definition(
            name=name, target=target, version=version, deadline=float(deadline), kind=kind, batch=batch, blame=blame,
            deterministic=deterministic, deps=tuple(deps), config=dict(config or {}), weights=tuple(weights),
        )  # fmt: skip
        REGISTERED.add(name, made, where=where, replace=_is_rerun(target))
        return target

    if not isinstance(name, str):
        raise ConfigError(
            f"@jurat.verifier needs a name, got {name!r}", where=_where(name), fix='write @jurat.verifier("my_rule")'
        )
    return register


verifier.__registers__ = True  # type: ignore[attr-defined]
"""Tells the reading of code that this decorator's arguments are config."""


def _check(name: str, target: Target, where: str, *, version: str, deadline: float, kind: str, blame: str) -> None:
    from jurat.verifiers.catalog import BUILT_IN

    if not _NAME.match(name):
        raise ConfigError(
            f"a verifier's name is lower case letters, digits, '_', '-', '.', got {name!r}",
            where=where,
            fix="rename it",
        )
    if name in BUILT_IN or name == "problem":
        raise ConfigError(f"verifier {name!r} is built in", where=where, fix="give yours another name")
    if not isinstance(version, str) or not version:
        raise ConfigError(f"version is a non-empty string, got {version!r}", where=where, fix='write version="1"')
    if isinstance(deadline, bool) or not isinstance(deadline, (int, float)) or not 0 < deadline < float("inf"):
        raise ConfigError(
            f"deadline is a positive number of seconds, got {deadline!r}", where=where, fix="write deadline=10.0"
        )
    for value, allowed, noun in (
        (kind, ("outcome", "steps", "judge"), "kind"),
        (blame, ("verifier", "policy"), "blame"),
    ):
        if value not in allowed:
            # a member of the reward has role process, its verifier kind steps
            near = ["steps"] if value == "process" else get_close_matches(str(value), allowed, 1, 0.5)
            hint = f". Did you mean {near[0]!r}?" if near else ""
            raise ConfigError(
                f"{noun} is one of {', '.join(allowed)}, got {value!r}{hint}", where=where,
                fix=f"write {noun}={near[0]!r}" if near else f"write one of them, or leave {noun} out",
            )  # fmt: skip
    if not callable(target):
        raise ConfigError(
            f"@jurat.verifier needs a function or a class, got {target!r:.80}", where=where, fix="put it above a def"
        )
    called = target.__call__ if inspect.isclass(target) else target
    arguments = list(inspect.signature(called).parameters.values())
    if inspect.isclass(target):
        arguments = arguments[1:]
    plain = [p for p in arguments if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    if len(plain) < 2 and not any(p.kind is p.VAR_POSITIONAL for p in arguments):
        raise ConfigError(
            f"verifier {name!r} cannot be called with (problem, completion): its signature is "
            f"({', '.join(p.name for p in arguments)})",
            where=where,
            fix="write def f(problem, completion): ...",
        )


def _where(target: Any) -> str:
    code = getattr(inspect.unwrap(target) if callable(target) else target, "__code__", None)
    if code is not None:
        return f"{code.co_filename}:{code.co_firstlineno}"
    return f"{getattr(target, '__module__', '?')}.{getattr(target, '__qualname__', '?')}"


def _is_rerun(target: Any) -> bool:
    """A notebook cell run again defines its verifier again; only there does a second registration replace the first."""
    main = sys.modules.get("__main__")
    return getattr(target, "__module__", "") == "__main__" and not hasattr(main, "__file__")
