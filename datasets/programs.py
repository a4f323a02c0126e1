"""Cases of code problems: from the columns that data sets have to the one JSON object that verifier ``code`` reads.

| the row has                                              | becomes                                              |
|----------------------------------------------------------|------------------------------------------------------|
| an object (or its JSON) in ``fields.answer``             | itself                                               |
| a list of statements there (MBPP's ``test_list``)        | mode ``assert``; ``test_setup_code`` as its prompt   |
| code with ``def check(`` there, ``entry_point`` (HumanEval's ``test``) | mode ``check``; ``prompt`` as its prompt |
| code with ``TestCase`` there                             | mode ``unittest``; ``entry_point``, if there is one  |

Whether the cases are good is the verifier's to say, before a run starts.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from typing import Any

from jurat.platform.canonical import canonical_json

SOLUTIONS = ("solution", "canonical_solution")
"""Columns with a program that passes, in this order."""
FENCED = "```python\n{}\n```"


def cases_text(value: Any, row: Mapping[str, Any], name: str) -> str:
    """The cases in column ``name`` of a row, as JSON text. Raises ValueError."""
    if isinstance(value, str) and value.lstrip().startswith("{"):
        try:
            value = json.loads(value)
        except ValueError:
            raise ValueError(f"field {name!r} begins like JSON and is none: write the cases as an object") from None
    if isinstance(value, Mapping):
        return canonical_json(dict(value))
    if isinstance(value, (list, tuple)) and all(isinstance(item, str) for item in value):
        return canonical_json({"mode": "assert", "tests": list(value), **_given(row, "test_setup_code")})
    if not isinstance(value, str):
        raise ValueError(
            f"field {name!r} holds {type(value).__name__}, expected cases: an object, statements or test code"
        )
    entry = row.get("entry_point")
    named = {"entry": entry} if isinstance(entry, str) and entry else {}
    if "def check(" in value:
        return canonical_json({"mode": "check", "test": value, **named, **_given(row, "prompt", entry)})
    if "TestCase" in value:
        return canonical_json({"mode": "unittest", "test": value, **named, **_given(row, "prompt", entry)})
    return canonical_json({"mode": "assert", "tests": [value], **named, **_given(row, "test_setup_code")})


def looks_like_cases(value: Any) -> bool:
    """Whether a column that another verifier could not read holds what ``cases_text`` takes."""
    if isinstance(value, str) and value.lstrip().startswith("{"):
        with contextlib.suppress(ValueError):
            value = json.loads(value)
    if isinstance(value, Mapping):
        return value.keys() & {"mode", "tests", "test", "inputs"} != set()
    items = list(value) if isinstance(value, (list, tuple)) else [value]
    found = [isinstance(each, str) and ("assert " in each or "def check(" in each) for each in items]
    return bool(found) and all(found)


def _given(row: Mapping[str, Any], column: str, entry: object = None) -> dict[str, str]:
    """The code that program and tests begin with; a ``prompt`` only if it is the head of the function that is asked for."""
    value = row.get(column)
    if not isinstance(value, str) or not value.strip() or (column == "prompt" and f"def {entry}" not in value):
        return {}
    return {"prompt": value}


def solution_of(columns: Mapping[str, Any]) -> str:
    """A completion that should pass, from the columns of a problem; '' where there is none."""
    found = next((columns[name] for name in SOLUTIONS if isinstance(columns.get(name), str)), "")
    return "" if not found.strip() else found if "```" in found else FENCED.format(found)
