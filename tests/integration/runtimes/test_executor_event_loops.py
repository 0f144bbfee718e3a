"""Coroutines of steps, on an event loop of their own that a step may block."""

from __future__ import annotations

import asyncio
import gc
import logging
import threading

import pytest

from support import executor_jobs
from support.executor_harness import executor_harness
from support.waiting import until


@pytest.fixture(autouse=True)
def fresh_gates() -> None:
    executor_jobs.GATES.clear()


async def test_coroutine_returns_a_result_and_has_a_step_context() -> None:
    async with executor_harness() as harness:
        assert await harness.call("give_async", [1]).result() == [1]
        info = await harness.call("where_async").result()
        assert (info["run"], info["step"]) == ("run 1", "s")
        assert info["thread"] == "step loop"


async def test_coroutine_returned_by_a_plain_function_is_awaited() -> None:
    async with executor_harness() as harness:
        assert await harness.call("give_wrapped", 3).result() == 3


async def test_a_coroutine_whose_module_was_not_loaded_is_awaited_too() -> None:
    async with executor_harness() as harness:
        job = harness.start("python", {"call": "asyncio.tasks:sleep", "args": [0, "slept"]})
        assert await job.result() == "slept"


@pytest.mark.parametrize(
    ("function", "message"), [("fail_async", "ValueError: broken"), ("leave_async", "SystemExit: 3")]
)
async def test_exception_in_a_coroutine_fails_only_its_step(function: str, message: str) -> None:
    async with executor_harness() as harness:
        other = harness.call("give_later", 0.1)
        assert await harness.call(function).error() == ("STEP_RAISED", message)
        assert await other.result() == "late"


async def test_system_exit_in_a_task_does_not_end_the_loop(caplog: pytest.LogCaptureFixture) -> None:
    async with executor_harness() as harness:
        other = harness.call("give_later", 0.2)
        assert await harness.call("leave_in_a_task").result() == "still here"
        assert await other.result() == "late"
        assert "SystemExit" in caplog.text
    gc.collect()


async def test_a_cancelled_coroutine_cleans_up() -> None:
    async with executor_harness() as harness:
        job = harness.call("clean_up")
        await asyncio.sleep(0.05)
        job.execution.cancel(20)
        assert (await job.error())[0] == "CANCELLED"
        assert not job.outcomes[0].abandoned
        assert job.text() == "cleaned up\n"


@pytest.mark.parametrize("function", ["give_later", "give_wrapped"])
async def test_coroutine_cancelled_at_once_reports_an_outcome(function: str) -> None:
    async with executor_harness() as harness:
        for _ in range(50):
            job = harness.call(function, 5)
            job.execution.cancel(20)
            outcome = await job.end()
            assert not outcome.abandoned
            assert outcome.error is None or outcome.error.code == "CANCELLED"


async def test_coroutine_that_ignores_cancellation_is_abandoned() -> None:
    async with executor_harness() as harness:
        job = harness.call("ignore_cancellation", "ignored")
        await until(lambda: "ignored" in executor_jobs.GATES)
        job.execution.cancel(0.05)
        assert (await job.end()).abandoned
        executor_jobs.gate("ignored").set()
        await until(lambda: harness.executor.dropped == 1)


@pytest.mark.parametrize("function", ["block", "block_in_a_child_task"])
async def test_blocked_loop_is_reported_and_replaced(function: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        async with executor_harness() as harness:
            neighbour = harness.call("give_later", 0.3, step_id="beside")
            blocker = harness.call(function, "block", step_id="blocker")
            await until(lambda: "has blocked the event loop" in caplog.text)
            assert "Step 'blocker' of run 'run 1'" in caplog.text
            assert await harness.call("give_async", 1).result() == 1, "new steps get a new loop"
            assert await harness.shell("echo ok").result() == {"exitCode": 0, "stdout": "ok\n"}
            assert await harness.call("give", 2).result() == 2
            assert not neighbour.is_over
            assert not blocker.is_over
            executor_jobs.gate("block").set()
            assert await blocker.result() == "unblocked"
            assert await neighbour.result() == "late"
            await until(lambda: sum(thread.name == "step loop" for thread in threading.enumerate()) == 1)
            assert await harness.call("give_async", 3).result() == 3
            assert caplog.text.count("has blocked the event loop") == 1


async def test_coroutine_queued_on_a_blocked_loop_can_be_cancelled() -> None:
    async with executor_harness() as harness:
        blocker = harness.call("block", "front")
        await until(lambda: "front" in executor_jobs.GATES)
        queued = harness.call("ignore_cancellation", "behind")
        queued.execution.cancel(20)
        assert (await queued.error())[0] == "CANCELLED"
        blocker.execution.kill()
        assert (await blocker.end()).abandoned
        executor_jobs.gate("front").set()
        await until(lambda: harness.executor.dropped == 1)
        assert await harness.call("give_async", 1).result() == 1
        assert "behind" not in executor_jobs.GATES


async def test_an_idle_executor_sleeps() -> None:
    async with executor_harness() as harness:
        await harness.call("give_async", 1).result()
        loops = harness.executor._step_loops
        await until(lambda: not loops._has_work.is_set())
        await asyncio.sleep(0.3)
        assert not loops._has_work.is_set()
