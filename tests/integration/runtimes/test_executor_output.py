"""What steps print goes to their logs; the terminal stays ours."""

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
    async with executor_harness() as at:
        job = at.call("talk")
        await job.end()
        print("ours")
        assert job.text() == "to out\nno newline raw"
        assert "to err\n" in job.text("err")
        assert "shop: to the log" in job.text("err")
    out, err = capsys.readouterr()
    assert (out, err) == ("ours\n", "")


async def test_coroutines_on_one_loop_do_not_mix_their_output(capsys: pytest.CaptureFixture[str]) -> None:
    async with executor_harness() as at:
        jobs = {name: at.call("talk_async", name) for name in ("a", "b", "c")}
        for name, job in jobs.items():
            await job.end()
            assert job.text().splitlines() == [f"{name} {number}" for number in range(20)] + [f"{name} from a thread"]
    assert capsys.readouterr().out == ""


async def test_the_streams_are_ours_again_when_the_last_executor_is_closed() -> None:
    out, err = sys.stdout, sys.stderr
    async with executor_harness():
        assert isinstance(sys.stdout, OutputRouter)
        async with executor_harness():
            pass
        assert isinstance(sys.stdout, OutputRouter)
    assert (sys.stdout, sys.stderr) == (out, err)


async def test_somebody_who_puts_another_stream_in_place_keeps_it(monkeypatch: pytest.MonkeyPatch) -> None:
    mine = io.StringIO()
    async with executor_harness():
        monkeypatch.setattr(sys, "stdout", mine)
        print("to mine")
        async with executor_harness() as at:
            job = at.call("talk")
            await job.end()
            assert job.text().startswith("to out")
    assert mine.getvalue() == "to mine\n"


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
    async with executor_harness() as at:
        assert sys.stdout.isatty()
        assert await at.call("is_terminal").result() is False


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
async def test_what_a_step_logs_is_in_its_log_once(
    setting: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    with bare_root() as root:
        if setting == "configured before":
            logging.basicConfig(level=logging.INFO)
        if setting == "a file only":
            root.addHandler(logging.FileHandler(tmp_path / "file.log"))
        before = list(root.handlers)
        async with executor_harness() as at:
            if setting == "configured inside":
                logging.basicConfig(level=logging.INFO)
                assert root.handlers, "ours is not in the way"
            job = at.call("talk")
            await job.end()
            assert job.text("err").count("to the log") == 1
            logging.getLogger("engine").warning("for the operator")
            assert "for the operator" not in job.text("err")
        if setting != "configured inside":
            assert root.handlers == before
    out, err = capsys.readouterr()
    assert "to the log" not in out + err
    assert ("for the operator" in err) == (setting != "a file only")


async def test_a_step_that_prints_a_hundred_megabytes_harms_nobody(tmp_path: Path) -> None:
    logs = StepLogs(tmp_path)
    writer = logs.writer("r", "flood", 1)
    async with executor_harness() as at:
        flood = at.call("flood", 100, write=writer.write)
        longest, beats = 0.0, 0
        loop = asyncio.get_running_loop()
        while not flood.is_over:
            began = loop.time()
            assert await at.call("give", 1).result() == 1
            assert await at.call("give_async", 2).result() == 2
            longest, beats = max(longest, loop.time() - began), beats + 1
        assert await flood.result() is None
        assert beats > 3
        assert longest < 5
    writer.close()
    assert sum(path.stat().st_size for path in tmp_path.rglob("*.log")) < 18 * 1024 * 1024
    assert logs.last_line("r", "flood") == "x" * 999
    logs.close()


async def test_a_command_that_prints_short_lines_for_ever_harms_nobody(tmp_path: Path) -> None:
    logs = StepLogs(tmp_path)
    writer = logs.writer("r", "yes", 1)
    async with executor_harness() as at:
        flood = at.shell("yes | head -c 20000000", write=writer.write)
        while not flood.is_over:
            assert (await at.shell("echo ok").result())["stdout"] == "ok\n"
        await flood.result()
    writer.close()
    assert sum(path.stat().st_size for path in tmp_path.rglob("*.log")) < 19 * 1024 * 1024
    logs.close()


async def test_late_words_of_a_step_that_was_given_up_go_to_its_log_or_nowhere(
    capsys: pytest.CaptureFixture[str],
) -> None:
    from support import executor_jobs

    executor_jobs.GATES.clear()
    async with executor_harness() as at:
        job = at.call("wait_by_name", "late words")
        await job.prints("begun")
        job.execution.kill()
        await job.end()
        executor_jobs.gate("late words").set()
        await job.prints("late words")
    assert capsys.readouterr().out == ""


async def test_all_output_is_there_before_the_driver_hears_of_the_end(tmp_path: Path) -> None:
    logs = StepLogs(tmp_path)
    reader = StepLogs(tmp_path)
    async with executor_harness() as at:
        starts = {
            "thread": lambda **options: at.call("talk", **options),
            "loop": lambda **options: at.call("talk_async", "x", **options),
            "failed": lambda **options: at.call("fail", **options),
            "command": lambda **options: at.shell("echo to out", **options),
            "process": lambda **options: at.isolated("talk", **options),
        }
        for name, start in starts.items():
            writer = logs.writer("r", name, 1)
            await start(write=writer.write, end_output=writer.close).end()
            assert list(reader.read("r", name)), name
        broken = at.call("give", 1, end_output=lambda: 1 / 0)
        assert await broken.result() == 1
    logs.close()
