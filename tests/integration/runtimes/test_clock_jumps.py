"""The system clock is set while runs wait: durations stay as planned, and named times are times of the clock."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from runwright.contract.timestamps import from_micros
from runwright.control.operations import Operations
from support.engine import engine, wait_for_end, wait_for_event

IN_MEMORY, PARKED = 60.0, 0.1


async def _waiting_run(operations: Operations, step: dict[str, Any], event_type: str = "StepDelayed") -> str:
    """Start a run, and wait until its step waits."""
    run_id = await operations.start(operations.load({"plan": "p", "steps": [{"id": "a", **step}]}))
    await wait_for_event(operations, run_id, event_type, "a")
    return run_id


def set_clock(monkeypatch: pytest.MonkeyPatch, seconds: int) -> None:
    real = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: real() + seconds * 10**9)


async def _has_ended(operations: Operations, run_id: str) -> bool:
    return (await operations.log.find_run(run_id)).status != "RUNNING"


@pytest.mark.parametrize("park_after", [IN_MEMORY, PARKED])
@pytest.mark.parametrize("seconds", [3600, -3600])
async def test_wait_takes_its_duration(
    store: str, monkeypatch: pytest.MonkeyPatch, park_after: float, seconds: int
) -> None:
    async with engine(store, park_after=park_after) as operations:
        run_id = await _waiting_run(operations, {"wait": "4s"})
        await asyncio.sleep(0.5)
        set_clock(monkeypatch, seconds)
        await asyncio.sleep(1.5)
        assert not await _has_ended(operations, run_id)
        assert (await wait_for_end(operations, run_id)).status == "COMPLETED"


async def test_delay_of_a_retry_takes_its_duration(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    step = {"shell": "exit 1", "retry": {"maxAttempts": 2, "initial": "4s", "jitter": False}}
    async with engine(store, park_after=PARKED) as operations:
        run_id = await _waiting_run(operations, step, "StepRetryScheduled")
        set_clock(monkeypatch, -3600)
        assert (await wait_for_end(operations, run_id)).status == "FAILED"


async def test_wait_until_a_time_ends_when_the_clock_shows_it(file_store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    due = from_micros(time.time_ns() // 1000 + 1800 * 10**6)
    async with engine(file_store, park_after=PARKED) as operations:
        run_id = await _waiting_run(operations, {"wait": {"until": due}})
        set_clock(monkeypatch, 3600)
        assert (await wait_for_end(operations, run_id)).status == "COMPLETED"


async def test_second_step_of_the_clock_is_allowed_for(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with engine(store, park_after=PARKED) as operations:
        run_id = await _waiting_run(operations, {"wait": "5s"})
        set_clock(monkeypatch, 3600)
        await asyncio.sleep(1.5)
        set_clock(monkeypatch, -7200)
        await asyncio.sleep(1.5)
        assert not await _has_ended(operations, run_id)
        assert (await wait_for_end(operations, run_id)).status == "COMPLETED"


@pytest.mark.parametrize("seconds", [3600, -3600])
async def test_processes_on_postgres_share_its_clock(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch, seconds: int
) -> None:
    """A wait takes its duration also if the clock of the process that begins it is wrong, and another one ends it."""
    set_clock(monkeypatch, seconds)
    async with engine(postgres_url) as operations:
        run_id = await _waiting_run(operations, {"wait": "4s"})
        began = time.monotonic()
    monkeypatch.undo()
    async with engine(postgres_url, recover=True) as operations:
        await asyncio.sleep(max(0.0, began + 2 - time.monotonic()))
        assert not await _has_ended(operations, run_id)
        assert (await wait_for_end(operations, run_id)).status == "COMPLETED"
