"""A table of named things: explicit, refuses duplicates, and an unknown name is answered with the nearest known one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar

from jurat.platform.errors import ConfigError, nearest

T = TypeVar("T")


class Registry(Generic[T]):
    """Example: ``table = Registry[int]("number"); table.add("one", 1); table["one"] == 1``."""

    def __init__(self, noun: str) -> None:
        self._noun = noun
        self._items: dict[str, T] = {}

    def add(self, name: str, item: T, *, where: str = "", replace: bool = False) -> T:
        """``item``, now known by ``name``. Raises ConfigError if the name is taken."""
        if name in self._items and not replace:
            raise ConfigError(
                f"{self._noun} {name!r} is registered twice", where=where, fix="give one of them another name"
            )
        self._items[name] = item
        return item

    def discard(self, name: str) -> None:
        """Forget ``name`` if it is known."""
        self._items.pop(name, None)

    def __getitem__(self, name: str) -> T:
        try:
            return self._items[name]
        except KeyError:
            raise unknown(self._noun, name, self._items) from None

    def __contains__(self, name: object) -> bool:
        return name in self._items

    def __iter__(self) -> Iterator[str]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)


def unknown(noun: str, name: str, known: object, *, where: str = "") -> ConfigError:
    """The error for a name that nobody registered."""
    names = sorted(str(item) for item in known) if hasattr(known, "__iter__") else []
    return ConfigError(f"unknown {noun} {name!r}.{nearest(name, names)}", where=where, fix=f"known: {', '.join(names)}")
