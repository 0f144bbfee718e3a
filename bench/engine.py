"""Runs of ten steps against DBOS: one after another and 64 at once, on SQLite and on Postgres.

Each side of each round is a process of its own with an empty store, warmed up before the clock starts. Who is
first changes from round to round.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import apart, pgserver
from .scale import Scale
from .table import Round, Row
from .targets import TARGETS

if TYPE_CHECKING:
    from tests.servers import Postgres

Stores = Callable[[], AbstractContextManager[tuple[str, Path]]]
"""Gives the URL of an empty store, and a folder to work in."""

OURS, DBOS = "bench.ten_steps:race", "bench.dbos_peer:race"

_LOADS = {  # how many at once: our runs, the same when quick; DBOS's, the same when quick
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
    except pgserver.Unavailable as reason:
        for name in names:
            yield Row(TARGETS[name], skipped=str(reason))
        return
    try:
        yield from _rows("engine-postgres", wanted, scale, lambda: _database(server, scale))
    finally:
        server.stop()


def _rows(prefix: str, wanted: Collection[str], scale: Scale, stores: Stores) -> Iterator[Row]:
    for at_once in _LOADS:
        name = f"{prefix}-{at_once}"
        if name in wanted:
            yield Row(TARGETS[name], [_round(at_once, number, scale, stores) for number in range(scale.rounds)])


def _round(at_once: int, number: int, scale: Scale, stores: Stores) -> Round:
    full, quick, their_full, their_quick = _LOADS[at_once]
    counts = {OURS: scale.size(full, quick), DBOS: scale.size(their_full, their_quick)}
    figures: dict[str, dict[str, Any]] = {}
    for side in (OURS, DBOS) if number % 2 else (DBOS, OURS):
        with stores() as (url, folder):
            figures[side] = apart.call(side, folder, url=url, at_once=at_once, count=counts[side])
    return Round(figures[OURS]["per_second"], figures[DBOS]["per_second"], figures[OURS]["p50_ms"])


@contextmanager
def _file(scale: Scale) -> Iterator[tuple[str, Path]]:
    with scale.place() as folder:
        yield f"sqlite:///{folder}/runs.db", folder


@contextmanager
def _database(server: Postgres, scale: Scale) -> Iterator[tuple[str, Path]]:
    with scale.place() as folder, pgserver.database(server) as url:
        yield url, folder
