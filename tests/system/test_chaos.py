"""Servers and workers under kills, stops, outages of the store, clocks that are set and large downloads.

Every execution of a step leaves a line with its time. None may begin after the completion of its step is in the log.
Steps are processes, which check the lease themselves: the window of steps in threads (docs/howto/operations.md) is not
tested here.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import libfaketime
import pytest

from support.components import Postgres, free_port
from support.fleet import Fleet, events_of, request, wait_for_end

pytestmark = pytest.mark.slow

IS_SOAK = os.environ.get("RUNWRIGHT_PROFILE") == "soak"
SECONDS = 60
EXECUTIONS = 10_000 if IS_SOAK else 0
"""Number of executions of steps after which the faults end."""
STARTERS = 4
PAUSE = 1
"""Seconds between two starts of one starter."""
OUTAGE = 30
OUTAGE_EVERY = 200
FIRST_OUTAGE = 15
RECOVERY = 40
"""Seconds in which all runs end after the last fault."""

EXECUTE = "read up rest < /proc/uptime; echo {{ run.id | quote }} {{ step.id | quote }} $up >> executed.txt; sleep 0.05"
ON_WORKER = {"dispatch": {"queue": "default"}, "retry": {"maxAttempts": 10}}
"""With retries: an attempt fails after three lost workers."""
PLAN = {
    "plan": "chaos",
    "steps": [
        {"id": "a", "shell": EXECUTE},
        {"id": "b", "dependsOn": ["a"], **ON_WORKER, "shell": EXECUTE},
        {"id": "c", "dependsOn": ["a"], "foreach": {"in": list(range(6))}, "shell": EXECUTE},
        {"id": "w", "dependsOn": ["a"], "wait": "1s"},
        {"id": "d", "dependsOn": ["b", "c", "w"], **ON_WORKER, "shell": EXECUTE},
    ],
}
EXECUTED = frozenset({"a", "b", "d", *(f"c[{index}]" for index in range(6))})
ARTIFACT = {
    "plan": "artifact",
    "steps": [
        {"id": "make", "shell": "head -c 60000000 /dev/urandom > large.bin"},
        {"id": "store", "artifact": {"put": "large.bin"}},
    ],
}
COMPLETIONS = frozenset({"StepCompleted", "LoopIterationDone"})
LIBRARY = Path(libfaketime.__file__).parent / "vendor/libfaketime/src/libfaketime.so.1"


class Member:
    """A server or worker process, started again on the same port, with a clock of its own."""

    def __init__(self, fleet: Fleet, number: int, port: int | None) -> None:
        self._fleet = fleet
        self._port = port
        self._clock = fleet.folder / f"clock-{number}"
        self.set_clock(0)
        self.process = self._start()

    def _start(self) -> subprocess.Popen[str]:
        variables = {
            "LD_PRELOAD": str(LIBRARY),
            "FAKETIME_TIMESTAMP_FILE": str(self._clock),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }
        if self._port is None:
            return self._fleet.worker(**variables)
        return self._fleet.servers[self._fleet.server(self._port, **variables)]

    def set_clock(self, seconds: int) -> None:
        self._clock.write_text(f"{seconds:+d}s")

    async def restart(self) -> None:
        self.process.kill()
        await asyncio.to_thread(self.process.wait)
        if self.process.stdout is not None:
            self.process.stdout.close()
        self.process = await asyncio.to_thread(self._start)

    async def stop_for(self, seconds: float) -> None:
        process = self.process
        process.send_signal(signal.SIGSTOP)
        await asyncio.sleep(seconds)
        process.send_signal(signal.SIGCONT)


@pytest.fixture
def fleet(tmp_path: Path, empty_postgres_url: str) -> Iterator[Fleet]:
    (tmp_path / "runwright.toml").write_text('[server]\nrate = 0\ndrain = "2s"\n')
    created = Fleet(tmp_path, empty_postgres_url)
    yield created
    created.end()


async def _start_runs(http: httpx.AsyncClient, addresses: list[str], starter: int, run_ids: list[str]) -> None:
    """Start runs one after another, as long as this coroutine runs."""
    for number in itertools.count():
        run_id = f"run-{starter}-{number}"
        await request(http, addresses, "POST", "/v1/runs", json={"plan": PLAN, "context": {"runId": run_id}})
        run_ids.append(run_id)
        await asyncio.sleep(PAUSE)


async def _download(http: httpx.AsyncClient, addresses: list[str], path: str) -> None:
    """Download a large artifact again and again."""
    while True:
        with suppress(httpx.TransportError):
            async with http.stream("GET", f"{random.choice(addresses)}{path}") as answer:
                async for _ in answer.aiter_bytes():
                    pass
        await asyncio.sleep(1)


async def _make_faults(fleet: Fleet, members: list[Member], postgres: Postgres, chance: random.Random) -> None:
    began = time.monotonic()
    next_outage = FIRST_OUTAGE
    stopped: set[asyncio.Task[None]] = set()
    while (elapsed := time.monotonic() - began) < SECONDS or len(_lines(fleet.folder)) < EXECUTIONS:
        if elapsed > next_outage:
            next_outage += OUTAGE_EVERY
            postgres.kill()
            await asyncio.sleep(OUTAGE)
            postgres.start()  # not in a thread: the server dies with the thread that started it
        member = chance.choice(members)
        match chance.choice(["kill", "stop", "stop", "clock"]):
            case "kill":
                await member.restart()
            case "stop":
                stopped.add(asyncio.create_task(member.stop_for(chance.uniform(4, 9))))
            case _:
                member.set_clock(chance.choice([3600, -3600, 0]))
        await asyncio.sleep(chance.uniform(1, 3))
    await asyncio.gather(*stopped)


class Execution(NamedTuple):
    run_id: str
    path: str
    at: float


def _lines(folder: Path) -> list[str]:
    file = folder / "executed.txt"
    return file.read_text().splitlines() if file.exists() else []


def _executions(folder: Path, boot: float) -> list[Execution]:
    return [Execution(run_id, path, boot + float(uptime)) for run_id, path, uptime in map(str.split, _lines(folder))]


def _completions(run_id: str, events: list[dict[str, Any]]) -> dict[tuple[str, str], float]:
    return {
        (run_id, event["stepId"]): datetime.fromisoformat(event["persistedAt"]).timestamp()
        for event in events
        if event["eventType"] in COMPLETIONS
    }


def _late(executions: list[Execution], completed: dict[tuple[str, str], float]) -> list[Execution]:
    """Repeated executions that began after the completion of their step was in the log. The first execution of a step
    cannot, however much the clocks of this machine and of the log differ."""
    first: set[tuple[str, str]] = set()
    late: list[Execution] = []
    for each in sorted(executions, key=lambda execution: execution.at):
        step = (each.run_id, each.path)
        if step in first and each.at > completed.get(step, each.at):
            late.append(each)
        first.add(step)
    return late


def _report(late: list[Execution], executions: list[Execution], events: dict[str, list[dict[str, Any]]]) -> str:
    """List what is known of the steps that began too late."""
    lines: list[str] = []
    for run_id, path in sorted({(each.run_id, each.path) for each in late}):
        begun = [f"{each.at:.2f}" for each in executions if (each.run_id, each.path) == (run_id, path)]
        lines.append(f"{run_id} {path} began at {', '.join(begun)}")
        lines += [
            f"  {datetime.fromisoformat(event['persistedAt']).timestamp():.3f} {event['eventType']}"
            f" of engine attempt {event.get('engineAttemptId')}"
            for event in events[run_id]
            if event.get("stepId") == path
        ]
    return "\n".join(lines)


async def test_no_step_begins_after_its_completion_is_in_the_log(fleet: Fleet, postgres: Postgres) -> None:
    boot = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
    members = [Member(fleet, number, free_port()) for number in range(3)]
    members += [Member(fleet, 3 + number, None) for number in range(2)]
    addresses, run_ids = list(fleet.servers), list[str]()
    async with httpx.AsyncClient(timeout=60) as http:
        await request(http, addresses, "POST", "/v1/runs", json={"plan": ARTIFACT, "context": {"runId": "artifact"}})
        assert (await wait_for_end(http, addresses, "artifact"))["status"] == "COMPLETED"
        (found,) = (await request(http, addresses, "GET", "/v1/runs/artifact/artifacts"))["artifacts"]
        load = [
            *(asyncio.create_task(_start_runs(http, addresses, starter, run_ids)) for starter in range(STARTERS)),
            asyncio.create_task(
                _download(http, addresses, f"/v1/runs/artifact/artifacts/{found['artifact']['sha256']}")
            ),
        ]
        await _make_faults(fleet, members, postgres, random.Random(20))
        for task in load:
            task.cancel()
        assert not [task for task in load if task.done()], [task.exception() for task in load if task.done()]
        for member in members:
            member.set_clock(0)
        completed, logs = dict[tuple[str, str], float](), dict[str, list[dict[str, Any]]]()
        deadline = time.monotonic() + RECOVERY
        for run_id in run_ids:
            snapshot = await wait_for_end(http, addresses, run_id, deadline - time.monotonic())
            logs[run_id] = await events_of(http, addresses, run_id)
            assert snapshot["status"] == "COMPLETED", (run_id, logs[run_id], fleet.log_tails())
            completed |= _completions(run_id, logs[run_id])
        assert (await request(http, addresses, "GET", "/v1/verify"))["ok"] is True
    executions = _executions(fleet.folder, boot)
    counts = Counter((each.run_id, each.path) for each in executions if each.run_id in run_ids)
    print(f"{len(executions)} executions of {len(counts)} steps of {len(run_ids)} runs")
    assert set(counts) == {(run_id, path) for run_id in run_ids for path in EXECUTED}
    late = _late(executions, completed)
    assert not late, f"{_report(late, executions, logs)}\n{fleet.log_tails()}"
