"""Services that listen: an open one on SQLite for a whole file, one on each database for a test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from jurat.api.server.service import Settings
from services import Served, listening


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Without a key and without a launcher."""
    with listening(Settings(home=tmp_path_factory.mktemp("served"))) as made:
        yield made


@pytest.fixture
def each(database_url: str, tmp_path: Path) -> Iterator[Served]:
    """The same, on each database."""
    with listening(Settings(home=tmp_path / "home", database=database_url)) as made:
        yield made
