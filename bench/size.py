"""Whether a step costs the same however many a run has: a long run against a short one, a wide loop against a narrow.

Steps do nothing, so that only the engine and the log are measured. The two runs of a pair have as many steps
under way at any time, and so as many in a commit: a longer run has no advantage but that of its length.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator
from typing import Any

from runwright.control.open import open_operations

from . import apart
from .scale import Scale
from .stopwatch import Stopwatch
from .table import Round, Row
from .targets import TARGETS

_CHAINS = 10  # side by side, in a long run and in a short one
_AT_ONCE = 64  # iterations of a loop
_SMALL = 100

_SIZES = {"engine-steps": (100_000, 10_000), "engine-fan-out": (10_000, 2_000)}  # full, quick
_SMALL_RUNS = 30  # one is over too soon to be timed


def measure(wanted: Collection[str], scale: Scale) -> Iterator[Row]:
    for name, (full, quick) in _SIZES.items():
        if name in wanted:
            size = scale.size(full, quick)
            yield Row(TARGETS[name], [_round(name, size, scale) for _ in range(5)])


def _round(name: str, size: int, scale: Scale) -> Round:
    reference = _cost(name, _SMALL, _SMALL_RUNS, scale)
    return Round(_cost(name, size, 1, scale), reference)


def _cost(name: str, size: int, times: int, scale: Scale) -> float:
    with scale.place() as folder:
        url = f"sqlite:///{folder}/runs.db"
        return apart.call("bench.size:milliseconds_a_step", folder, url=url, name=name, size=size, times=times)


def milliseconds_a_step(url: str, name: str, size: int, times: int) -> float:
    """From the start of a run until its end is known; the plan has been read before."""
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
        each = {"id": "each", "foreach": {"in": list(range(size)), "maxParallel": _AT_ONCE}, "noop": {}}
        return {"plan": "fan-out", "steps": [each]}
    steps: list[dict[str, Any]] = [{"id": f"step_{number}", "noop": {}} for number in range(size)]
    for number in range(_CHAINS, size):
        steps[number]["dependsOn"] = [f"step_{number - _CHAINS}"]
    return {"plan": "chains", "order": "graph", "steps": steps}
