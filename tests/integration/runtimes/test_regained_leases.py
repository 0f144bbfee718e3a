"""A lease that expires while no other process claims the runs: nothing is executed twice."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path
from typing import Any

import apsw
import pytest

import runwright as rw
from runwright.control.operations import Operations
from runwright.runtimes.embedded.lease_keeper import LeaseKeeper
from support.engine import engine, wait_for_end
from support.waiting import until

TTL = 1.0


def plan(notes: Path, seconds: float) -> dict[str, Any]:
    """Two steps, each of which appends a line when it starts."""
    code = f"import time\nwith open({str(notes)!r}, 'a') as file: file.write('began\\n')\ntime.sleep({seconds})"
    return {
        "plan": "p",
        "steps": [{"id": "a", "python": {"code": code}}, {"id": "b", "dependsOn": ["a"], "python": {"code": code}}],
    }


async def _started(operations: Operations, notes: Path, seconds: float) -> str:
    run_id = await operations.start(operations.load(plan(notes, seconds)))
    await until(lambda: asyncio.to_thread(notes.exists))
    return run_id


async def _check_executed_once(operations: Operations, run_id: str, notes: Path) -> None:
    assert (await wait_for_end(operations, run_id)).status == "COMPLETED"
    assert len(notes.read_text().splitlines()) == 2
    events = [event async for event in operations.log.events(run_id)]
    assert {event.engine_attempt_id for event in events} == {1}


async def test_blocked_event_loop_does_not_repeat_steps(store: str, tmp_path: Path) -> None:
    async with engine(store, lease_ttl=TTL) as operations:
        run_id = await _started(operations, tmp_path / "notes", 2 * TTL)
        time.sleep(4 * TTL)  # noqa: ASYNC251 - the loop itself is blocked
        await _check_executed_once(operations, run_id, tmp_path / "notes")


async def test_locked_sqlite_file_does_not_repeat_steps(tmp_path: Path) -> None:
    async with engine(f"sqlite:///{tmp_path}/runs.db", lease_ttl=TTL) as operations:
        run_id = await _started(operations, tmp_path / "notes", 2 * TTL)

        def hold_lock() -> None:
            other = apsw.Connection(f"{tmp_path}/runs.db")
            other.execute("BEGIN IMMEDIATE")
            time.sleep(4 * TTL)
            other.execute("ROLLBACK")

        await asyncio.to_thread(hold_lock)
        await _check_executed_once(operations, run_id, tmp_path / "notes")


@pytest.mark.parametrize("shift", [3600, -3600])
async def test_clock_that_is_set_does_not_repeat_steps(
    store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shift: int
) -> None:
    async with engine(store, lease_ttl=TTL) as operations:
        run_id = await _started(operations, tmp_path / "notes", 2 * TTL)
        real = time.time_ns
        monkeypatch.setattr(time, "time_ns", lambda: real() + shift * 10**9)
        await _check_executed_once(operations, run_id, tmp_path / "notes")


async def test_step_does_not_start_while_the_lease_is_in_doubt(
    store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check is made immediately before the call, in the thread of the step."""
    is_in_doubt = threading.Event()
    remaining = LeaseKeeper.remaining

    def remaining_or_none(self: LeaseKeeper) -> float:
        is_loop_thread = threading.current_thread() is threading.main_thread()
        return remaining(self) if is_loop_thread or not is_in_doubt.is_set() else -1.0

    monkeypatch.setattr(LeaseKeeper, "remaining", remaining_or_none)
    notes = tmp_path / "notes"
    async with engine(store, lease_ttl=TTL) as operations:
        is_in_doubt.set()
        run_id = await operations.start(operations.load(plan(notes, 0)))
        await asyncio.sleep(TTL)
        assert not notes.exists()
        is_in_doubt.clear()
        await _check_executed_once(operations, run_id, notes)


async def test_run_claimed_by_another_process_is_dropped(store: str, tmp_path: Path) -> None:
    """A process whose event loop does not answer gives up its runs: the lease is not renewed any more."""
    async with engine(store, lease_ttl=TTL, loop_timeout=TTL / 2) as operations:
        run_id = await _started(operations, tmp_path / "notes", 2 * TTL)

        async def claim() -> None:
            async with rw.open_log(store) as other:
                await other.leases.claim_run(run_id, await other.leases.acquire("other", 60))

        time.sleep(2.5 * TTL)  # noqa: ASYNC251 - the lease expires
        claimant = threading.Thread(target=lambda: asyncio.run(claim()))
        claimant.start()
        claimant.join()
        await until(lambda: not operations.engine.is_driven(run_id))
        assert (await operations.log.find_run(run_id)).owner == "other"
        assert len((tmp_path / "notes").read_text().splitlines()) == 1
