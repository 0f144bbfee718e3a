"""Isolated steps and commands: processes that cannot harm us."""

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


async def test_an_isolated_function_gives_its_result_from_another_process() -> None:
    async with executor_harness() as at:
        plain, later = at.isolated("where", restored={"at": 3}), at.isolated("where_async")
        told = await plain.result()
        assert told["pid"] != os.getpid()
        assert (told["run"], told["step"], told["attempt"], told["token"]) == ("run 1", "s", 1, TOKEN)
        assert told["restored"] == {"at": 3}
        assert (await later.result())["step"] == "s"


async def test_isolated_code_runs_too_and_large_values_pass() -> None:
    async with executor_harness() as at:
        text = "ä" * 500_000
        inputs = {"code": "[text, len(text)]", "args": {"text": text}}
        assert await at.start("python", inputs, StepClass.ISOLATION).result() == [text, 500_000]


async def test_an_isolated_step_prints_to_its_log_as_it_goes() -> None:
    async with executor_harness() as at:
        job = at.isolated("talk")
        await job.end()
        assert job.text() == "to out\nno newline raw"
        assert "to err" in job.text("err")
        assert "to the log" in job.text("err")
        slow = at.isolated("sleep_with_cleanup")
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
async def test_an_isolated_step_fails_as_any_other(function: str, code: str, message: str) -> None:
    async with executor_harness() as at:
        job = at.isolated(function)
        got, text = await job.error()
        assert got == code
        assert (text or "").startswith(message)
        if code == "NO_STOCK":
            assert job.outcomes[0].error.facts == {"sku": 7}


@pytest.mark.parametrize(
    ("function", "argument", "words"),
    [
        ("die", signal.SIGKILL, "killed by SIGKILL"),
        ("die", signal.SIGSEGV, "killed by SIGSEGV"),
        ("exit_hard", 0, "exit code 0"),
        ("exit_hard", 7, "exit code 7"),
    ],
)
async def test_a_process_that_dies_is_a_failure_that_says_how(function: str, argument: int, words: str) -> None:
    async with executor_harness() as at:
        job = at.isolated(function, int(argument))
        code, message = await job.error()
        assert code == "PROCESS_DIED"
        assert words in (message or "")
        if function == "die":
            assert "last words" in job.text()


async def test_checkpoints_of_an_isolated_step_are_made_durable_before_it_goes_on() -> None:
    saved: list[Any] = []

    def save(state: Any) -> None:
        time.sleep(0.05)
        saved.append(state)

    async with executor_harness() as at:
        job = at.isolated("save_twice", save=save, restored="before")
        assert await job.result() == "before"
        assert saved == [{"at": 1}, {"at": 2}]


async def test_a_checkpoint_that_fails_is_told_to_the_isolated_step() -> None:
    def save(_: Any) -> None:
        raise RunwrightError(ErrorCode.STORE_FULL, "No room.")

    async with executor_harness() as at:
        assert await at.isolated("save_twice", save=save).error() == ("STORE_FULL", "No room.")
        code, _ = await at.isolated("save_badly").error()
        assert code == "RESULT_NOT_STORABLE"


@pytest.mark.parametrize("function", ["sleep_with_cleanup", "sleep_async_with_cleanup"])
async def test_an_isolated_step_that_does_not_look_out_is_interrupted_and_cleans_up(function: str) -> None:
    async with executor_harness() as at:
        job = at.isolated(function)
        await job.prints("begun")
        job.execution.cancel(20)
        assert (await job.error())[0] == "CANCELLED"
        assert "cleaned up" in job.text()


async def test_an_isolated_step_that_looks_out_may_save_where_it_is_and_give_a_result() -> None:
    saved: list[Any] = []
    async with executor_harness() as at:
        job = at.isolated("save_on_stop", save=saved.append)
        await job.prints("begun")
        await asyncio.sleep(0.2)  # until it waits
        job.execution.cancel(20)
        assert await job.result() == "saved"
        assert saved == ["stopped here"]


async def test_an_isolated_step_that_ignores_sigterm_is_killed_after_the_grace() -> None:
    async with executor_harness() as at:
        job = at.isolated("ignore_sigterm")
        await job.prints("\n")
        pid = int(job.text())
        job.execution.cancel(0.1)
        outcome = await job.end()
        assert not outcome.abandoned
        assert outcome.error is not None
        assert outcome.error.code == "CANCELLED"
        await until(lambda: not is_alive(pid))


async def test_what_an_isolated_step_starts_ends_with_it() -> None:
    async with executor_harness() as at:
        pid = await at.isolated("leave_child_behind").result()
        await until(lambda: not is_alive(pid))
        assert await at.isolated("leave_thread_behind").result() == "done"


async def test_processes_are_told_who_they_are() -> None:
    expected = {
        "RUNWRIGHT_RUN_ID": "run 1",
        "RUNWRIGHT_STEP_ID": "s",
        "RUNWRIGHT_ATTEMPT": "1",
        "RUNWRIGHT_IDEMPOTENCY_TOKEN": TOKEN,
    }
    async with executor_harness() as at:
        assert expected.items() <= (await at.isolated("environment").result()).items()


async def test_a_command_that_is_cancelled_is_asked_and_then_killed() -> None:
    async with executor_harness() as at:
        polite = at.shell("trap 'echo bye; exit 0' TERM; echo begun; while :; do sleep 0.05; done")
        rude = at.shell("trap '' TERM; echo begun $$; while :; do sleep 1; done")
        await polite.prints("begun")
        await rude.prints("begun")
        polite.execution.cancel(20)
        assert (await polite.error())[0] == "CANCELLED"
        assert "bye" in polite.text()
        rude.execution.cancel(0.1)
        assert (await rude.error())[0] == "CANCELLED"
        await until(lambda: not is_alive(int(rude.text().split()[1])))


async def test_a_command_that_is_killed_is_gone_at_once() -> None:
    async with executor_harness() as at:
        for first_asked in (False, True):
            job = at.shell("trap '' TERM; echo $$; while :; do sleep 1; done")
            await job.prints("\n")
            if first_asked:
                job.execution.cancel(600)
                await asyncio.sleep(0.05)
                assert not job.is_over
            job.execution.kill()
            assert (await job.error())[0] == "CANCELLED"
            await until(lambda job=job: not is_alive(int(job.text())))


async def test_closing_kills_every_process() -> None:
    async with executor_harness() as at:
        jobs = [at.shell("trap '' TERM; echo $$; while :; do sleep 1; done"), at.isolated("ignore_sigterm")]
        for job in jobs:
            await job.prints("\n")
        pids = [int(job.text()) for job in jobs]
    for pid in pids:
        await until(lambda pid=pid: not is_alive(pid))
