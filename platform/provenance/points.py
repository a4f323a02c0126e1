"""A run's metrics as one file: Parquet or CSV, complete and the same bytes each time; and back from Parquet."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import sqlalchemy as sa

from jurat.platform.db import tables as t
from jurat.platform.errors import DataError
from jurat.platform.runs import ingest, metrics
from jurat.platform.runs.metrics import spans
from jurat.platform.runs.records import Segment

SCHEMA = pa.schema(
    [("segment", pa.int32()), ("stage", pa.string()), ("step", pa.int64()), ("name", pa.string()), ("value", pa.float64()),
     ("at", pa.int64()), ("canonical", pa.bool_())]
)  # fmt: skip
_CHUNK = 200_000


def table(connection: sa.Connection, run_pk: int) -> pa.Table:
    """Every point, superseded ones too (``canonical`` false), by segment, name and step."""
    s = t.segment.c
    rows = connection.execute(sa.select(t.segment).where(s.run_pk == run_pk).order_by(s.no)).mappings()
    segments = [Segment(**{key: row[key] for key in Segment.__slots__}) for row in rows]
    counts = {span.segment: span.last for span in spans(segments)}
    names = dict(connection.execute(sa.select(t.metric_key.c.pk, t.metric_key.c.name)).all())  # type: ignore[arg-type]
    p = t.metric_point.c
    parts = []
    for each in segments:
        query = sa.select(p.key_pk, p.step, p.value, p.at).where(p.run_pk == run_pk, p.segment == each.no)
        found = connection.execute(query, execution_options={"stream_results": True})
        columns: list[list[Any]] = [[], [], [], []]
        while chunk := found.fetchmany(_CHUNK):
            for column, values in zip(columns, zip(*chunk, strict=True), strict=True):
                column.extend(values)
        parts.append(_part(each, columns, names, each.no in counts, counts.get(each.no)))
    made = pa.concat_tables(parts) if parts else SCHEMA.empty_table()
    return made.sort_by([("segment", "ascending"), ("name", "ascending"), ("step", "ascending")])


def _part(each: Segment, columns: list[list[Any]], names: dict[int, str], counted: bool, last: int | None) -> pa.Table:
    keys, steps, values, at = columns
    numbers = pa.array(steps, pa.int64())
    known = sorted(set(keys))
    places = {key: place for place, key in enumerate(known)}
    named = pa.DictionaryArray.from_arrays(
        pa.array([places[key] for key in keys], pa.int32()), pa.array([names[key] for key in known], pa.string())
    ).cast(pa.string())
    canonical = [counted and (last is None or step < last) for step in steps]
    real = pa.array([math.nan if value is None else value for value in values], pa.float64())
    constant = [pa.array([each.no] * len(steps), pa.int32()), pa.array([each.stage] * len(steps), pa.string())]
    return pa.Table.from_arrays(
        [*constant, numbers, named, real, pa.array(at, pa.int64()), pa.array(canonical, pa.bool_())], schema=SCHEMA
    )


def write_parquet(made: pa.Table, path: Path | io.BytesIO) -> None:
    pq.write_table(made, path, compression="zstd", use_dictionary=["stage", "name"])


def write_csv(made: pa.Table, path: Path) -> None:
    """A text cell that a spreadsheet would take for a formula begins with an apostrophe."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(made.column_names)
        for batch in made.to_batches(max_chunksize=_CHUNK):
            columns = [batch.column(place).to_pylist() for place in range(batch.num_columns)]
            writer.writerows(zip(*[_cells(column) for column in columns], strict=True))


def _cells(column: list[Any]) -> list[Any]:
    if column and isinstance(column[0], bool):
        return [str(cell).lower() for cell in column]
    return [harmless(cell) if isinstance(cell, str) else cell for cell in column]


def harmless(cell: str) -> str:
    return "'" + cell if cell[:1] in ("=", "+", "-", "@", "\t", "\r") else cell


def read(data: bytes, where: str) -> Iterator[list[tuple[int, int, int, str, float | None]]]:
    """Chunks of points as ``ingest.insert_points`` takes them. Raises DataError."""
    try:
        file = pq.ParquetFile(io.BytesIO(data), page_checksum_verification=True)
        if file.schema_arrow.names != SCHEMA.names:
            raise DataError(f"metrics have columns {SCHEMA.names}, got {file.schema_arrow.names}", where=where)
        for batch in file.iter_batches(batch_size=20_000):
            said = batch.to_pydict()
            yield [
                (segment, step, at, name, None if math.isnan(value) else value)
                for segment, step, at, name, value in zip(
                    said["segment"], said["step"], said["at"], said["name"], said["value"], strict=True
                )
            ]
    except (pa.ArrowException, OSError, TypeError) as error:
        raise DataError(f"metrics cannot be read: {error}", where=where) from None


def put_back(connection: sa.Connection, run_pk: int, data: bytes, where: str) -> None:
    for chunk in read(data, where):
        ingest.insert_points(connection, run_pk, chunk)
    metrics.superseded(connection, run_pk)
