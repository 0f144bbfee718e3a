"""Playbooks: wide loops, the cost of routing, and the cost of a pipeline compared with the same calls in asyncio."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import Any

import msgspec

import runwright as rw
from runwright.contract.events import RunEventRecord, RunEventWrite
from runwright.control.bootstrap import open_operations
from runwright.control.operations import Operations
from runwright.core.decider import Decider
from runwright.core.scheduling.context import Capacity

from . import child_process, pgserver
from .scale import Scale
from .stopwatch import Stopwatch
from .table import Measurement, Row
from .targets import TARGETS

_CONCURRENCY = 64
_SLICE = 1000  # Events per append, as in the run driver.
_ITEMS, _ITEM_CONCURRENCY = 1000, 16
_ROUNDS = 5


def measure(wanted: Collection[str], scale: Scale) -> Iterator[Row]:
    if "play-loop-sqlite" in wanted:
        yield Row(TARGETS["play-loop-sqlite"], [_sqlite_loop(scale) for _ in range(_ROUNDS)])
    if "play-loop-postgres" in wanted:
        yield from _postgres_loop(scale)
    if "play-growth" in wanted:
        yield Row(TARGETS["play-growth"], [_growth(scale) for _ in range(_ROUNDS)])
    if "play-routing" in wanted:
        yield Row(TARGETS["play-routing"], [_call("routing", scale, rounds=scale.size(40, 10)) for _ in range(_ROUNDS)])
    if "play-pipeline" in wanted:
        with _pages() as url:
            yield Row(TARGETS["play-pipeline"], [_call("pipeline", scale, pages=url) for _ in range(_ROUNDS)])


def _call(function: str, scale: Scale, **more: Any) -> Measurement:
    with scale.new_folder() as folder:
        figures = child_process.call(f"bench.playbooks:{function}", folder, url=f"sqlite:///{folder}/runs.db", **more)
    return Measurement(*figures)


# Loops


def _sqlite_loop(scale: Scale) -> Measurement:
    with scale.new_folder() as folder:
        size, other = scale.size(10_000, 2_000), f"sqlite:///{folder}/raw.db"
        figures = child_process.call(
            "bench.playbooks:loop", folder, url=f"sqlite:///{folder}/runs.db", raw=other, size=size
        )
    return Measurement(*figures)


def _postgres_loop(scale: Scale) -> Iterator[Row]:
    target = TARGETS["play-loop-postgres"]
    try:
        server = pgserver.start()
    except pgserver.PostgresUnavailable as reason:
        yield Row(target, skipped=str(reason))
        return
    rounds: list[Measurement] = []
    try:
        for _ in range(_ROUNDS):
            with scale.new_folder() as folder, pgserver.database(server) as url, pgserver.database(server) as raw:
                size = scale.size(10_000, 2_000)
                rounds.append(
                    Measurement(*child_process.call("bench.playbooks:loop", folder, url=url, raw=raw, size=size))
                )
    finally:
        server.stop()
    yield Row(target, rounds)


def loop(url: str, raw: str, size: int) -> tuple[float, float]:
    """Return iterations per second; and the same for appending only their events to a log."""
    return asyncio.run(_loop(url, raw, size))


async def _loop(url: str, raw: str, size: int) -> tuple[float, float]:
    async with open_operations(url) as operations:
        await _run(operations, _wide(100), 1)
        seconds, run_id = await _run(operations, _wide(size), 1)
        events = [_to_write(record) async for record in operations.log.events(run_id)]
    async with rw.open_log(raw) as log:
        with Stopwatch() as watch:
            for start in range(0, len(events), _SLICE):
                await log.append(events[start : start + _SLICE])
    return size / seconds, size / watch.seconds


def _to_write(record: RunEventRecord) -> RunEventWrite:
    return RunEventWrite(**{name: getattr(record, name) for name in RunEventWrite.__struct_fields__})


def _growth(scale: Scale) -> Measurement:
    """Measure small loops before and after the large one: it takes half a minute, and the machine's speed varies."""
    large = scale.size(100_000, 10_000)
    costs: list[float] = []
    for size, times in ((100, 30), (large, 1), (100, 30)):
        with scale.new_folder() as folder:
            url = f"sqlite:///{folder}/runs.db"
            costs.append(child_process.call("bench.playbooks:iteration_ms", folder, url=url, size=size, times=times))
    before, cost, after = costs
    return Measurement(cost, (before + after) / 2)


def iteration_ms(url: str, size: int, times: int) -> float:
    return asyncio.run(_iteration_ms(url, size, times))


async def _iteration_ms(url: str, size: int, times: int) -> float:
    async with open_operations(url) as operations:
        await _run(operations, _wide(100), 3)
        seconds, _ = await _run(operations, _wide(size), times)
    return seconds * 1000 / (size * times)


def _wide(size: int) -> dict[str, Any]:
    """A loop over a task that does nothing."""
    spec = {"mode": "parallel", "max_in_flight": _CONCURRENCY}
    each = {"in": "{{ range(size) }}", "iterator": "n", "spec": spec}
    return _playbook({"step": "each", "loop": each, "tool": {"kind": "noop"}}, workload={"size": size})


# Routing


def routing(url: str, rounds: int) -> tuple[float, float, float]:
    """Return the p99 and the p50 of the decision after a step's end, in milliseconds.

    The decision selects the arcs that fire and starts the next steps.
    """
    durations: list[float] = []
    decide = Decider.decide

    def timed_decide(self: Decider, capacity: Capacity, *, stopped: bool = False) -> None:
        before, start = self.drafted, perf_counter()
        decide(self, capacity, stopped=stopped)
        if self.drafted > before and any(draft.event_type == "NextEvaluated" for draft in self._drafts):  # pyright: ignore[reportPrivateUsage]
            durations.append((perf_counter() - start) * 1000)

    Decider.decide = timed_decide
    asyncio.run(_route(url, rounds))
    durations.sort()
    return durations[len(durations) * 99 // 100], 0.0, durations[len(durations) // 2]


async def _route(url: str, rounds: int) -> None:
    """Run a ring of fifty steps, each with five arcs, `rounds` times."""
    steps: list[dict[str, Any]] = []
    for number in range(50):
        arcs = [{"step": "s0", "when": f"{{{{ ctx.turns > {rounds + extra} }}}}"} for extra in range(4)]
        last = {"step": f"s{(number + 1) % 50}", "when": f"{{{{ ctx.turns < {rounds} }}}}", "args": {"from": number}}
        step: dict[str, Any] = {"step": f"s{number}", "tool": {"kind": "noop"}, "next": {"arcs": [*arcs, last]}}
        if number == 0:
            step["set"] = {"ctx.turns": "{{ ctx.turns + 1 }}"}
        steps.append(step)
    async with open_operations(url) as operations:
        await _run(operations, _playbook(*steps, ctx={"turns": 0}), 1)


# Pipelines


def pipeline(url: str, pages: str) -> tuple[float, float]:
    """Return milliseconds per task: of a pipeline, and of the same calls without one."""
    return asyncio.run(_pipeline(url, pages))


async def _pipeline(url: str, pages: str) -> tuple[float, float]:
    async with open_operations(url) as operations:
        await _run(operations, _paging(pages, 20), 1)
        seconds, _ = await _run(operations, _paging(pages, _ITEMS), 1)
    plain = await _plain(pages)
    return seconds * 1000 / (3 * _ITEMS), plain * 1000 / (3 * _ITEMS)


def _paging(pages: str, count: int) -> dict[str, Any]:
    retry = {"when": "{{ outcome.error.retryable }}", "then": {"do": "retry", "attempts": 5}}
    fail = {"when": "{{ outcome.status == 'error' }}", "then": {"do": "fail"}}
    on = {"else": {"then": {"do": "continue"}}}
    done = {"else": {"then": {"do": "break"}}}
    tasks = [
        {
            "fetch": {
                "kind": "http",
                "url": f"{pages}/{{{{ iter.n }}}}",
                "spec": {"policy": {"rules": [retry, fail, on]}},
            }
        },
        {"shape": {"kind": "noop", "result": {"rows": "{{ fetch.data.rows }}", "page": "{{ iter.n }}"}}},
        {"keep": {"kind": "noop", "result": "{{ shape.rows | length }}", "spec": {"policy": {"rules": [fail, done]}}}},
    ]
    spec = {"mode": "parallel", "max_in_flight": _ITEM_CONCURRENCY}
    each = {"in": "{{ range(count) }}", "iterator": "n", "spec": spec}
    return _playbook({"step": "pages", "loop": each, "tool": tasks}, workload={"count": count})


async def _plain(pages: str) -> float:
    import httpx

    remaining = iter(range(_ITEMS))
    async with httpx.AsyncClient() as client:

        async def work() -> None:
            for number in remaining:
                page = (await client.get(f"{pages}/{number}")).json()
                shaped = {"rows": page["rows"], "page": number}
                assert len(shaped["rows"]) == 10

        with Stopwatch() as watch:
            await asyncio.gather(*(work() for _ in range(_ITEM_CONCURRENCY)))
    return watch.seconds


@contextmanager
def _pages() -> Iterator[str]:
    """A server of JSON pages in a child process."""
    process = subprocess.Popen([sys.executable, "-m", "bench.playbooks"], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
    finally:
        process.kill()
        process.wait()


async def _serve() -> None:
    body = msgspec.json.encode({"rows": list(range(10)), "has_more": False})
    response = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while await reader.readuntil(b"\r\n\r\n"):
                writer.write(response)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    await server.serve_forever()


# Helpers


def _playbook(*steps: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "apiVersion": "noetl.io/v10",
        "kind": "Playbook",
        "metadata": {"name": "bench"},
        **more,
        "workflow": [*steps],
    }


async def _run(operations: Operations, document: dict[str, Any], times: int) -> tuple[float, str]:
    """Run a playbook `times` times; return the seconds, without loading it, and the id of the last run."""
    plan, run_id = operations.load(document), ""
    with Stopwatch() as watch:
        for _ in range(times):
            run_id = await operations.start(plan)
            snapshot = await operations.wait(run_id)
            assert snapshot.status == "COMPLETED", snapshot.root_cause
    return watch.seconds, run_id


if __name__ == "__main__":
    asyncio.run(_serve())
