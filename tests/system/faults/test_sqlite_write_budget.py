"""Another connection holds the write lock of a SQLite file: appends wait, time out, and report the outcome."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import apsw
import pytest

import runwright as rw
from support.events import History

pytestmark = pytest.mark.slow


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "runs.db"


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the write lock of the file in another connection."""
    connection = apsw.Connection(str(path))
    try:
        connection.execute("BEGIN IMMEDIATE")
        yield
        connection.execute("ROLLBACK")
    finally:
        connection.close()


async def is_unknown(log: rw.RunLog, run_id: str) -> bool:
    try:
        await log.find_run(run_id)
    except rw.RunwrightError as error:
        return error.code == "RUN_NOT_FOUND"
    return False


async def test_append_beyond_its_budget_is_withdrawn_and_not_stored(path: Path, event: History) -> None:
    late = History("late")
    async with rw.open_log(f"sqlite:///{path}", write_budget=1.0) as log:
        await log.append([event("RunQueued")])
        with locked(path):
            both = (log.append([event("RunStarted")]), log.append(late.started()))
            for error in await asyncio.gather(*both, return_exceptions=True):
                assert isinstance(error, rw.RunwrightError)
                assert error.code == "STORE_WRITE_BUDGET_EXCEEDED"
                assert error.facts == {"outcome": "withdrawn", "retryable": True}
            assert len(await log.read("run-1")) == 1  # reads do not wait for the lock
        await log.append([History("later")("RunQueued")])  # queued after the withdrawn appends
        assert len(await log.read("run-1")) == 1
        assert await is_unknown(log, "late")
        (receipt,) = await log.append([event("RunStarted")])
        assert (receipt.status, receipt.run_seq) == ("appended", 2)
        assert [finding async for finding in log.verify()] == []
    async with rw.open_log(f"sqlite:///{path}") as log:
        assert await is_unknown(log, "late")
        assert (await log.rebuild(check=True)).different == []


async def test_append_succeeds_when_the_lock_is_released_in_time(path: Path, event: History) -> None:
    async with rw.open_log(f"sqlite:///{path}", write_budget=30) as log:
        with locked(path):
            waiting = asyncio.create_task(log.append(event.started()))
            await asyncio.sleep(0.1)
            assert not waiting.done()
        assert [receipt.run_seq for receipt in await waiting] == [1, 2]


async def test_cancelled_append_is_withdrawn_and_others_succeed(path: Path) -> None:
    async with rw.open_log(f"sqlite:///{path}", write_budget=30) as log:
        with locked(path):
            tasks = [asyncio.create_task(log.append(History(f"run-{number}").started())) for number in range(9)]
            await asyncio.sleep(0.1)
            for task in tasks[::3]:  # the first of these is already with the writer
                task.cancel()
            await asyncio.wait(tasks[::3])
        results = await asyncio.gather(*tasks, return_exceptions=True)
        for number, result in enumerate(results):
            if number % 3 == 0:
                assert isinstance(result, asyncio.CancelledError)
                assert await is_unknown(log, f"run-{number}")
            else:
                assert not isinstance(result, BaseException)
                assert [receipt.run_seq for receipt in result] == [1, 2]
        assert len(await log.append(History("run-0").started())) == 2
        assert [finding async for finding in log.verify()] == []


async def test_only_appends_beyond_their_budget_are_withdrawn(path: Path) -> None:
    """Two logs with a short and a long budget wait for the same lock."""
    url = f"sqlite:///{path}"
    async with rw.open_log(url, write_budget=0.1) as hasty, rw.open_log(url, write_budget=30) as patient:
        with locked(path):
            patient_append = asyncio.create_task(patient.append(History("patient").started()))
            with pytest.raises(rw.RunwrightError) as caught:
                await hasty.append(History("hasty").started())
            assert caught.value.facts["outcome"] == "withdrawn"
        await patient_append
        assert await is_unknown(patient, "hasty")
        assert await is_unknown(hasty, "hasty")


async def test_closing_the_log_ends_waiting_appends(path: Path, event: History) -> None:
    log = rw.open_log(f"sqlite:///{path}", write_budget=30)
    await log.open()
    with locked(path):
        waiting = [asyncio.create_task(log.append(History(f"run-{number}").started())) for number in range(3)]
        await asyncio.sleep(0.1)
        await asyncio.wait_for(log.close(), 10)
        results = await asyncio.wait_for(asyncio.gather(*waiting, return_exceptions=True), 10)
    for result in results:
        assert isinstance(result, rw.RunwrightError)
        assert result.code in ("STORE_UNAVAILABLE", "STORE_CLOSED")
    async with rw.open_log(f"sqlite:///{path}") as log:
        assert (await log.list_runs()).runs == []


async def test_calls_on_a_closed_log_raise_store_closed(path: Path, event: History) -> None:
    async with rw.open_log(f"sqlite:///{path}") as log:
        await log.append(event.started())
    for call in (
        lambda: log.append([event("StepStarted", "a")]),
        lambda: log.read("run-1"),
        lambda: log.read_all(),
        lambda: log.leases.acquire("me"),
    ):
        with pytest.raises(rw.RunwrightError) as caught:
            await call()
        assert caught.value.code == "STORE_CLOSED"
