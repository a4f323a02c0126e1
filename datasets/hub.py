"""Rows from the Hugging Face Hub: the one file that imports the library ``datasets``."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType

from jurat.datasets.rows import BadRow, Row
from jurat.platform.errors import DataError, install

EVERY_CONFIG = "*"


def rows(name: str, split: str) -> tuple[Iterator[Row | BadRow], str | None]:
    """(rows, licence) of ``owner/name[:config][@revision]``; the config ``*`` is all of them, one after another.

    Raises DataError: the library is absent, the Hub says no, or one of several configs must be named.
    """
    hub = _library(name)
    path, _, revision = name.partition("@")
    path, _, config = path.partition(":")
    revisions = revision or None
    try:
        configs: list[str | None] = [config or None]
        if config in ("", EVERY_CONFIG):
            known = list(hub.get_dataset_config_names(path, revision=revisions))
            if not config and len(known) > 1 and "default" not in known:
                raise DataError(
                    f"{name!r} has several configs: {', '.join(known[:20])}", where="data source",
                    fix=f"name one after a colon, as in {path}:{known[0]}, or all of them with {path}:{EVERY_CONFIG}",
                )  # fmt: skip
            configs = list(known) if config else [None]
        loaded = [hub.load_dataset(path, c, split=split, revision=revisions) for c in configs]
    except (OSError, ValueError, hub.exceptions.DatasetsError) as error:
        raise DataError(
            f"cannot load {name!r} from the Hub: {str(error)[:500]}", where=f"split {split!r}",
            fix="check name, config and split, or download the file and give its path",
        ) from None  # fmt: skip
    licence = loaded[0].info.license or None

    def walk() -> Iterator[Row | BadRow]:
        for config_name, part in zip(configs, loaded, strict=True):
            label = f"{path}:{config_name}" if config_name else path
            for number, row in enumerate(part, start=1):
                yield Row(f"{label}/{split}:{number}", dict(row))

    return walk(), licence


def _library(name: str) -> ModuleType:
    try:
        import datasets
    except ImportError:
        found = None
    else:
        found = datasets
    # In the root of jurat's own checkout a bare ``import datasets`` without the library finds this room's folder.
    if found is None or not hasattr(found, "load_dataset"):
        raise DataError(
            f"{name!r} is not a local file, and reading from the Hub needs the library 'datasets'",
            where="data source", fix=f"{install('hub')}; or give a .jsonl or .parquet file",
        )  # fmt: skip
    return found  # type: ignore[no-any-return]
