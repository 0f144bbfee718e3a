"""The cost of a step as a run grows: a long run against a short one, a wide loop against a narrow one.

Steps do nothing, so that only the engine and the log are measured. Both runs of a pair have the same concurrency, and
therefore the same number of events per commit: they differ only in length.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator
from typing import Any

from runwright.control.bootstrap import open_operations

from . import child_process
from .scale import Scale
from .stopwatch import Stopwatch
from .table import Measurement, Row
from .targets import TARGETS

_CHAINS = 10  # Parallel chains, in both runs.
_CONCURRENCY = 64  # Of the iterations of a loop.
_SMALL = 100

_SIZES = {"engine-steps": (100_000, 10_000), "engine-fan-out": (10_000, 2_000)}  # Full and quick.
_SMALL_RUNS = 30  # A single one is too short to be timed.


def measure(wanted: Collection[str], scale: Scale) -> Iterator[Row]:
    for name, (full, quick) in _SIZES.items():
        if name in wanted:
            size = scale.size(full, quick)
            yield Row(TARGETS[name], [_round(name, size, scale) for _ in range(5)])


def _round(name: str, size: int, scale: Scale) -> Measurement:
    reference = _cost(name, _SMALL, _SMALL_RUNS, scale)
    return Measurement(_cost(name, size, 1, scale), reference)


def _cost(name: str, size: int, times: int, scale: Scale) -> float:
    with scale.new_folder() as folder:
        url = f"sqlite:///{folder}/runs.db"
        return child_process.call(
            "bench.run_size:milliseconds_per_step", folder, url=url, name=name, size=size, times=times
        )


def milliseconds_per_step(url: str, name: str, size: int, times: int) -> float:
    """Time runs from start to end, without loading the plan."""
    return asyncio.run(_timed(url, _plan(name, size), size, times))


async def _timed(url: str, document: dict[str, Any], size: int, times: int) -> float:
    async with open_operations(url) as operations:
        warm_up = operations.load(_plan("engine-steps", _CHAINS))
        await operations.wait(await operations.start(warm_up))
        plan = operations.load(document)
        with Stopwatch() as watch:
            for _ in range(times):
                snapshot = await operations.wait(await operations.start(plan))
                assert snapshot.status == "COMPLETED", snapshot.root_cause
    return watch.seconds * 1000 / (size * times)


def _plan(name: str, size: int) -> dict[str, Any]:
    if name == "engine-fan-out":
        each = {"id": "each", "foreach": {"in": list(range(size)), "maxParallel": _CONCURRENCY}, "noop": {}}
        return {"plan": "fan-out", "steps": [each]}
    steps: list[dict[str, Any]] = [{"id": f"step_{number}", "noop": {}} for number in range(size)]
    for number in range(_CHAINS, size):
        steps[number]["dependsOn"] = [f"step_{number - _CHAINS}"]
    return {"plan": "chains", "order": "graph", "steps": steps}
