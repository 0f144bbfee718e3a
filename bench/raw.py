"""The raw limit: what the database itself can do, with nobody asking any questions.

Raw means: rows that are finished before the clock starts (keys, hashes, sequence numbers and all) go into a
table with the columns of the log's `event` table, as many to a commit as the target says, from one
connection, with nothing else to do. They have the same sizes as ours. Durability and tuning are the same as
ours too: SQLite in WAL with synchronous=FULL, the same page cache, a checkpoint every 4000 pages; Postgres
with fsync on. The uniqueness that the contract demands is there for every row.

On SQLite there are two ways to lay such a table out, and both are shown:

- BY_RUN: clustered by (run, seq), as the design of the log has it and as one would do it at first; 1000 rows
  a commit come from 512 runs in turn. The floors are set against this one.
- BY_COMMIT: in the order of commits, with plain indexes, rows of as many runs as our side has callers. This is
  how the log does it, because it is up to three times faster; what our checks cost shows best against it.
  It has no floor.

What raw leaves out is all that the Append Authority is for: decoding, checking, deduplicating, judging
transitions, chaining hashes, keeping the run's summary, answering each caller.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw

from runwright.log.sqlite_writer import CHECKPOINT_PAGES

from .samples import Sample
from .stopwatch import Stopwatch

COLUMNS = (  # name, type in SQLite, type in Postgres
    ("run_key", "INTEGER NOT NULL", "bigint"),
    ("run_seq", "INTEGER NOT NULL", "bigint"),
    ("event_id", "BLOB NOT NULL", "bytea"),
    ("event_type", "TEXT NOT NULL", "text"),
    ("schema_version", "INTEGER NOT NULL", "integer"),
    ("step_id", "TEXT", "text"),
    ("engine_attempt_id", "INTEGER NOT NULL", "integer"),
    ("logical_attempt_id", "INTEGER NOT NULL", "integer"),
    ("idempotency_key", "BLOB NOT NULL", "bytea"),
    ("emitted_at", "TEXT NOT NULL", "text"),
    ("persisted_at", "INTEGER NOT NULL", "bigint"),
    ("emitted_by", "TEXT", "text"),
    ("foreign_event_id", "TEXT", "text"),
    ("traceparent", "TEXT", "text"),
    ("payload", "BLOB", "bytea"),
    ("payload_digest", "BLOB", "bytea"),
    ("hash", "BLOB NOT NULL", "bytea"),
)
BY_RUN, BY_COMMIT = "by run", "by commit"
UNIQUE = ("run_key, run_seq", "run_key, idempotency_key", "run_key, event_id")

_NAMES = ", ".join(name for name, _, _ in COLUMNS)
_SQLITE_INSERT = f"INSERT INTO raw ({_NAMES}) VALUES ({', '.join('?' for _ in COLUMNS)})"
_POSTGRES_INSERT = (
    f"INSERT INTO raw ({_NAMES}) SELECT * FROM unnest("
    + ", ".join(f"${number}::{kind}[]" for number, (_, _, kind) in enumerate(COLUMNS, 1))
    + ")"
)


def sqlite(path: Path, sample: Sample, rows_a_commit: int, layout: str) -> float:
    """Events a second, into a new file."""
    connection = apsw.Connection(str(path))
    cursor = connection.cursor()
    for pragma in ("journal_mode = WAL", "synchronous = FULL", "cache_size = -32768", "temp_store = MEMORY"):
        cursor.execute(f"PRAGMA {pragma}").fetchall()
    connection.wal_autocheckpoint(CHECKPOINT_PAGES)
    columns = ", ".join(f"{name} {kind}" for name, kind, _ in COLUMNS)
    if layout == BY_RUN:
        cursor.execute(f"CREATE TABLE raw ({columns}, PRIMARY KEY ({UNIQUE[0]})) WITHOUT ROWID")
    else:
        cursor.execute(f"CREATE TABLE raw (pos INTEGER PRIMARY KEY, {columns})")
    for number, names in enumerate(UNIQUE[1:] if layout == BY_RUN else UNIQUE):
        cursor.execute(f"CREATE UNIQUE INDEX raw_{number} ON raw ({names})")
    batches = list(_batches(sample.rows, rows_a_commit))
    with Stopwatch() as watch:
        if rows_a_commit == 1:
            for (row,) in batches:
                cursor.execute(_SQLITE_INSERT, row)  # commits by itself
        else:
            for batch in batches:
                cursor.execute("BEGIN IMMEDIATE")
                cursor.executemany(_SQLITE_INSERT, batch)
                cursor.execute("COMMIT")
    assert cursor.execute("SELECT count(*) FROM raw").fetchall() == [(sample.count,)]
    connection.close()
    return sample.count / watch.seconds


async def postgres(url: str, sample: Sample, rows_a_commit: int) -> float:
    """Events a second, into an empty database, each batch one statement and one commit."""
    import asyncpg

    connection = await asyncpg.connect(url)
    columns = ", ".join(f"{name} {kind}" for name, _, kind in COLUMNS)
    await connection.execute(f"CREATE TABLE raw ({columns})")
    for names in UNIQUE:
        await connection.execute(f"CREATE UNIQUE INDEX ON raw ({names})")
    insert = await connection.prepare(_POSTGRES_INSERT)
    batches = [[list(column) for column in zip(*batch, strict=True)] for batch in _batches(sample.rows, rows_a_commit)]
    with Stopwatch() as watch:
        for batch in batches:
            await insert.fetch(*batch)
    assert await connection.fetchval("SELECT count(*) FROM raw") == sample.count
    await connection.close()
    return sample.count / watch.seconds


def _batches(rows: list[tuple[Any, ...]], size: int) -> Iterator[list[tuple[Any, ...]]]:
    for start in range(0, len(rows), size):
        yield rows[start : start + size]
