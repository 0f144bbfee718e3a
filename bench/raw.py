"""The raw limit: inserts into the database without the append authority.

Rows that are complete before timing starts (keys, hashes, sequence numbers) are inserted into a table with the columns
of the log's `event` table, in commits of the size of the target, from one connection. Row sizes, durability and tuning
are the same as in the log: SQLite in WAL mode with synchronous=FULL, the same page cache, a checkpoint every 4000
pages; Postgres with fsync on. The unique constraints of the contract are enforced for every row.

On SQLite there are two layouts of such a table, and both are measured:

- BY_RUN: clustered by (run, seq), which is the obvious layout; the 1000 rows of a commit come from 512 runs in turn.
  The floors are set against this one.
- BY_COMMIT: in the order of commits, with plain indexes, and rows of as many runs as Runwright has callers. The log
  uses this layout, because it is up to three times faster; it shows the cost of the append authority best. It has no
  floor.

Raw inserts omit everything that the append authority does: decoding, validation, deduplication, transitions, hash
chains, run summaries, and a receipt for each caller.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw

from runwright.log.sqlite.writer import CHECKPOINT_PAGES

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


def sqlite(path: Path, sample: Sample, rows_per_commit: int, layout: str) -> float:
    """Insert into a new file; return events per second."""
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
    batches = list(_batches(sample.rows, rows_per_commit))
    with Stopwatch() as watch:
        if rows_per_commit == 1:
            for (row,) in batches:
                cursor.execute(_SQLITE_INSERT, row)  # Autocommit.
        else:
            for batch in batches:
                cursor.execute("BEGIN IMMEDIATE")
                cursor.executemany(_SQLITE_INSERT, batch)
                cursor.execute("COMMIT")
    assert cursor.execute("SELECT count(*) FROM raw").fetchall() == [(sample.count,)]
    connection.close()
    return sample.count / watch.seconds


async def postgres(url: str, sample: Sample, rows_per_commit: int) -> float:
    """Insert into an empty database, one statement and one commit per batch; return events per second."""
    import asyncpg

    connection = await asyncpg.connect(url)
    columns = ", ".join(f"{name} {kind}" for name, _, kind in COLUMNS)
    await connection.execute(f"CREATE TABLE raw ({columns})")
    for names in UNIQUE:
        await connection.execute(f"CREATE UNIQUE INDEX ON raw ({names})")
    insert = await connection.prepare(_POSTGRES_INSERT)
    batches = [
        [list(column) for column in zip(*batch, strict=True)] for batch in _batches(sample.rows, rows_per_commit)
    ]
    with Stopwatch() as watch:
        for batch in batches:
            await insert.fetch(*batch)
    assert await connection.fetchval("SELECT count(*) FROM raw") == sample.count
    await connection.close()
    return sample.count / watch.seconds


def _batches(rows: list[tuple[Any, ...]], size: int) -> Iterator[list[tuple[Any, ...]]]:
    for start in range(0, len(rows), size):
        yield rows[start : start + size]
