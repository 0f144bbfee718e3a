"""Appends to Postgres against raw inserts, on a temporary server with fsync on."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING

from . import callers, pgserver, raw
from .samples import Sample
from .scale import Scale
from .table import Measurement, Row
from .targets import TARGETS

if TYPE_CHECKING:
    from tests.support.components import Postgres

_CALLERS = 64
_ROWS_PER_COMMIT = 1000


def measure(wanted: Collection[str], scale: Scale) -> Iterator[Row]:
    target = TARGETS["postgres-64"]
    if target.name not in wanted:
        return
    try:
        server = pgserver.start()
    except pgserver.PostgresUnavailable as reason:
        yield Row(target, skipped=str(reason))
        return
    try:
        sample = Sample.of(_CALLERS, scale.size(500, 200))
        yield Row(target, [_round(server, sample) for _ in range(scale.rounds)])
    finally:
        server.stop()


def _round(server: Postgres, sample: Sample) -> Measurement:
    with pgserver.database(server) as url:
        reference = asyncio.run(raw.postgres(url, sample, _ROWS_PER_COMMIT))
    with pgserver.database(server) as url:
        ours = asyncio.run(callers.append(url, sample.lines))
    return Measurement(ours.per_second, reference, ours.p50_ms)
