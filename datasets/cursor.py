"""The order in which a run asks its problems, and a place in it that survives a changed data set.

Within an epoch problems come in the order of ``hash(seed, epoch, id)``. That order needs no list: a problem's place
depends on its own id alone, so the cursor is the epoch and the last id drawn, and means the same after rows were added
or removed, where a count would skip or repeat some. With a curriculum each level is such a stream of its own.
"""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from jurat.datasets.curriculum import LevelState
from jurat.datasets.manifest import ids_digest
from jurat.platform.errors import DataError
from jurat.platform.randomness import generator
from jurat.platform.recipe import Curriculum
from jurat.platform.types import Problem, Visit

VERSION = 1


class _Stream:
    """Problems in epochs, each in its own order. ``last`` is the last id drawn in ``epoch``, '' before the first."""

    def __init__(self, seed: int, problems: Sequence[Problem]) -> None:
        self.seed, self.by_id = seed, {p.id: p for p in problems}
        self.seek(0, "")

    def seek(self, epoch: int, last: str) -> None:
        keys = sorted((self._key(epoch, i), i) for i in self.by_id)
        start = self._key(epoch, last) if last else b""
        self.epoch, self.last = epoch, last
        self._order = [i for key, i in keys if key > start]
        self._next = 0

    def draw(self) -> tuple[Problem, int]:
        """(problem, visit)."""
        while self._next == len(self._order):
            self.seek(self.epoch + 1, "")
        self.last = self._order[self._next]
        self._next += 1
        return self.by_id[self.last], self.epoch

    def _key(self, epoch: int, problem_id: str) -> bytes:
        return hashlib.blake2b(f"{self.seed}\x1f{epoch}\x1f{problem_id}".encode(), digest_size=16).digest()


class ShuffledSource:
    """Implements ``ProblemSource``: endless visits, reshuffled each epoch by (seed, epoch).

    A problem's visit number is the epoch of its stream, so a problem added later starts at the current epoch.
    Raises DataError for an empty set, a repeated id, or a curriculum over problems without ``columns["level"]``.
    """

    def __init__(self, problems: Sequence[Problem], seed: int, *, curriculum: Curriculum | None = None) -> None:
        if not problems:
            raise DataError("the data set is empty", where="training problems")
        if twice := [i for i, n in Counter(p.id for p in problems).items() if n > 1]:
            raise DataError(f"{len(twice)} ids are repeated, first {twice[0]}", where="training problems")
        self._seed, self._position = seed, 0
        self._data = _fingerprint(problems)
        self._levels: LevelState | None = None
        groups: dict[str, list[Problem]] = {"": list(problems)}
        if curriculum is not None:
            groups = defaultdict(list)
            for problem in problems:
                level = problem.columns.get("level")
                if not isinstance(level, int):
                    raise DataError(f"a curriculum needs a whole-number column 'level', got {level!r}",
                                    where=problem.source or problem.id, fix="leave data.curriculum out")  # fmt: skip
                groups[str(level)].append(problem)
            self._levels = LevelState.start(tuple(map(int, groups)), target=curriculum.target, window=curriculum.window)
        self._streams = {name: _Stream(seed, members) for name, members in sorted(groups.items())}

    @property
    def num_problems(self) -> int:
        return int(self._data["rows"])

    def draw(self, count: int) -> tuple[Visit, ...]:
        """The next ``count`` visits; a curriculum chooses levels from what was observed before this call."""
        return tuple(self._draw() for _ in range(count))

    def observe(self, level: int, mean_reward: float) -> None:
        """Tell the curriculum how a group of ``level`` went; nothing without one."""
        if self._levels is not None:
            self._levels = self._levels.observe(level, mean_reward)

    def open_levels(self) -> dict[int, float]:
        """{level: share of draws} now; empty without a curriculum."""
        return self._levels.weights() if self._levels is not None else {}

    def state(self) -> dict[str, Any]:
        """JSON, of a size that does not grow with the data set."""
        return {
            "version": VERSION, "seed": self._seed, "position": self._position, "data": self._data,
            "streams": {name: {"epoch": s.epoch, "last": s.last} for name, s in self._streams.items()},
            "curriculum": self._levels.to_json() if self._levels is not None else None,
        }  # fmt: skip

    def restore(self, state: Mapping[str, Any], *, allow_changed: bool = False) -> None:
        """Go on from ``state``. Raises DataError naming what differs if it was made with another data set.

        With ``allow_changed`` other problems are taken: those still ahead in this epoch's order are asked in it.
        """
        if state.get("version") != VERSION:
            raise DataError(f"cursor version {state.get('version')!r}, expected {VERSION}", where="data cursor")
        if state["seed"] != self._seed:
            raise DataError(f"the order was made with seed {state['seed']}, now {self._seed}", where="data cursor")
        if (state["curriculum"] is None) != (self._levels is None):
            had = "with" if state["curriculum"] else "without"
            raise DataError(f"the run was {had} a curriculum", where="data cursor")
        differs = _differences(state["data"], self._data)
        if differs and not allow_changed:
            raise DataError("the data set is not the one this run began with: " + "; ".join(differs),
                            where="data cursor", fix="bring the old data back, or start a new run")  # fmt: skip
        if not differs and set(state["streams"]) != set(self._streams):
            raise DataError("the cursor has other levels than the data", where="data cursor")
        for name, stream in self._streams.items():
            at = state["streams"].get(name, {"epoch": 0, "last": ""})
            stream.seek(int(at["epoch"]), str(at["last"]))
        self._position = int(state["position"])
        if self._levels is not None:
            saved = LevelState.from_json(state["curriculum"])
            self._levels = saved if saved.levels == self._levels.levels else _carry(saved, self._levels)

    def _draw(self) -> Visit:
        name = ""
        if self._levels is not None:
            weights = self._levels.weights()
            place = generator("datasets", "curriculum", self._seed, self._position).random()
            for level, weight in weights.items():
                name, place = str(level), place - weight
                if place < 0:
                    break
        problem, visit = self._streams[name].draw()
        position, self._position = self._position, self._position + 1
        return Visit(problem=problem, visit=visit, position=position)


def _fingerprint(problems: Sequence[Problem]) -> dict[str, Any]:
    """Rows and digest of the whole and of each file in it: enough to name what changed."""
    parts: dict[str, list[str]] = defaultdict(list)
    for p in problems:
        parts[p.source.rpartition(":")[0]].append(p.id)
    return {
        "rows": len(problems), "digest": ids_digest(p.id for p in problems),
        "parts": {name: {"rows": len(ids), "digest": ids_digest(ids)} for name, ids in sorted(parts.items())},
    }  # fmt: skip


def _differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    if old["digest"] == new["digest"]:
        return []
    said = [f"{old['rows']} problems then, {new['rows']} now"]
    for name in sorted(set(old["parts"]) | set(new["parts"])):
        was, now = old["parts"].get(name), new["parts"].get(name)
        title = name or "unnamed source"
        if was is None:
            said.append(f"{title}: {now['rows']} problems are new")
        elif now is None:
            said.append(f"{title}: all {was['rows']} problems are gone")
        elif was["digest"] != now["digest"]:
            said.append(f"{title}: {was['rows']} problems then, {now['rows']} now, and not the same ones")
    return said


def _carry(saved: LevelState, fresh: LevelState) -> LevelState:
    """What was observed of the levels that are still there."""
    for level, means in sorted(saved.recent.items()):
        if level in fresh.levels:
            for mean in means:
                fresh = fresh.observe(level, mean)
    return fresh
