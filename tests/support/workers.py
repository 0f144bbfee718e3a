"""Helpers for tests of workers: a working worker and a lost one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from runwright.client.transport import HttpTransport
from runwright.runtimes.embedded import dispatcher as dispatch
from runwright.runtimes.embedded import task_queue as tasks
from runwright.tools.registry import all_tools
from runwright.tools.secrets import EnvironmentSecrets
from runwright.worker.worker import Worker
from support.server import Caller, RunningServer, run_path
from support.waiting import until


@asynccontextmanager
async def worker(
    there: RunningServer, name: str = "w1", token: str | None = None, drain: float = 5.0, **more: Any
) -> AsyncGenerator[Worker]:
    line = HttpTransport([there.address], token, retry_seconds=None)
    made = Worker(line, name, all_tools(), EnvironmentSecrets(), **more)
    stop = asyncio.Event()
    running = asyncio.create_task(made.run(stop, drain))
    try:
        yield made
    finally:
        stop.set()
        await running
        await line.close()


async def wait_for_empty_queue(there: RunningServer) -> None:
    """Wait until the task queue is empty, which is shortly after the end of the run is in the log."""

    async def cleared() -> bool:
        return await there.service.log.store.side_tables.read("task_counts") == []

    await until(cleared)


async def event_types(caller: Caller, run_id: str) -> list[tuple[str, str | None]]:
    events = (await caller.get(f"{run_path(run_id)}/events"))["events"]
    return [(event["eventType"], event.get("stepId")) for event in events]


class LostWorker(Worker):
    """A worker that claims steps and sends neither heartbeats nor results."""

    async def _run_job(self, job: Any) -> None:
        await asyncio.sleep(3600)

    async def _send_heartbeats(self) -> None:
        await asyncio.sleep(3600)

    async def _release_jobs(self) -> None: ...


def shorten_leases(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten leases and polling, so that the tasks of a lost worker are released soon."""
    monkeypatch.setattr(tasks, "LEASE_SECONDS", 0.5)
    monkeypatch.setattr(dispatch, "POLL", 0.1)
