"""What a process that trains may record over HTTP: each fact has the keys of its kind, and each value is what its column holds.

Whatever passes here is stored and read back as it came. What the store says of a run itself (``events.OWN``) nobody says for it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from jurat.api.server.shapes import DIGEST
from jurat.platform.db import tables as t
from jurat.platform.runs import events
from jurat.platform.runs.repository import evaluation_from_json
from jurat.platform.runs.rollouts import FOLDERS

PART = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}(/[A-Za-z0-9][A-Za-z0-9._-]{0,127}){0,7}\Z")
MAX_STEP = 1 << 53
MAX_NAME = 250
"""Characters of an event's kind and number."""

Check = Callable[[Any], bool]


def _whole(value: Any) -> bool:
    return type(value) is int  # of 64 bits, as every whole number of a body


def _real(value: Any) -> bool:
    return type(value) in (int, float)


def _text(value: Any) -> bool:
    return isinstance(value, str) and t.visible(value) == value


def _named(value: Any) -> bool:
    return _text(value) and 0 < len(value) <= MAX_NAME


def _object(value: Any) -> bool:
    return isinstance(value, Mapping)


def _counts(value: Any) -> bool:
    return isinstance(value, Mapping) and all(type(count) is int and count >= 0 for count in value.values())


def _path(value: Any) -> bool:
    return isinstance(value, str) and ".." not in value and bool(PART.match(value))


def _digest(value: Any) -> bool:
    return isinstance(value, str) and bool(DIGEST.fullmatch(value))


def _evaluation(value: Any) -> bool:
    try:
        evaluation_from_json(value)
    except (TypeError, ValueError, KeyError, AttributeError):
        return False
    return True


def _or_none(check: Check) -> Check:
    return lambda value: value is None or check(value)


_OF_TYPE: Mapping[type, Check] = {
    sa.Text: _text,
    sa.LargeBinary: _text,
    sa.BigInteger: _whole,
    sa.Double: _real,
    t.Json: _object,
}


def _of(table: sa.Table, **own: Check) -> dict[str, Check]:
    """What the columns of a table hold, but for some that hold less."""
    made = dict[str, Check]()
    for column in table.c:
        if column.name not in ("pk", "run_pk"):
            check = own.get(column.name) or _OF_TYPE[type(column.type)]
            made[column.name] = _or_none(check) if column.nullable else check
    return made


FACTS: Mapping[str, Mapping[str, Check]] = {
    "metric": {
        "segment": _whole, "step": lambda step: _whole(step) and 0 <= step <= MAX_STEP, "at": _whole, "name": _text,
        "value": lambda value: _real(value) or value in ("nan", "inf", "-inf"),
    },
    "event": {
        "uid": _named, "segment": _or_none(_whole), "at": _whole, "payload": _object,
        "kind": lambda kind: _named(kind) and kind not in events.OWN,
    },
    "end": {"segment": _whole, "ending": _text, "at": _whole},
    "part": _of(t.data_part, path=_path, digest=_digest, kind=lambda kind: isinstance(kind, str) and kind in FOLDERS),
    "index": _of(t.part_index, path=_path, statuses=_counts),
    "verdicts": _of(t.verdict_stat, statuses=_counts),
    "checkpoint": _of(t.checkpoint, digest=_digest),
    "evaluation": _of(t.evaluation, result=_evaluation),
}  # fmt: skip
"""Kind -> what each of its keys holds, no more and no fewer."""


def is_fact(op: Mapping[str, Any], folder: Path) -> bool:
    """``folder``: the run's; its checkpoints lie below it."""
    kind = op.get("op")
    checks = FACTS.get(kind) if isinstance(kind, str) else None
    if checks is None or len(op) != len(checks) + 1:
        return False
    if not all(name in op and check(op[name]) for name, check in checks.items()):
        return False
    return kind != "checkpoint" or _below(folder, op["path"])


def _below(folder: Path, path: str) -> bool:
    try:
        return Path(path).resolve().is_relative_to(folder.resolve() / "checkpoints")
    except (OSError, ValueError, RuntimeError):
        return False
