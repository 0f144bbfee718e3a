"""Plain functions in threads, isolated from each other and from the driver."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import msgspec
import pytest

from runwright.contract.plan import Step, StepClass
from runwright.tools.base import Lane
from support import executor_jobs
from support.executor_harness import TOKEN, executor_harness
from support.waiting import until


async def test_function_returns_its_result_as_json() -> None:
    async with executor_harness() as harness:
        assert await harness.call("give", {"rows": [1, 2]}).result() == {"rows": [1, 2]}
        assert await harness.call("give", None).result() is None


async def test_function_has_a_step_context() -> None:
    async with executor_harness() as harness:
        info = await harness.call("where", restored=5).result()
        assert (info["run"], info["step"], info["attempt"], info["token"], info["restored"]) == (
            "run 1",
            "s",
            1,
            TOKEN,
            5,
        )
        assert info["thread"] != threading.current_thread().name


async def test_on_done_is_called_later_on_the_drivers_thread() -> None:
    async with executor_harness() as harness:
        threads: list[str] = []
        for function in ("give", "give_async"):
            job = harness.call(function)
            done = job.execution.on_done
            job.execution.on_done = lambda outcome, done=done: (
                threads.append(threading.current_thread().name),
                done(outcome),
            )
            await job.end()
        job = harness.start("noop", {"result": 7})
        assert not job.is_over
        assert await job.result() == 7
        assert threads == [threading.current_thread().name] * 2


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("fail", "ValueError: broken"),
        ("leave", "SystemExit: 3"),
        ("interrupt", "KeyboardInterrupt"),
        ("recurse", "RecursionError: "),
        ("no_memory", "MemoryError"),
        ("fail_rudely", "Rude"),
    ],
)
async def test_exception_in_a_function_fails_only_its_step(function: str, message: str) -> None:
    async with executor_harness() as harness:
        job = harness.call(function)
        code, text = await job.error()
        assert (code, (job.outcomes[0].error or None) and job.outcomes[0].error.retryable) == ("STEP_RAISED", True)
        assert (text or "").startswith(message)
        assert await harness.call("give", 1).result() == 1


async def test_traceback_in_the_step_log_omits_engine_frames() -> None:
    async with executor_harness() as harness:
        job = harness.call("fail")
        await job.end()
        assert "executor_jobs.py" in job.text("err")
        assert "ValueError: broken" in job.text("err")
        assert "src/runwright" not in job.text("err")
        deep = harness.call("recurse")
        await deep.end()
        assert len(deep.text("err")) < 2100


async def test_step_error_keeps_code_retryable_category_and_facts() -> None:
    async with executor_harness() as harness:
        outcome = await harness.call("fail_coded").end()
        error = outcome.error
        assert error is not None
        assert (error.code, error.message, error.retryable, error.category) == (
            "NO_STOCK",
            "Nothing left.",
            False,
            "business",
        )
        assert outcome.error.facts == {"sku": 7}


async def test_error_with_null_characters_can_be_stored() -> None:
    async with executor_harness() as harness:
        for job in (harness.call("fail_coded_oddly"), harness.call("fail", "a\0b")):
            outcome = await job.end()
            body = msgspec.json.encode(outcome.error)
            assert b"\\u0000" not in body
            assert outcome.error.facts is None


@pytest.mark.parametrize("function", ["give_object", "give_set"])
async def test_result_that_cannot_be_stored_is_not_retryable(function: str) -> None:
    async with executor_harness() as harness:
        outcome = await harness.call(function).end()
        assert outcome.error is not None
        assert (outcome.error.code, outcome.error.retryable) == ("RESULT_NOT_STORABLE", False)
        assert "`result` is" in (outcome.error.message or "")


async def test_call_of_an_unknown_function_fails_the_step() -> None:
    async with executor_harness() as harness:
        assert (await harness.start("python", {"call": "no_such_module_here:f"}).error())[0] == "CALL_NOT_FOUND"
        assert (await harness.call("no_such_function").error())[0] == "CALL_NOT_FOUND"


async def test_context_variables_are_not_shared_between_steps() -> None:
    async with executor_harness(max_threads=1) as harness:
        assert [await harness.call("mark").result() for _ in range(3)] == ["clean"] * 3


async def test_waiting_functions_do_not_block_other_steps() -> None:
    executor_jobs.GATES.clear()
    async with executor_harness() as harness:
        waiting = [harness.call("wait_for", "hundred") for _ in range(100)]
        assert await harness.call("give", 1).result() == 1
        assert not any(job.is_over for job in waiting)
        executor_jobs.gate("hundred").set()
        assert [await job.result() for job in waiting] == ["waited"] * 100


async def test_many_short_functions_need_few_threads() -> None:
    async with executor_harness() as harness:
        jobs = [harness.call("give", number) for number in range(200)]
        assert [await job.result() for job in jobs] == list(range(200))
        assert len(harness.executor._threads._threads) < 100


async def test_function_that_polls_for_cancellation_returns_a_result() -> None:
    async with executor_harness() as harness:
        job = harness.call("wait_politely")
        await asyncio.sleep(0.05)
        job.execution.cancel(20)
        assert await job.result() == "stopped when asked"
        assert harness.executor.dropped == 0


async def test_function_that_ignores_cancellation_is_abandoned() -> None:
    executor_jobs.GATES.clear()
    async with executor_harness(max_threads=1) as harness:
        stubborn = harness.call("wait_for", "stubborn")
        await until(lambda: "stubborn" in executor_jobs.GATES)
        stubborn.execution.cancel(0.05)
        outcome = await stubborn.end()
        assert outcome.abandoned
        assert outcome.error is not None
        assert outcome.error.code == "CANCELLED"
        assert await harness.call("give", 1).result() == 1, "another thread replaces the abandoned one"
        executor_jobs.gate("stubborn").set()
        await until(lambda: harness.executor.dropped == 1)
        assert len(stubborn.outcomes) == 1
        assert harness.executor._threads.max_threads == 1
        assert await harness.call("give", 2).result() == 2


async def test_killed_function_is_abandoned_at_once() -> None:
    executor_jobs.GATES.clear()
    async with executor_harness() as harness:
        job = harness.call("wait_for", "killed")
        await until(lambda: "killed" in executor_jobs.GATES)
        job.execution.kill()
        assert (await job.end()).abandoned
        executor_jobs.gate("killed").set()


async def test_queued_function_that_is_cancelled_never_starts() -> None:
    executor_jobs.GATES.clear()
    async with executor_harness(max_threads=1) as harness:
        first = harness.call("wait_for", "busy")
        await until(lambda: "busy" in executor_jobs.GATES)
        second, third = harness.call("wait_for", "second"), harness.call("wait_for", "third")
        second.execution.cancel(20)
        third.execution.kill()
        for job in (second, third):
            assert (await job.error())[0] == "CANCELLED"
        executor_jobs.gate("busy").set()
        await first.end()
        assert await harness.call("give", 1).result() == 1
        assert not {"second", "third"} & set(executor_jobs.GATES)
        assert harness.executor.dropped == 0


async def test_cancelling_an_ended_execution_does_nothing() -> None:
    async with executor_harness() as harness:
        job = harness.call("give", 1)
        await job.end()
        job.execution.cancel(0)
        job.execution.kill()
        await asyncio.sleep(0.02)
        assert len(job.outcomes) == 1


async def test_abandoned_executions_release_their_capacity() -> None:
    executor_jobs.GATES.clear()
    async with executor_harness(capacity={StepClass.LIGHT: 3}) as harness:
        light, heavy = harness.executor.free_slots(StepClass.LIGHT), harness.executor.free_slots(StepClass.HEAVY)
        assert (light, heavy > 0, harness.executor.free_slots(StepClass.ISOLATION)) == (3, True, 2 * heavy)
        job = harness.call("wait_for", "room")
        noop = harness.start("noop", {})
        big = harness.call("give", 1, step_class=StepClass.HEAVY)
        assert harness.executor.free_slots(StepClass.LIGHT) == 1
        assert harness.executor.free_slots(StepClass.HEAVY) == heavy - 1
        await noop.end()
        await big.end()
        assert harness.executor.free_slots(StepClass.LIGHT) == 2
        await until(lambda: "room" in executor_jobs.GATES)
        job.execution.kill()
        await job.end()
        assert harness.executor.free_slots(StepClass.LIGHT) == 3
        executor_jobs.gate("room").set()
        await until(lambda: harness.executor.dropped == 1)
        assert (harness.executor.free_slots(StepClass.LIGHT), harness.executor.free_slots(StepClass.HEAVY)) == (
            3,
            heavy,
        )


async def test_exception_in_on_done_does_not_lose_later_outcomes() -> None:
    async with executor_harness() as harness:
        errors: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, error_context: errors.append(error_context))
        bad = harness.call("give", 1)
        bad.execution.on_done = lambda _: 1 / 0  # type: ignore[assignment,return-value]
        assert await harness.call("give", 2).result() == 2
        await until(lambda: len(errors) == 1)


class OddTool:
    kind = "odd"
    inputs = msgspec.defstruct("OddInputs", [])
    main_input = None

    def __init__(self, lane: Lane, value: Any = None) -> None:
        self._lane, self._value = lane, value

    def check(self, inputs: dict[str, Any], step: Step) -> str | None:
        return None

    def lane(self, inputs: Any, step: Step) -> Lane:
        return self._lane

    def run(self, inputs: Any, context: Any) -> Any:
        if isinstance(self._value, Exception):
            raise self._value
        return self._value


async def test_exception_in_an_inline_tool_fails_its_step() -> None:
    async with executor_harness() as harness:
        for tool in (OddTool(Lane.INLINE, ValueError("x")), OddTool(Lane.INLINE, object())):
            assert (await harness.start("odd", {}, tool=tool).end()).error is not None
        assert await harness.start("odd", {}, tool=OddTool(Lane.STEP_LOOP, 5)).result() == 5


async def test_closed_executor_reports_no_outcomes() -> None:
    executor_jobs.GATES.clear()
    async with executor_harness() as harness:
        jobs = [harness.call("wait_for", "closed"), harness.call("give_later", 30), harness.shell("sleep 30")]
        await until(lambda: "closed" in executor_jobs.GATES)
    executor_jobs.gate("closed").set()
    await asyncio.sleep(0.1)
    assert [job.outcomes for job in jobs] == [[], [], []]
