"""The output of steps goes to their logs and not to the terminal."""

from __future__ import annotations

import asyncio
import contextlib
import io
import logging
import sys
from collections.abc import Generator
from pathlib import Path

import click
import pytest
from rich.console import Console

from runwright.runtimes.executor.output_capture import OutputRouter
from runwright.storage.output.files import StepLogs
from support.executor_harness import executor_harness


async def test_a_step_prints_to_its_log_and_not_to_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    async with executor_harness() as harness:
        job = harness.call("talk")
        await job.end()
        print("ours")
        assert job.text() == "to out\nno newline raw"
        assert "to err\n" in job.text("err")
        assert "shop: to the log" in job.text("err")
    out, err = capsys.readouterr()
    assert (out, err) == ("ours\n", "")


async def test_coroutines_on_one_loop_do_not_mix_their_output(capsys: pytest.CaptureFixture[str]) -> None:
    async with executor_harness() as harness:
        jobs = {name: harness.call("talk_async", name) for name in ("a", "b", "c")}
        for name, job in jobs.items():
            await job.end()
            assert job.text().splitlines() == [f"{name} {number}" for number in range(20)] + [f"{name} from a thread"]
    assert capsys.readouterr().out == ""


async def test_closing_the_last_executor_restores_the_streams() -> None:
    out, err = sys.stdout, sys.stderr
    async with executor_harness():
        assert isinstance(sys.stdout, OutputRouter)
        async with executor_harness():
            pass
        assert isinstance(sys.stdout, OutputRouter)
    assert (sys.stdout, sys.stderr) == (out, err)


async def test_a_replaced_stdout_is_not_overwritten(monkeypatch: pytest.MonkeyPatch) -> None:
    replacement = io.StringIO()
    async with executor_harness():
        monkeypatch.setattr(sys, "stdout", replacement)
        print("to mine")
        async with executor_harness() as harness:
            job = harness.call("talk")
            await job.end()
            assert job.text().startswith("to out")
    assert replacement.getvalue() == "to mine\n"


async def test_click_and_rich_work_as_before_outside_of_steps(capsys: pytest.CaptureFixture[str]) -> None:
    async with executor_harness():
        click.echo("by click")
        click.echo("by click to err", err=True)
        Console().print("by rich")
        assert sys.stdout.encoding
        assert sys.stdout.isatty() is False
        sys.stdout.writelines(["by ", "hand\n"])
        sys.stdout.flush()
    out, err = capsys.readouterr()
    assert out == "by click\nby rich\nby hand\n"
    assert err == "by click to err\n"


async def test_a_step_has_no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(sys, "stdout", Terminal())
    async with executor_harness() as harness:
        assert sys.stdout.isatty()
        assert await harness.call("is_terminal").result() is False


@contextlib.contextmanager
def bare_root() -> Generator[logging.Logger]:
    """The root logger as a program finds it, without pytest's own handlers."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    root.handlers[:] = []
    try:
        yield root
    finally:
        for handler in root.handlers:
            handler.close()
        root.handlers[:] = handlers
        root.setLevel(level)


@pytest.mark.parametrize("setting", ["nothing", "configured before", "configured inside", "a file only"])
async def test_log_record_of_a_step_is_in_its_output_once(
    setting: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    with bare_root() as root:
        if setting == "configured before":
            logging.basicConfig(level=logging.INFO)
        if setting == "a file only":
            root.addHandler(logging.FileHandler(tmp_path / "file.log"))
        before = list(root.handlers)
        async with executor_harness() as harness:
            if setting == "configured inside":
                logging.basicConfig(level=logging.INFO)
                assert root.handlers, "the handler of the executor does not prevent basicConfig"
            job = harness.call("talk")
            await job.end()
            assert job.text("err").count("to the log") == 1
            logging.getLogger("engine").warning("for the operator")
            assert "for the operator" not in job.text("err")
        if setting != "configured inside":
            assert root.handlers == before
    out, err = capsys.readouterr()
    assert "to the log" not in out + err
    assert ("for the operator" in err) == (setting != "a file only")


async def test_step_that_prints_100_mb_does_not_block_others(tmp_path: Path) -> None:
    logs = StepLogs(tmp_path)
    writer = logs.writer("r", "flood", 1)
    async with executor_harness() as harness:
        flood = harness.call("flood", 100, write=writer.write)
        longest, beats = 0.0, 0
        loop = asyncio.get_running_loop()
        while not flood.is_over:
            began = loop.time()
            assert await harness.call("give", 1).result() == 1
            assert await harness.call("give_async", 2).result() == 2
            longest, beats = max(longest, loop.time() - began), beats + 1
        assert await flood.result() is None
        assert beats > 3
        assert longest < 5
    writer.close()
    assert sum(path.stat().st_size for path in tmp_path.rglob("*.log")) < 18 * 1024 * 1024
    assert logs.last_line("r", "flood") == "x" * 999
    logs.close()


async def test_command_with_many_short_lines_does_not_block_others(tmp_path: Path) -> None:
    logs = StepLogs(tmp_path)
    writer = logs.writer("r", "yes", 1)
    async with executor_harness() as harness:
        flood = harness.shell("yes | head -c 16000000", write=writer.write)
        while not flood.is_over:
            assert (await harness.shell("echo ok").result())["stdout"] == "ok\n"
        await flood.result()
    writer.close()
    assert sum(path.stat().st_size for path in tmp_path.rglob("*.log")) < 19 * 1024 * 1024
    logs.close()


async def test_late_output_of_an_abandoned_step_goes_to_its_log(
    capsys: pytest.CaptureFixture[str],
) -> None:
    from support import executor_jobs

    executor_jobs.GATES.clear()
    async with executor_harness() as harness:
        job = harness.call("wait_by_name", "late words")
        await job.prints("begun")
        job.execution.kill()
        await job.end()
        executor_jobs.gate("late words").set()
        await job.prints("late words")
    assert capsys.readouterr().out == ""


async def test_all_output_is_stored_before_the_end_is_reported(tmp_path: Path) -> None:
    logs = StepLogs(tmp_path)
    reader = StepLogs(tmp_path)
    async with executor_harness() as harness:
        starts = {
            "thread": lambda **options: harness.call("talk", **options),
            "loop": lambda **options: harness.call("talk_async", "x", **options),
            "failed": lambda **options: harness.call("fail", **options),
            "command": lambda **options: harness.shell("echo to out", **options),
            "process": lambda **options: harness.isolated("talk", **options),
        }
        for name, start in starts.items():
            writer = logs.writer("r", name, 1)
            await start(write=writer.write, end_output=writer.close).end()
            assert list(reader.read("r", name)), name
        broken = harness.call("give", 1, end_output=lambda: 1 / 0)
        assert await broken.result() == 1
    logs.close()
