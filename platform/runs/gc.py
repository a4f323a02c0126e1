"""Rubbish: what no record names and what a deleted run left. What the lineage of anything needs stays.

Removed are, a day after they were written: drafts of files, parts of rollouts that no row names, contents (blobs) that nothing
refers to; and of a run that was deleted long enough ago its rollouts, metric points, logs, and checkpoints but those that
another run began from. Its row, segments, events, checkpoints' digests and edges stay, so every question of lineage is
answered as before.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import sqlalchemy as sa

from jurat.platform.db import tables as t
from jurat.platform.db.clock import now
from jurat.platform.runs import events, rollouts
from jurat.platform.runs.leases import run_of
from jurat.platform.runs.records import RunInfo
from jurat.platform.runs.spool import Spool
from jurat.platform.runs.states import ENDED
from jurat.platform.runs.store import Store

GRACE_SECONDS = 86_400.0
"""A file that was written less long ago may be about to get its row."""
KEPT_DAYS = 30.0
"""How long a deleted run keeps its files."""
_DRAFTS = (".import-*", ".upload-*")
_OF_RUN = (
    *(table for name, table in t.metadata.tables.items() if name.startswith("metric_") and "run_pk" in table.c),
    t.data_part,
    t.part_index,
)
"""Rows that go with a deleted run's files."""
IMPORTED = ".import"
"""In the folder of a run that is being taken in, until its row is there."""
REFERS = (t.verifier_observation.c.vector,)
"""Columns that name a blob without a foreign key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rubbish:
    kind: str
    """draft, part, blob, token or run."""
    name: str
    bytes: int


def collect(
    store: Store, *, dry_run: bool = False, grace: float = GRACE_SECONDS, kept_days: float = KEPT_DAYS
) -> list[Rubbish]:
    """What was removed or, with ``dry_run``, would be. A service and trainers may go on meanwhile. Raises OSError, RunFailed."""
    with store.engine.connect() as connection:
        rows = [dict(row) for row in connection.execute(sa.select(t.run)).mappings()]
        at = now(connection)
    here = [row for row in rows if row["meta"].get("home", store.home_id) == store.home_id]
    runs = {row["id"]: run_of(row, store.runs_folder) for row in here}
    found: list[Rubbish] = []
    drafts = {each for pattern in _DRAFTS for each in store.runs_folder.glob(pattern)}
    cut = {
        mark.parent for mark in store.runs_folder.glob(f"*/{IMPORTED}")
    }  # an import that was killed before its row was there
    for path in sorted(drafts | {each for each in cut if each.name not in {row["id"] for row in rows}}):
        if _age(path) > grace:
            found.append(Rubbish(kind="draft", name=path.name, bytes=_size(path)))
            if not dry_run:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
    for run in runs.values():
        if run.deleted_at is not None and run.state in ENDED and at - run.deleted_at >= kept_days * 86_400e6:
            found += _run(store, run, dry_run=dry_run)
        elif run.state in ENDED and Spool(run.folder).empty():
            found += _parts(store, run, grace, dry_run=dry_run)
    return found + _rows(store, grace, dry_run=dry_run)


def _parts(store: Store, run: RunInfo, grace: float, *, dry_run: bool) -> Iterator[Rubbish]:
    """Of a run that nobody works on and whose facts are all recorded: one that goes on takes up its own parts."""
    known = frozenset(part.path for part in store.parts(run, kind=None, canonical=False))
    folders = (*rollouts.FOLDERS.values(), rollouts.RESCORES)
    drafts = [(path.relative_to(run.folder).as_posix(), path) for path in rollouts.drafts(run.folder, folders)]
    for relative, path in [*rollouts.uncatalogued(run.folder, known, folders), *drafts]:
        if _age(path) > grace:
            yield Rubbish(kind="part", name=f"{run.id}/{relative}", bytes=_size(path))
            if not dry_run:
                path.unlink(missing_ok=True)


def _run(store: Store, run: RunInfo, *, dry_run: bool) -> list[Rubbish]:
    log = store.home / "logs" / f"{run.id}.log"

    def sort(connection: sa.Connection) -> list[Path] | None:
        """Files that go; None where nothing does."""
        needed = _needed(connection, run)
        files = [path for path in (*_files(run.folder, needed), log) if path.is_file()]
        return files if files or any(_holds(connection, table, run.pk) for table in _OF_RUN) else None

    def forget(connection: sa.Connection) -> list[Path] | None:
        """As ``sort``, of this moment: a fork that was made since keeps its checkpoint."""
        files = sort(connection)
        if files is not None:
            for table in _OF_RUN:
                connection.execute(sa.delete(table).where(table.c.run_pk == run.pk))
            payload = {"files": len(files), "bytes": sum(map(_size, files))}
            events.add(connection, run.pk, "collected", payload, at=now(connection))
        return files

    gone = store.read(sort)
    if gone is not None and not dry_run:
        gone = store.write(forget)  # first: a row without its file would be a fault of the record
    if gone is None:
        return []
    made = Rubbish(kind="run", name=run.id, bytes=sum(map(_size, gone)))
    if not dry_run:
        for path in gone:
            path.unlink(missing_ok=True)
        for folder in sorted((path for path in run.folder.rglob("*") if path.is_dir()), reverse=True):
            with suppress(OSError):  # something is left in it
                folder.rmdir()
        with suppress(OSError):
            run.folder.rmdir()
    return [made]


def _needed(connection: sa.Connection, run: RunInfo) -> list[Path]:
    """Folders of its checkpoints that another run began from, unless that one was deleted too."""
    c, e, r = t.checkpoint.c, t.edge.c, t.run.c
    live = sa.select(r.id).where(r.deleted_at.is_(None), r.pk != run.pk)
    begun = sa.select(e.src).where(e.src_kind == "checkpoint", e.run_id.in_(live))
    forks = sa.select(r.from_checkpoint).where(r.deleted_at.is_(None), r.pk != run.pk, r.from_checkpoint.is_not(None))
    query = sa.select(c.path).where(c.run_pk == run.pk, sa.or_(c.digest.in_(begun), c.digest.in_(forks)))
    return [Path(path) for path in connection.execute(query).scalars()]


def _files(folder: Path, needed: list[Path]) -> Iterator[Path]:
    for path in folder.rglob("*"):
        if (path.is_file() or path.is_symlink()) and not any(path.is_relative_to(each) for each in needed):
            yield path


def _holds(connection: sa.Connection, table: sa.Table, run_pk: int) -> bool:
    return connection.execute(sa.select(sa.literal(1)).where(table.c.run_pk == run_pk).limit(1)).first() is not None


def _rows(store: Store, grace: float, *, dry_run: bool) -> list[Rubbish]:
    """Blobs that nothing refers to, and tokens of runs that are long expired."""
    b, k = t.blob.c, t.api_key.c
    keyed = [key.parent for table in t.metadata.tables.values() for key in table.foreign_keys if key.column is b.digest]
    used = [sa.select(column).where(column.is_not(None)) for column in (*keyed, *REFERS)]

    def sweep(connection: sa.Connection) -> list[Rubbish]:
        before = now(connection) - int(grace * 1e6)
        loose = sa.and_(b.created < before, *(b.digest.not_in(each) for each in used))
        over = sa.and_(k.run_id.is_not(None), k.expires < before)
        made = [Rubbish(kind="blob", name=row.digest, bytes=row.size)
                for row in connection.execute(sa.select(b.digest, b.size).where(loose).order_by(b.digest))]  # fmt: skip
        made += [Rubbish(kind="token", name=f"{row.key_id} of {row.run_id}", bytes=0)
                 for row in connection.execute(sa.select(k.key_id, k.run_id).where(over).order_by(k.key_id))]  # fmt: skip
        if not dry_run:
            connection.execute(sa.delete(t.blob).where(loose))
            connection.execute(sa.delete(t.api_key).where(over))
        return made

    return store.read(sweep) if dry_run else store.write(sweep)


def _age(path: Path) -> float:
    return time.time() - path.lstat().st_mtime


def _size(path: Path) -> int:
    """Of a file or a folder, in bytes."""
    if path.is_dir() and not path.is_symlink():
        return sum(each.lstat().st_size for each in path.rglob("*") if each.is_file())
    return path.lstat().st_size
