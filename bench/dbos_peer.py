"""The same runs in DBOS, in the fastest of its modes that is as durable as ours.

* SQLite: its own default journal (`delete`) makes it half as fast, so the file is put into WAL before DBOS
  opens it, which the file remembers; `synchronous` is FULL. Both are asked of DBOS's own connections, not assumed.
* Workflows are plain functions called directly, from as many threads as there are to be runs at once: no queue,
  no handle to poll. `DBOS.start_workflow` does the same in threads of DBOS's, with more work for each run.
* Connections: no ping before each use. On SQLite a few, since only one can write and the others would sleep in
  its busy handler; on Postgres the 20 that DBOS takes by itself.
* No tracing, no logging below errors, no conductor. Its background threads look for queued work once a second,
  as they do for everybody.
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
    for number in range(steps.STEPS_A_RUN):
        result = _work(number)
    return result


def race(url: str, at_once: int, count: int) -> dict[str, float]:
    """`count` runs, `at_once` at any time: how many a second, and how long one of them took."""
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
        return _timed(at_once, count)
    finally:
        DBOS.destroy()


def _timed(at_once: int, count: int) -> dict[str, float]:
    if at_once == 1:
        _one_after_another(5)
        with Stopwatch() as watch:
            waits = _one_after_another(count)
    else:
        with ThreadPoolExecutor(at_once) as threads:
            list(threads.map(_timed_run, range(at_once)))
            with Stopwatch() as watch:
                waits = list(threads.map(_timed_run, range(count)))
    return {"per_second": count / watch.seconds, "p50_ms": p50_ms(waits)}


def _one_after_another(count: int) -> list[float]:
    return [_timed_run(number) for number in range(count)]


def _timed_run(_: int) -> float:
    start = perf_counter()
    assert _ten_steps() == steps.STEPS_A_RUN
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
    from dbos._dbos import _get_dbos_instance  # its connections are nowhere to be had in public

    return _get_dbos_instance()._sys_db.engine
