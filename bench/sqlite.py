"""Appends to SQLite against raw inserts. In each round both sides begin with a file of their own that is new."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator

from . import callers, raw
from .samples import Sample
from .scale import Scale
from .table import Round, Row
from .targets import TARGETS

_LOADS = {  # name: callers, events each, the same when quick, rows a raw commit
    "sqlite-512": (512, 80, 30, 1000),
    "sqlite-64": (64, 500, 200, 1000),
    "sqlite-1": (1, 1500, 500, 1),
}


def measure(wanted: Collection[str], scale: Scale) -> Iterator[Row]:
    for name, (number, full, quick, rows_a_commit) in _LOADS.items():
        if name in wanted:
            sample = Sample.of(number, scale.size(full, quick))
            yield Row(TARGETS[name], [_round(sample, rows_a_commit, scale) for _ in range(scale.rounds)])


def _round(sample: Sample, rows_a_commit: int, scale: Scale) -> Round:
    with scale.place() as folder:
        reference = raw.sqlite(folder / "raw.db", sample, rows_a_commit)
    with scale.place() as folder:
        ours = asyncio.run(callers.append(f"sqlite:///{folder}/runs.db", sample.lines))
    return Round(ours.per_second, reference, ours.p50_ms)
