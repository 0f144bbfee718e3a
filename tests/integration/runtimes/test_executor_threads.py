"""Plain functions: in threads, apart from each other and from the driver."""

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


async def test_a_function_gives_its_result_as_json() -> None:
    async with executor_harness() as at:
        assert await at.call("give", {"rows": [1, 2]}).result() == {"rows": [1, 2]}
        assert await at.call("give", None).result() is None


async def test_a_function_knows_its_step() -> None:
    async with executor_harness() as at:
        told = await at.call("where", restored=5).result()
        assert (told["run"], told["step"], told["attempt"], told["token"], told["restored"]) == (
            "run 1",
            "s",
            1,
            TOKEN,
            5,
        )
        assert told["thread"] != threading.current_thread().name


async def test_done_is_called_later_on_the_drivers_own_thread() -> None:
    async with executor_harness() as at:
        threads: list[str] = []
        for function in ("give", "give_async"):
            job = at.call(function)
            done = job.execution.on_done
            job.execution.on_done = lambda outcome, done=done: (
                threads.append(threading.current_thread().name),
                done(outcome),
            )
            await job.end()
        job = at.start("noop", {"result": 7})
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
async def test_whatever_a_function_raises_is_a_failure_of_its_step_alone(function: str, message: str) -> None:
    async with executor_harness() as at:
        job = at.call(function)
        code, text = await job.error()
        assert (code, (job.outcomes[0].error or None) and job.outcomes[0].error.retryable) == ("STEP_RAISED", True)
        assert (text or "").startswith(message)
        assert await at.call("give", 1).result() == 1


async def test_the_traceback_is_in_the_steps_log_without_our_frames() -> None:
    async with executor_harness() as at:
        job = at.call("fail")
        await job.end()
        assert "executor_jobs.py" in job.text("err")
        assert "ValueError: broken" in job.text("err")
        assert "src/runwright" not in job.text("err")
        deep = at.call("recurse")
        await deep.end()
        assert len(deep.text("err")) < 2100


async def test_an_error_says_its_code_and_whether_trying_again_helps() -> None:
    async with executor_harness() as at:
        outcome = await at.call("fail_coded").end()
        error = outcome.error
        assert error is not None
        assert (error.code, error.message, error.retryable, error.category) == (
            "NO_STOCK",
            "Nothing left.",
            False,
            "business",
        )
        assert outcome.error.facts == {"sku": 7}


async def test_an_error_of_odd_text_can_be_stored() -> None:
    async with executor_harness() as at:
        for job in (at.call("fail_coded_oddly"), at.call("fail", "a\0b")):
            outcome = await job.end()
            body = msgspec.json.encode(outcome.error)
            assert b"\\u0000" not in body
            assert outcome.error.facts is None


@pytest.mark.parametrize("function", ["give_object", "give_set"])
async def test_a_result_that_cannot_be_stored_fails_for_good(function: str) -> None:
    async with executor_harness() as at:
        outcome = await at.call(function).end()
        assert outcome.error is not None
        assert (outcome.error.code, outcome.error.retryable) == ("RESULT_NOT_STORABLE", False)
        assert "`result` is" in (outcome.error.message or "")


async def test_a_function_that_does_not_exist_is_a_failure() -> None:
    async with executor_harness() as at:
        assert (await at.start("python", {"call": "no_such_module_here:f"}).error())[0] == "CALL_NOT_FOUND"
        assert (await at.call("no_such_function").error())[0] == "CALL_NOT_FOUND"


async def test_what_one_step_leaves_in_its_context_another_does_not_find() -> None:
    async with executor_harness(max_threads=1) as at:
        assert [await at.call("mark").result() for _ in range(3)] == ["clean"] * 3


async def test_a_hundred_waiting_functions_hold_no_other_up() -> None:
    executor_jobs.GATES.clear()
    async with executor_harness() as at:
        waiting = [at.call("wait_for", "hundred") for _ in range(100)]
        assert await at.call("give", 1).result() == 1
        assert not any(job.is_over for job in waiting)
        executor_jobs.gate("hundred").set()
        assert [await job.result() for job in waiting] == ["waited"] * 100


async def test_many_short_functions_need_few_threads() -> None:
    async with executor_harness() as at:
        jobs = [at.call("give", number) for number in range(200)]
        assert [await job.result() for job in jobs] == list(range(200))
        assert len(at.executor._threads._threads) < 100


async def test_a_function_that_looks_out_for_it_stops_when_asked_and_still_gives_a_result() -> None:
    async with executor_harness() as at:
        job = at.call("wait_politely")
        await asyncio.sleep(0.05)
        job.execution.cancel(20)
        assert await job.result() == "stopped when asked"
        assert at.executor.dropped == 0


async def test_a_function_that_ignores_it_is_given_up_after_the_grace_and_its_result_dropped() -> None:
    executor_jobs.GATES.clear()
    async with executor_harness(max_threads=1) as at:
        stubborn = at.call("wait_for", "stubborn")
        await until(lambda: "stubborn" in executor_jobs.GATES)
        stubborn.execution.cancel(0.05)
        outcome = await stubborn.end()
        assert outcome.abandoned
        assert outcome.error is not None
        assert outcome.error.code == "CANCELLED"
        assert await at.call("give", 1).result() == 1, "its place was taken by another thread"
        executor_jobs.gate("stubborn").set()
        await until(lambda: at.executor.dropped == 1)
        assert len(stubborn.outcomes) == 1
        assert at.executor._threads.max_threads == 1
        assert await at.call("give", 2).result() == 2


async def test_a_function_that_is_killed_is_given_up_at_once() -> None:
    executor_jobs.GATES.clear()
    async with executor_harness() as at:
        job = at.call("wait_for", "killed")
        await until(lambda: "killed" in executor_jobs.GATES)
        job.execution.kill()
        assert (await job.end()).abandoned
        executor_jobs.gate("killed").set()


async def test_work_that_is_cancelled_before_it_began_never_begins() -> None:
    executor_jobs.GATES.clear()
    async with executor_harness(max_threads=1) as at:
        first = at.call("wait_for", "busy")
        await until(lambda: "busy" in executor_jobs.GATES)
        second, third = at.call("wait_for", "second"), at.call("wait_for", "third")
        second.execution.cancel(20)
        third.execution.kill()
        for job in (second, third):
            assert (await job.error())[0] == "CANCELLED"
        executor_jobs.gate("busy").set()
        await first.end()
        assert await at.call("give", 1).result() == 1
        assert not {"second", "third"} & set(executor_jobs.GATES)
        assert at.executor.dropped == 0


async def test_cancelling_what_has_ended_does_nothing() -> None:
    async with executor_harness() as at:
        job = at.call("give", 1)
        await job.end()
        job.execution.cancel(0)
        job.execution.kill()
        await asyncio.sleep(0.02)
        assert len(job.outcomes) == 1


async def test_there_is_only_so_much_room_and_what_was_given_up_takes_none() -> None:
    executor_jobs.GATES.clear()
    async with executor_harness(capacity={StepClass.LIGHT: 3}) as at:
        light, heavy = at.executor.free_slots(StepClass.LIGHT), at.executor.free_slots(StepClass.HEAVY)
        assert (light, heavy > 0, at.executor.free_slots(StepClass.ISOLATION)) == (3, True, 2 * heavy)
        job = at.call("wait_for", "room")
        noop = at.start("noop", {})
        big = at.call("give", 1, step_class=StepClass.HEAVY)
        assert at.executor.free_slots(StepClass.LIGHT) == 1
        assert at.executor.free_slots(StepClass.HEAVY) == heavy - 1
        await noop.end()
        await big.end()
        assert at.executor.free_slots(StepClass.LIGHT) == 2
        await until(lambda: "room" in executor_jobs.GATES)
        job.execution.kill()
        await job.end()
        assert at.executor.free_slots(StepClass.LIGHT) == 3
        executor_jobs.gate("room").set()
        await until(lambda: at.executor.dropped == 1)
        assert (at.executor.free_slots(StepClass.LIGHT), at.executor.free_slots(StepClass.HEAVY)) == (3, heavy)


async def test_a_driver_that_fails_to_take_one_outcome_gets_the_next() -> None:
    async with executor_harness() as at:
        complaints: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, what: complaints.append(what))
        bad = at.call("give", 1)
        bad.execution.on_done = lambda _: 1 / 0  # type: ignore[assignment,return-value]
        assert await at.call("give", 2).result() == 2
        await until(lambda: len(complaints) == 1)


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


async def test_a_tool_that_fails_in_the_driver_is_a_failed_step() -> None:
    async with executor_harness() as at:
        for tool in (OddTool(Lane.INLINE, ValueError("x")), OddTool(Lane.INLINE, object())):
            assert (await at.start("odd", {}, tool=tool).end()).error is not None
        assert await at.start("odd", {}, tool=OddTool(Lane.STEP_LOOP, 5)).result() == 5


async def test_after_close_nobody_is_told_any_more() -> None:
    executor_jobs.GATES.clear()
    async with executor_harness() as at:
        jobs = [at.call("wait_for", "closed"), at.call("give_later", 30), at.shell("sleep 30")]
        await until(lambda: "closed" in executor_jobs.GATES)
    executor_jobs.gate("closed").set()
    await asyncio.sleep(0.1)
    assert [job.outcomes for job in jobs] == [[], [], []]
