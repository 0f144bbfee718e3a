"""Runs of ten steps against DBOS: sequentially and with a concurrency of 64, on SQLite and on Postgres.

Each side of each round is a separate process with an empty store, warmed up before timing starts. The order of the
sides alternates from round to round.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import child_process, pgserver
from .scale import Scale
from .table import Measurement, Row
from .targets import TARGETS

if TYPE_CHECKING:
    from tests.support.components import Postgres

Stores = Callable[[], AbstractContextManager[tuple[str, Path]]]
"""Returns the URL of an empty store and a working folder."""

OURS, DBOS = "bench.ten_steps:race", "bench.dbos_peer:race"

_LOADS = {  # Concurrency: our runs full and quick, DBOS's runs full and quick.
    1: (400, 200, 80, 40),
    64: (1920, 960, 192, 128),
}


def measure(wanted: Collection[str], scale: Scale) -> Iterator[Row]:
    yield from _rows("engine-sqlite", wanted, scale, lambda: _file(scale))
    names = [name for name in wanted if name.startswith("engine-postgres")]
    if not names:
        return
    try:
        server = pgserver.start()
    except pgserver.PostgresUnavailable as reason:
        for name in names:
            yield Row(TARGETS[name], skipped=str(reason))
        return
    try:
        yield from _rows("engine-postgres", wanted, scale, lambda: _database(server, scale))
    finally:
        server.stop()


def _rows(prefix: str, wanted: Collection[str], scale: Scale, stores: Stores) -> Iterator[Row]:
    for concurrency in _LOADS:
        name = f"{prefix}-{concurrency}"
        if name in wanted:
            yield Row(TARGETS[name], [_round(concurrency, number, scale, stores) for number in range(scale.rounds)])


def _round(concurrency: int, number: int, scale: Scale, stores: Stores) -> Measurement:
    full, quick, their_full, their_quick = _LOADS[concurrency]
    counts = {OURS: scale.size(full, quick), DBOS: scale.size(their_full, their_quick)}
    figures: dict[str, dict[str, Any]] = {}
    for side in (OURS, DBOS) if number % 2 else (DBOS, OURS):
        with stores() as (url, folder):
            figures[side] = child_process.call(side, folder, url=url, concurrency=concurrency, count=counts[side])
    return Measurement(figures[OURS]["per_second"], figures[DBOS]["per_second"], figures[OURS]["p50_ms"])


@contextmanager
def _file(scale: Scale) -> Iterator[tuple[str, Path]]:
    with scale.new_folder() as folder:
        yield f"sqlite:///{folder}/runs.db", folder


@contextmanager
def _database(server: Postgres, scale: Scale) -> Iterator[tuple[str, Path]]:
    with scale.new_folder() as folder, pgserver.database(server) as url:
        yield url, folder
