"""Appends to Postgres against raw inserts, on a server of its own with fsync on."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from . import callers, raw
from .samples import Sample
from .scale import Scale
from .table import Round, Row
from .targets import TARGETS

if TYPE_CHECKING:
    from tests.servers import Postgres

_CALLERS = 64
_ROWS_A_COMMIT = 1000
_numbers = count(1)


def measure(wanted: Collection[str], scale: Scale) -> Iterator[Row]:
    target = TARGETS["postgres-64"]
    if target.name not in wanted:
        return
    try:
        server = _start()
    except Exception as reason:  # whatever is in the way, the other rows still count
        if "postgres" in os.environ.get("RUNWRIGHT_REQUIRE", ""):
            raise
        yield Row(target, skipped=f"no Postgres: {' '.join(str(reason).split())}")
        return
    try:
        sample = Sample.of(_CALLERS, scale.size(500, 200))
        yield Row(target, [_round(server, sample) for _ in range(scale.rounds)])
    finally:
        server.stop()


def _start() -> Postgres:
    sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
    try:
        from servers import Postgres
    finally:
        del sys.path[0]
    return Postgres()


def _round(server: Postgres, sample: Sample) -> Round:
    with _database(server) as url:
        reference = asyncio.run(raw.postgres(url, sample, _ROWS_A_COMMIT))
    with _database(server) as url:
        ours = asyncio.run(callers.append(url, sample.lines))
    return Round(ours.per_second, reference, ours.p50_ms)


@contextmanager
def _database(server: Postgres) -> Iterator[str]:
    """An empty database; that it is made and dropped leaves the server with nothing to catch up on."""
    name = f"bench_{next(_numbers)}"
    try:
        yield server.create_database(name)
    finally:
        server.drop_database(name)
