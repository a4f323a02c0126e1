"""A run in one file, and a copied run's folder: both can be opened where the database is not.

A bundle is an uncompressed tar: ``bundle.json`` (format, run, size and sha256 of every member), ``record.json``,
``metrics.parquet``, then the files of the run's folder under ``files/``. What is in the folder as ``record.json`` and
``metrics.parquet`` is written when a run ends, so that a plain copy of the folder opens too.

A bundle comes from anywhere: plain files only, under names and sizes that are checked, into a folder of its own, which
takes its place when every digest is as said. What a bundle says of itself is believed only as far as a digest goes: a run
that was taken in is marked ``imported``, and no service goes on with it or forks it.
"""

from __future__ import annotations

import dataclasses
import io
import json
import os
import re
import secrets
import shutil
import tarfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError

from jurat.platform.canonical import digest
from jurat.platform.db.engine import in_memory
from jurat.platform.db.upgrade import upgrade
from jurat.platform.errors import DataError, RunFailed
from jurat.platform.provenance import folders, lineage, points, record
from jurat.platform.runs.disk import opened
from jurat.platform.runs.gc import IMPORTED
from jurat.platform.runs.records import RunInfo
from jurat.platform.runs.rollouts import sync_folder
from jurat.platform.runs.store import Store

FORMAT = 1
RECORD, METRICS, INDEX = "record.json", "metrics.parquet", "bundle.json"
MAX_FILES, MAX_BYTES, MAX_INDEX, MAX_TEXT, MAX_HEADER = 100_000, 1 << 40, 64 << 20, 1 << 30, 64 << 10
"""Files and bytes of a bundle; bytes of its index, of its record or metrics, and of an extended header of the archive."""
_PIECE = 1 << 20
_NAME = re.compile(r"files(/[A-Za-z0-9][A-Za-z0-9._-]{0,127}){1,8}")
_RUN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_LEFT_OUT = frozenset({RECORD, METRICS, "lock", "holder.json"})


def write_record(store: Store, run: RunInfo) -> None:
    """Keep in the run's folder what the database says of it. Raises OSError, RunFailed."""
    said, table = store.read(lambda connection: (record.read(connection, run), points.table(connection, run.pk)))
    draft = run.folder / f".{METRICS}.tmp"
    points.write_parquet(table, draft)
    os.replace(draft, run.folder / METRICS)
    draft = run.folder / f".{RECORD}.tmp"
    draft.write_text(json.dumps(said, sort_keys=True), "utf-8")
    os.replace(draft, run.folder / RECORD)


def open_copy(folder: Path) -> tuple[Store, RunInfo]:
    """A store of this one run, in memory, read from a copy of its folder. Raises DataError."""
    try:
        with opened(folder / RECORD) as file, opened(folder / METRICS) as points_:
            said, measured = json.loads(file.read()), points_.read()
    except (OSError, ValueError) as error:
        raise DataError(
            f"this is no folder of a run that ended: {error}",
            where=str(folder),
            fix="give a run's name, or import a bundle",
        ) from None
    engine = in_memory()
    upgrade(engine)
    store = Store(engine, folder.absolute().parent)
    store.runs_folder = folder.absolute().parent
    _put(store, said, measured, folder.absolute(), lambda: None)
    run = store.run(str(said["run"]["id"]))
    return store, dataclasses.replace(run, folder=folder.absolute())


def _put(store: Store, said: Mapping[str, Any], measured: bytes, folder: Path, last: Callable[[], None]) -> None:
    def put(connection: sa.Connection) -> None:
        pk = record.write(connection, said, folder)
        points.put_back(connection, pk, measured, str(folder))
        last()

    try:
        store.write(put)
    except (SQLAlchemyError, RunFailed, *_TOO_MUCH) as error:
        cause = getattr(error, "orig", None) or getattr(error, "what", error)
        raise DataError(f"the record cannot be taken in: {str(cause).strip()[:300]}", where=str(folder)) from None


# ---- out ---------------------------------------------------------------------------------------------------------


def export(store: Store, run: RunInfo, out: Path, *, weights: bool = True) -> int:
    """Write the bundle of a run; its size in bytes. ``weights`` False leaves the checkpoints' tensors out.

    Two bundles of one record are the same bytes. Raises RunFailed where it cannot be written, or is there already.
    """
    if out.exists():
        raise RunFailed("the file is there already", where=str(out), fix="choose another name")
    draft = out.with_name(f".{out.name}.{os.getpid()}.tmp")
    try:
        with draft.open("wb") as file:
            file.writelines(pieces(store, run, weights=weights))
        os.replace(draft, out)
    except OSError as error:
        draft.unlink(missing_ok=True)
        raise RunFailed(f"cannot write the bundle: {error}", where=str(out), fix="look for room on the disk") from None
    sync_folder(out.absolute().parent)
    return out.stat().st_size


def pieces(store: Store, run: RunInfo, *, weights: bool = True) -> Iterator[bytes]:
    """The bundle of a run, a piece at a time: no second copy of it is needed. Everything is read twice, to be hashed first.

    Raises OSError where a file goes or changes its size meanwhile; what was made until then no importer takes.
    """
    said, table = store.read(lambda connection: (record.read(connection, run), points.table(connection, run.pk)))
    if not weights:
        said["run"]["meta"] = {**said["run"]["meta"], lineage.NO_WEIGHTS: True}
    sink = io.BytesIO()
    points.write_parquet(table, sink)
    texts = {RECORD: json.dumps(said, sort_keys=True).encode(), METRICS: sink.getvalue()}
    del said, table, sink  # a slow reader may take hours for the rest
    files = dict(_files(run.folder, weights=weights))
    sizes = {name: len(data) for name, data in texts.items()}
    sizes |= {name: path.stat().st_size for name, path in files.items()}
    digests = {name: digest(data) for name, data in texts.items()}
    digests |= {name: folders.file_digest(path) for name, path in files.items()}
    listed = {name: [size, digests[name]] for name, size in sizes.items()}
    index = {"format": FORMAT, "run": run.id, "files": listed}
    made = 0
    for name, data in {INDEX: json.dumps(index, sort_keys=True).encode(), **texts}.items():
        for piece in (_header(name, len(data)), data, bytes(-len(data) % tarfile.BLOCKSIZE)):
            made += len(piece)
            yield piece
    for name, path in files.items():
        size = sizes[name]
        yield (head := _header(name, size))
        made += len(head)
        with path.open("rb") as file:
            left = size
            while piece := file.read(min(_PIECE, left)):
                left -= len(piece)
                yield piece
        if left:
            raise OSError(f"{name} has lost {left} bytes since it was hashed")
        yield bytes(-size % tarfile.BLOCKSIZE)
        made += size + -size % tarfile.BLOCKSIZE
    yield bytes(2 * tarfile.BLOCKSIZE + -(made + 2 * tarfile.BLOCKSIZE) % tarfile.RECORDSIZE)


def _header(name: str, size: int) -> bytes:
    info = tarfile.TarInfo(name)
    info.size, info.mode = size, 0o644
    return info.tobuf(tarfile.PAX_FORMAT)


def _files(folder: Path, *, weights: bool) -> Iterator[tuple[str, Path]]:
    for path in sorted(folder.rglob("*")):
        relative = path.relative_to(folder)
        hidden = any(part.startswith(".") for part in relative.parts) or relative.as_posix() in _LEFT_OUT
        if path.is_symlink() or not path.is_file() or hidden or (not weights and path.suffix == ".safetensors"):
            continue
        name = f"files/{relative.as_posix()}"
        if _NAME.fullmatch(name):
            yield name, path


# ---- in ----------------------------------------------------------------------------------------------------------


def take_in(store: Store, bundle: Path) -> RunInfo:
    """The run of a bundle, now one of this home's: all of it or, if this raises, nothing. Raises DataError, NameTaken."""
    draft = store.runs_folder / f".import-{secrets.token_hex(6)}"
    draft.mkdir(parents=True)
    try:
        with bundle.open("rb") as file, tarfile.open(fileobj=file, mode="r|", tarinfo=_Header) as tar:
            index, texts = _unpack(tar, draft, str(bundle))
        run_id = str(index["run"])
        if not _RUN.fullmatch(run_id) or run_id == "latest":
            raise DataError(f"{run_id!r} cannot name a run", where=str(bundle))
        store.refuse_taken(run_id)
        said = json.loads(texts[RECORD])
        if said["run"]["id"] != run_id:
            raise DataError(f"the bundle is of run {run_id}, its record of {said['run']['id']!r}", where=str(bundle))
        said["run"]["meta"] = {**said["run"]["meta"], "imported": True, "home": store.home_id}
        final = store.runs_folder / run_id
        if final.exists() and not (final / IMPORTED).exists():
            raise DataError("the folder is there already", where=str(final), fix="import it into another --home")
        (draft / IMPORTED).touch()

        def last() -> None:
            """The row is written and nobody sees it yet, so no other import is at work on this name."""
            if (final / IMPORTED).exists():  # of one that was killed after this point
                shutil.rmtree(final)
            draft.rename(final)
            sync_folder(store.runs_folder)

        _put(store, said, texts[METRICS], final, last)
        (final / IMPORTED).unlink()
        return store.run(run_id)
    except (OSError, tarfile.TarError, ValueError, LookupError, TypeError, AttributeError, *_TOO_MUCH) as error:
        raise DataError(f"not a bundle: {type(error).__name__}: {error}"[:500], where=str(bundle)) from None
    finally:
        shutil.rmtree(draft, ignore_errors=True)


_TOO_MUCH = (RecursionError, OverflowError)
"""What numbers and nesting beyond all bounds raise."""


class _Header(tarfile.TarInfo):
    """A header that is looked at before anything that it announces is read: a plain file, or a short list of long names."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> _Header:
        made = super().frombuf(buf, encoding, errors)
        plain = made.type in (tarfile.REGTYPE, tarfile.AREGTYPE)
        if not plain and not (made.type == tarfile.XHDTYPE and made.size <= MAX_HEADER):
            raise DataError(f"{made.name[:200]!r} is no plain file", where="bundle")
        return made


def _unpack(tar: tarfile.TarFile, draft: Path, where: str) -> tuple[Mapping[str, Any], dict[str, bytes]]:
    """(index, {record, metrics}); the run's files are under ``draft``. Every member is as the index says."""
    index: dict[str, Any] = {}
    texts: dict[str, bytes] = {}
    seen: set[str] = set()
    for member in tar:
        name, first = member.name, not seen
        if not member.isreg() or member.sparse is not None or name in seen:
            raise DataError(f"{name[:200]!r} is no plain file, or is there twice", where=where)
        if first != (name == INDEX) or not (name in (INDEX, RECORD, METRICS) or _NAME.fullmatch(name)):
            raise DataError(f"a bundle holds no member {name[:200]!r} here", where=where)
        seen.add(name)
        source = tar.extractfile(member)
        assert source is not None
        if first:
            if member.size > MAX_INDEX:
                raise DataError(f"{INDEX} has {member.size} bytes", where=where)
            index = json.loads(source.read())
            _check_index(index, where)
            continue
        size, wanted = index["files"].get(name, (None, None))
        if size != member.size:
            raise DataError(f"{name!r} has {member.size} bytes, {INDEX} says {size}", where=where)
        if name in (RECORD, METRICS):
            if member.size > MAX_TEXT:
                raise DataError(f"{name} has {member.size} bytes, at most {MAX_TEXT} are read", where=where)
            texts[name] = source.read()
            found = digest(texts[name])
        else:
            target = draft / name.removeprefix("files/")
            target.parent.mkdir(parents=True, exist_ok=True)
            _copy(source, target)
            found = folders.file_digest(target)
        if found != wanted:
            raise DataError(
                f"{name!r} is damaged: its digest is {found[:19]}..., {INDEX} says {str(wanted)[:19]}...", where=where
            )
    if missing := sorted({INDEX, *index.get("files", {})} - seen):
        raise DataError(f"{missing[0]!r} is missing: the bundle was cut", where=where, fix="copy it again")
    return index, texts


def _check_index(index: Mapping[str, Any], where: str) -> None:
    files = index["files"]
    if index["format"] != FORMAT:
        raise DataError(f"the bundle has format {index['format']!r}, this version reads {FORMAT}", where=where)
    if len(files) > MAX_FILES or sum(size for size, _ in files.values()) > MAX_BYTES:
        raise DataError(f"a bundle holds at most {MAX_FILES} files and {MAX_BYTES} bytes", where=where)
    if not {RECORD, METRICS} <= set(files):
        raise DataError(f"{RECORD} or {METRICS} is missing", where=where)


def _copy(source: IO[bytes], target: Path) -> None:
    with target.open("xb") as file:
        shutil.copyfileobj(source, file, 1 << 20)
