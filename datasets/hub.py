"""Rows from the Hugging Face Hub: the one file that imports the library ``datasets``."""

from __future__ import annotations

from collections.abc import Iterator

from jurat.datasets.rows import BadRow, Row
from jurat.platform.errors import DataError


def rows(name: str, split: str) -> tuple[Iterator[Row | BadRow], str | None]:
    """(rows, licence) of ``owner/name[:config][@revision]``. Raises DataError: library absent, or the Hub says no."""
    try:
        import datasets
    except ImportError:
        raise DataError(
            f"{name!r} is not a local file, and reading from the Hub needs the library 'datasets'",
            where="data source", fix="pip install 'jurat[hub]', or give a .jsonl or .parquet file",
        ) from None  # fmt: skip
    path, _, revision = name.partition("@")
    path, _, config = path.partition(":")
    try:
        loaded = datasets.load_dataset(path, config or None, split=split, revision=revision or None)
    except (OSError, ValueError, datasets.exceptions.DatasetsError) as error:
        raise DataError(
            f"cannot load {name!r} from the Hub: {str(error)[:500]}", where=f"split {split!r}",
            fix="check name, config and split, or download the file and give its path",
        ) from None  # fmt: skip
    licence = loaded.info.license or None
    return (Row(f"{name}/{split}:{i}", dict(row)) for i, row in enumerate(loaded, start=1)), licence
