"""The same runs in DBOS, in the fastest of its modes that is as durable as Runwright.

* SQLite: its own default journal (`delete`) makes it half as fast, so WAL mode is set before DBOS
  opens the file, and persists in it; `synchronous` is FULL. Both are verified on DBOS's own connections.
* Workflows are plain functions called directly, from one thread per concurrent run: no queue, no handle to
  poll. `DBOS.start_workflow` does the same in DBOS's threads, with more work for each run.
* Connections: no ping before each use. A few on SQLite, because only one can write and the others would wait in its
  busy handler; on Postgres DBOS's default of 20.
* No tracing, no logging below errors, no conductor. Its background threads poll for queued work once a second,
  as in every deployment.
"""

from __future__ import annotations

import sqlite3
from concurrent.futures import ThreadPoolExecutor
from time import perf_counter
from typing import Any

import sqlalchemy
from dbos import DBOS, DBOSConfig

from . import steps
from .stopwatch import Stopwatch, p50_ms

_CONNECTIONS = {"sqlite": 4, "postgresql": 20}

_work = DBOS.step()(steps.work)


@DBOS.workflow()
def _ten_steps() -> int:
    result = 0
    for number in range(steps.STEPS_PER_RUN):
        result = _work(number)
    return result


def race(url: str, concurrency: int, count: int) -> dict[str, float]:
    """Execute `count` runs with this concurrency; return runs per second and the median latency of a run."""
    scheme, _, rest = url.partition(":///")
    if scheme == "sqlite":
        _use_wal(rest)
    config: DBOSConfig = {
        "name": "bench",
        "system_database_url": url,
        "db_engine_kwargs": {"pool_size": _CONNECTIONS[scheme.partition(":")[0]], "pool_pre_ping": False},
        "log_level": "ERROR",
        "enable_otlp": False,
    }
    DBOS(config=config)
    DBOS.launch()
    try:
        if scheme == "sqlite":
            _check_durability()
        return _timed(concurrency, count)
    finally:
        DBOS.destroy()


def _timed(concurrency: int, count: int) -> dict[str, float]:
    if concurrency == 1:
        _sequential_runs(5)
        with Stopwatch() as watch:
            latencies = _sequential_runs(count)
    else:
        with ThreadPoolExecutor(concurrency) as threads:
            list(threads.map(_timed_run, range(concurrency)))
            with Stopwatch() as watch:
                latencies = list(threads.map(_timed_run, range(count)))
    return {"per_second": count / watch.seconds, "p50_ms": p50_ms(latencies)}


def _sequential_runs(count: int) -> list[float]:
    return [_timed_run(number) for number in range(count)]


def _timed_run(_: int) -> float:
    start = perf_counter()
    assert _ten_steps() == steps.STEPS_PER_RUN
    return perf_counter() - start


def _use_wal(path: str) -> None:
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.close()


def _check_durability() -> None:
    with _engine().connect() as connection:
        mode, synchronous = (
            connection.execute(sqlalchemy.text(f"PRAGMA {name}")).scalar() for name in ("journal_mode", "synchronous")
        )
    assert (mode, synchronous) == ("wal", 2), f"DBOS would be measured with {mode} and synchronous = {synchronous}"


def _engine() -> Any:
    from dbos._dbos import _get_dbos_instance  # DBOS has no public access to its connections.

    return _get_dbos_instance()._sys_db.engine
