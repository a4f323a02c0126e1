"""Errors for people: what happened, where, what was expected, how to fix it.

| class           | exit code | meaning                                              |
|-----------------|-----------|------------------------------------------------------|
| RunFailed       | 1         | the run could not go on (disk, non-finite loss, ...) |
| ConfigError     | 2         | recipe, option or argument                           |
| DataError       | 2         | a row or a data set                                  |
| ModelError      | 2         | a model folder                                       |
| GateFailed      | 3         | a threshold given by the user was not met            |
| RewardDrift     | 4         | the reward is not the one the run began with         |
| SchemaError     | 5         | the database has another schema                      |
| FencedOut       | 75        | another process holds the run                        |
| Interrupted     | 130       | Ctrl-C                                               |

A bad sample is data (a Verdict), never one of these.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import ClassVar


class JuratError(Exception):
    """Printed as three lines: what, where, how to fix."""

    exit_code: ClassVar[int] = 1

    def __init__(self, what: str, *, where: str = "", fix: str = "") -> None:
        super().__init__(what)
        self.what, self.where, self.fix = what, where, fix

    def __str__(self) -> str:
        lines = [self.what]
        if self.where:
            lines.append(f"  where: {self.where}")
        if self.fix:
            lines.append(f"  fix: {self.fix}")
        return "\n".join(lines)

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (type(self), self.what, self.where, self.fix))


def _rebuild(cls: type[JuratError], what: str, where: str, fix: str) -> JuratError:
    return cls(what, where=where, fix=fix)


class RunFailed(JuratError):
    exit_code = 1


class ConfigError(JuratError):
    exit_code = 2


class NameTaken(ConfigError):
    """There is a run of that name."""


class DataError(JuratError):
    exit_code = 2


class ModelError(JuratError):
    exit_code = 2


class GateFailed(JuratError):
    exit_code = 3


class RewardDrift(JuratError):
    exit_code = 4


class SchemaError(JuratError):
    exit_code = 5


class FencedOut(JuratError):
    exit_code = 75


class Interrupted(JuratError):
    exit_code = 130


SET_UP = ("train", "lora", "ray", "demo", "api", "postgres", "plot", "dev")
"""Extras that ``make setup`` installs."""


def install(*extras: str) -> str:
    """How to get extras of jurat: from its checkout, as long as there is no release. For the ``fix`` of an error."""
    pip = f"pip install -e '.[{','.join(extras)}]' in the checkout of jurat"
    return f"make setup, or {pip}" if set(extras) <= set(SET_UP) else pip


def nearest(name: str, known: Iterable[str]) -> str:
    """``" Did you mean 'dapo'?"`` or an empty string."""
    found = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f" Did you mean {found[0]!r}?" if found else ""
