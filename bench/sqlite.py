"""Appends to SQLite against raw inserts. In each round both sides start with a new file."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator

from . import callers, raw
from .samples import Sample
from .scale import Scale
from .table import Measurement, Row
from .targets import TARGETS

_LOADS = {  # Callers, events per caller full and quick, rows per raw commit, layout of the raw table.
    "sqlite-512": (512, 80, 30, 1000, raw.BY_RUN),
    "sqlite-64": (64, 500, 200, 1000, raw.BY_RUN),
    "sqlite-1": (1, 1500, 500, 1, raw.BY_COMMIT),
    "sqlite-512-own": (512, 80, 30, 1000, raw.BY_COMMIT),
    "sqlite-64-own": (64, 500, 200, 1000, raw.BY_COMMIT),
}


def measure(wanted: Collection[str], scale: Scale) -> Iterator[Row]:
    for name, (number, full, quick, rows_per_commit, layout) in _LOADS.items():
        if name not in wanted:
            continue
        ours = Sample.of(number, scale.size(full, quick))
        theirs = Sample.of(512, scale.size(80, 30)) if layout == raw.BY_RUN else ours
        rounds = scale.rounds * (
            3 if rows_per_commit == 1 else 1
        )  # A single round varies widely when every commit waits for the disk.
        yield Row(TARGETS[name], [_round(ours, theirs, rows_per_commit, layout, scale) for _ in range(rounds)])


def _round(ours: Sample, theirs: Sample, rows_per_commit: int, layout: str, scale: Scale) -> Measurement:
    with scale.new_folder() as folder:
        reference = raw.sqlite(folder / "raw.db", theirs, rows_per_commit, layout)
    with scale.new_folder() as folder:
        measured = asyncio.run(callers.append(f"sqlite:///{folder}/runs.db", ours.lines))
    return Measurement(measured.per_second, reference, measured.p50_ms)
