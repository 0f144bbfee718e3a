"""Isolated steps and commands, which run in processes of their own."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from runwright.contract.errors import ErrorCode, RunwrightError
from runwright.contract.plan import StepClass
from support.executor_harness import TOKEN, executor_harness
from support.waiting import until


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


async def test_isolated_function_runs_in_another_process() -> None:
    async with executor_harness() as harness:
        plain, later = harness.isolated("where", restored={"at": 3}), harness.isolated("where_async")
        info = await plain.result()
        assert info["pid"] != os.getpid()
        assert (info["run"], info["step"], info["attempt"], info["token"]) == ("run 1", "s", 1, TOKEN)
        assert info["restored"] == {"at": 3}
        assert (await later.result())["step"] == "s"


async def test_isolated_code_receives_and_returns_large_values() -> None:
    async with executor_harness() as harness:
        text = "ä" * 500_000
        inputs = {"code": "[text, len(text)]", "args": {"text": text}}
        assert await harness.start("python", inputs, StepClass.ISOLATION).result() == [text, 500_000]


async def test_output_of_an_isolated_step_is_logged_as_it_runs() -> None:
    async with executor_harness() as harness:
        job = harness.isolated("talk")
        await job.end()
        assert job.text() == "to out\nno newline raw"
        assert "to err" in job.text("err")
        assert "to the log" in job.text("err")
        slow = harness.isolated("sleep_with_cleanup")
        await slow.prints("begun")
        slow.execution.kill()
        await slow.end()


@pytest.mark.parametrize(
    ("function", "code", "message"),
    [
        ("fail", "STEP_RAISED", "ValueError: broken"),
        ("leave", "STEP_RAISED", "SystemExit: 3"),
        ("fail_coded", "NO_STOCK", "Nothing left."),
        ("give_object", "RESULT_NOT_STORABLE", "The result cannot be stored"),
        ("no_such_function", "CALL_NOT_FOUND", "'no_such_function' not found in module 'support.executor_jobs'"),
    ],
)
async def test_errors_of_isolated_steps_have_code_and_message(function: str, code: str, message: str) -> None:
    async with executor_harness() as harness:
        job = harness.isolated(function)
        got, text = await job.error()
        assert got == code
        assert (text or "").startswith(message)
        if code == "NO_STOCK":
            assert job.outcomes[0].error.facts == {"sku": 7}


@pytest.mark.parametrize(
    ("function", "argument", "expected"),
    [
        ("die", signal.SIGKILL, "killed by SIGKILL"),
        ("die", signal.SIGSEGV, "killed by SIGSEGV"),
        ("exit_hard", 0, "exit code 0"),
        ("exit_hard", 7, "exit code 7"),
    ],
)
async def test_dead_process_is_reported_with_signal_or_exit_code(function: str, argument: int, expected: str) -> None:
    async with executor_harness() as harness:
        job = harness.isolated(function, int(argument))
        code, message = await job.error()
        assert code == "PROCESS_DIED"
        assert expected in (message or "")
        if function == "die":
            assert "last words" in job.text()


async def test_isolated_step_waits_until_a_checkpoint_is_durable() -> None:
    saved: list[Any] = []

    def save(state: Any) -> None:
        time.sleep(0.05)
        saved.append(state)

    async with executor_harness() as harness:
        job = harness.isolated("save_twice", save=save, restored="before")
        assert await job.result() == "before"
        assert saved == [{"at": 1}, {"at": 2}]


async def test_checkpoint_failure_is_raised_in_the_isolated_step() -> None:
    def save(_: Any) -> None:
        raise RunwrightError(ErrorCode.STORE_FULL, "No room.")

    async with executor_harness() as harness:
        assert await harness.isolated("save_twice", save=save).error() == ("STORE_FULL", "No room.")
        code, _ = await harness.isolated("save_badly").error()
        assert code == "RESULT_NOT_STORABLE"


@pytest.mark.parametrize("function", ["sleep_with_cleanup", "sleep_async_with_cleanup"])
async def test_cancelled_isolated_step_is_interrupted_and_cleans_up(function: str) -> None:
    async with executor_harness() as harness:
        job = harness.isolated(function)
        await job.prints("begun")
        job.execution.cancel(20)
        assert (await job.error())[0] == "CANCELLED"
        assert "cleaned up" in job.text()


async def test_isolated_step_can_checkpoint_and_return_on_cancel() -> None:
    saved: list[Any] = []
    async with executor_harness() as harness:
        job = harness.isolated("save_on_stop", save=saved.append)
        await job.prints("begun")
        await asyncio.sleep(0.2)  # The step must be waiting when it is cancelled.
        job.execution.cancel(20)
        assert await job.result() == "saved"
        assert saved == ["stopped here"]


async def test_isolated_step_that_ignores_sigterm_is_killed() -> None:
    async with executor_harness() as harness:
        job = harness.isolated("ignore_sigterm")
        await job.prints("\n")
        pid = int(job.text())
        job.execution.cancel(0.1)
        outcome = await job.end()
        assert not outcome.abandoned
        assert outcome.error is not None
        assert outcome.error.code == "CANCELLED"
        await until(lambda: not is_alive(pid))


async def test_child_processes_of_an_isolated_step_end_with_it() -> None:
    async with executor_harness() as harness:
        pid = await harness.isolated("leave_child_behind").result()
        await until(lambda: not is_alive(pid))
        assert await harness.isolated("leave_thread_behind").result() == "done"


async def test_processes_get_run_step_attempt_and_token() -> None:
    expected = {
        "RUNWRIGHT_RUN_ID": "run 1",
        "RUNWRIGHT_STEP_ID": "s",
        "RUNWRIGHT_ATTEMPT": "1",
        "RUNWRIGHT_IDEMPOTENCY_TOKEN": TOKEN,
    }
    async with executor_harness() as harness:
        assert expected.items() <= (await harness.isolated("environment").result()).items()


async def test_cancelled_command_gets_sigterm_and_then_sigkill() -> None:
    async with executor_harness() as harness:
        cooperative = harness.shell("trap 'echo bye; exit 0' TERM; echo begun; while :; do sleep 0.05; done")
        stubborn = harness.shell("trap '' TERM; echo begun $$; while :; do sleep 1; done")
        await cooperative.prints("begun")
        await stubborn.prints("begun")
        cooperative.execution.cancel(20)
        assert (await cooperative.error())[0] == "CANCELLED"
        assert "bye" in cooperative.text()
        stubborn.execution.cancel(0.1)
        assert (await stubborn.error())[0] == "CANCELLED"
        await until(lambda: not is_alive(int(stubborn.text().split()[1])))


async def test_kill_ends_a_command_without_waiting_for_the_grace() -> None:
    async with executor_harness() as harness:
        for cancel_first in (False, True):
            job = harness.shell("trap '' TERM; echo $$; while :; do sleep 1; done")
            await job.prints("\n")
            if cancel_first:
                job.execution.cancel(600)
                await asyncio.sleep(0.05)
                assert not job.is_over
            job.execution.kill()
            assert (await job.error())[0] == "CANCELLED"
            await until(lambda job=job: not is_alive(int(job.text())))


async def test_closing_kills_every_process() -> None:
    async with executor_harness() as harness:
        jobs = [harness.shell("trap '' TERM; echo $$; while :; do sleep 1; done"), harness.isolated("ignore_sigterm")]
        for job in jobs:
            await job.prints("\n")
        pids = [int(job.text()) for job in jobs]
    for pid in pids:
        await until(lambda pid=pid: not is_alive(pid))
