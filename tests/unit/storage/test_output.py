"""Output of steps: stored in files, bounded, and read back unchanged."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runwright.storage.output import writer as output_writer
from runwright.storage.output.chunks import CAP_BYTES, is_beneath, may_be_beneath, safe_name
from runwright.storage.output.files import LogLine, StepLogs
from support.waiting import wait_until


@pytest.fixture
def logs(tmp_path: Path) -> Iterator[StepLogs]:
    step_logs = StepLogs(tmp_path / "logs")
    yield step_logs
    step_logs.close()


def texts(lines: Any) -> list[str]:
    return [line.text for line in lines]


def test_lines_have_time_stream_entity_and_attempt(logs: StepLogs) -> None:
    writer = logs.writer("run 1", "load[3]", 2)
    writer.write("out", b"one\ntwo\n")
    writer.write("err", b"oops\n")
    writer.close()
    lines = list(logs.read("run 1"))
    assert [(line.entity, line.attempt, line.stream, line.text) for line in lines] == [
        ("load[3]", 2, "out", "one"),
        ("load[3]", 2, "out", "two"),
        ("load[3]", 2, "err", "oops"),
    ]
    assert lines[0].time.endswith("Z")


def test_a_step_without_output_creates_no_file(logs: StepLogs, tmp_path: Path) -> None:
    logs.writer("r", "s", 1).close()
    assert not list(tmp_path.rglob("*.log"))
    assert list(logs.read("r")) == []
    assert logs.last_line("r", "s") is None


def test_partial_writes_are_joined_into_lines(logs: StepLogs) -> None:
    writer = logs.writer("r", "s", 1)
    for piece in (b"a", b"b\nc", b"\n\n", b"d"):
        writer.write("out", piece)
    writer.close()
    assert texts(logs.read("r")) == ["ab", "c", "", "d"]


def test_the_two_streams_are_not_mixed_within_a_line(logs: StepLogs) -> None:
    writer = logs.writer("r", "s", 1)
    writer.write("out", b"out ")
    writer.write("err", b"err\n")
    writer.write("out", b"done\n")
    writer.close()
    assert texts(logs.read("r")) == ["err", "out done"]


def test_an_unfinished_line_is_flushed_without_an_extra_line(logs: StepLogs) -> None:
    writer = logs.writer("r", "s", 1)
    writer.write("out", b"password: ")
    wait_until(lambda: logs.last_line("r", "s") == "password: ")
    writer.write("out", b"\nnext\n")
    writer.close()
    assert texts(logs.read("r")) == ["password: ", "next"]


def test_an_incomplete_utf8_character_is_held_back(logs: StepLogs) -> None:
    writer = logs.writer("r", "s", 1)
    writer.write("out", b"gr\xc3")
    wait_until(lambda: logs.last_line("r", "s") == "gr")
    writer.write("out", b"\xbcn\n")
    writer.close()
    assert texts(logs.read("r")) == ["gr", "ün"]


def test_control_characters_and_invalid_utf8_are_stored(logs: StepLogs) -> None:
    writer = logs.writer("r", "s", 1)
    writer.write("out", b"\x1b[31mred\x1b[0m\ttab\r50%\r\n\xff\xfe\0\n")
    writer.close()
    assert texts(logs.read("r")) == ["\x1b[31mred\x1b[0m\ttab\r50%\r", "��\0"]


@pytest.mark.parametrize("pieces", [1, 7, 1000])
def test_an_overlong_line_is_split_between_characters(logs: StepLogs, pieces: int) -> None:
    text = "äöü" * 50_000
    body = text.encode() + b"\nshort\n"
    writer = logs.writer("r", "s", 1)
    size = len(body) // pieces + 1
    for start in range(0, len(body), size):
        writer.write("out", body[start : start + size])
    writer.close()
    lines = texts(logs.read("r"))
    assert lines[-1] == "short"
    assert "".join(lines[:-1]) == text
    assert len(lines) > 4
    assert max(len(line.encode()) for line in lines) <= output_writer.MAX_LINE_BYTES


def test_many_short_lines_are_written_in_few_system_calls(logs: StepLogs, monkeypatch: pytest.MonkeyPatch) -> None:
    writes: list[int] = []
    real = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: writes.append(1) or real(fd, data))
    writer = logs.writer("r", "s", 1)
    for number in range(200_000):
        writer.write("out", b"%d\n" % number)
    writer.close()
    monkeypatch.undo()
    assert len(writes) < 1000
    lines = texts(logs.read("r"))
    assert lines[-1] == "199999"
    assert lines == [str(number) for number in range(200_000)]


def test_output_above_the_limit_loses_its_middle_with_a_note(logs: StepLogs, tmp_path: Path) -> None:
    writer = logs.writer("r", "s", 1)
    block = b"".join(b"%07d " % number + b"x" * 991 + b"\n" for number in range(100))
    for _ in range(400):
        writer.write("out", block)
    writer.write("out", b"the end\n")
    writer.close()
    stored_bytes = sum(path.stat().st_size for path in tmp_path.rglob("*.log"))
    assert stored_bytes <= CAP_BYTES + 1024 * 1024
    lines = list(logs.read("r"))
    assert lines[0].text.startswith("0000000")
    assert lines[-1].text == "the end"
    (note,) = [line for line in lines if line.stream == "note"]
    dropped_bytes = int(note.text.split()[1].replace(",", ""))
    stored_output = sum(len(line.text) + len(line.time) + 6 for line in lines if line.stream == "out")
    assert dropped_bytes + stored_output == 400 * 100 * (1000 + 27 + 5) + 7 + 1 + 27 + 5
    assert dropped_bytes > 20_000_000


def test_output_of_a_repeated_attempt_is_appended(logs: StepLogs) -> None:
    for part in (b"first\n", b"second\n"):
        writer = logs.writer("r", "s", 1)
        writer.write("out", part)
        writer.flush(at_once=True)  # The process is killed here.
    assert texts(logs.read("r")) == ["first", "second"]


def test_two_writers_of_one_attempt_do_not_corrupt_its_output(logs: StepLogs) -> None:
    writers = [logs.writer("r", "s", 1) for _ in range(2)]
    for number in range(5):
        for writer in writers:
            writer.write("out", b"%d\n" % number)
            writer.flush(at_once=True)
    assert sorted(texts(logs.read("r"))) == sorted([str(number) for number in range(5)] * 2)


def test_entities_are_merged_by_time(tmp_path: Path) -> None:
    now = 1_767_225_600_000_000

    def tick() -> int:
        nonlocal now
        now += 1_000
        return now

    logs = StepLogs(tmp_path, now=tick)
    writers = {name: logs.writer("r", name, 1) for name in ("a", "b", "c")}
    for number, name in enumerate("abcabccba"):
        writers[name].write("out", b"%d\n" % number)
    assert texts(logs.read("r")) == [str(number) for number in range(9)]
    logs.close()


def test_reading_a_step_includes_its_iterations_and_tasks(logs: StepLogs) -> None:
    for entity in ("load", "load[0]", "load[10]", "load~2[0]", "load@2", "load/task", "loader", "load.x", "unload"):
        logs.writer("r", entity, 1).write("out", entity.encode())
    assert sorted(texts(logs.read("r", "load"))) == ["load", "load/task", "load@2", "load[0]", "load[10]", "load~2[0]"]
    assert texts(logs.read("r", "load[10]")) == ["load[10]"]
    assert len(texts(logs.read("r"))) == 9


def test_output_of_one_attempt_can_be_read(logs: StepLogs) -> None:
    for attempt in (1, 2, 10):
        logs.writer("r", "s", attempt).write("out", b"%d\n" % attempt)
    assert texts(logs.read("r", "s", attempt=2)) == ["2"]
    logs.writer("r", "s", 10).write("out", b"last\n")
    wait_until(lambda: logs.last_line("r", "s") == "last")


@pytest.mark.parametrize(
    "name",
    [
        "plain",
        "..",
        ".",
        "../../etc",
        "a/b",
        "Ünïcode",
        "x" * 512,
        "x" * 511 + "y",
        "UPPER",
        "upper",
        "a\nb",
        "s[3]",
        "con",
        "~",
        "a~b",
        " ",
    ],
)
def test_any_name_is_stored_in_safe_file_names(tmp_path: Path, name: str) -> None:
    logs = StepLogs(tmp_path / "logs")
    logs.writer(name, name, 1).write("out", name.encode())
    (line, *_) = list(logs.read(name))
    assert line.entity == name
    assert texts(logs.read(name, name))[0] == name.split("\n")[0]
    assert logs.last_line(name, name) == name.split("\n")[-1]
    for path in tmp_path.rglob("*"):
        assert len(path.name) < 120
    assert {path.name for path in tmp_path.iterdir()} == {"logs"}
    logs.close()


@given(st.lists(st.text(min_size=1, max_size=600), unique=True, max_size=5), st.text(min_size=1, max_size=90))
def test_different_entities_have_different_file_names(names: list[str], entity: str) -> None:
    assert len({safe_name(name).lower() for name in names}) == len(names)
    for part in ("", "[3]", "@2", "/task"):
        assert is_beneath(entity + part, entity)
        assert may_be_beneath(safe_name(entity + part), entity)


def test_line_times_never_decrease_within_an_attempt(tmp_path: Path) -> None:
    times = iter([5_000_000_000, 9_000_000_000, 1_000_000, 2_000_000] + [3_000_000] * 10)
    logs = StepLogs(tmp_path, now=lambda: next(times))
    writer = logs.writer("r", "s", 1)
    for number in range(4):
        writer.write("out", b"%d\n" % number)
    lines = list(logs.read("r"))
    assert texts(lines) == ["0", "1", "2", "3"]
    assert [line.time for line in lines] == sorted(line.time for line in lines)
    logs.close()


def test_a_full_disk_drops_output_with_one_warning_and_a_note(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    logs = StepLogs(tmp_path)
    writer = logs.writer("r", "s", 1)
    writer.write("out", b"before\n")
    writer.flush(at_once=True)
    real = os.write

    def full(fd: int, data: bytes) -> int:
        if threading.current_thread() is threading.main_thread() or data:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(fd, data)

    with caplog.at_level(logging.WARNING):
        monkeypatch.setattr(os, "write", full)
        for _ in range(3):
            writer.write("out", b"lost\n")
            writer.flush(at_once=True)
        assert writer.dropped == 3 * (5 + 27 + 5)
        wait_until(lambda: "No space left" in caplog.text)
        monkeypatch.undo()
    monkeypatch.setattr(writer, "_retry_at", 0.0)
    writer.write("out", b"after\n")
    writer.close()
    assert len(caplog.records) == 1
    lines = list(logs.read("r"))
    assert texts(lines) == ["before", "... 111 bytes of output were dropped ...", "after"]
    logs.close()


def test_a_partial_write_leaves_no_partial_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    logs = StepLogs(tmp_path)
    writer = logs.writer("r", "s", 1)
    writer.write("out", b"before\n")
    writer.flush(at_once=True)
    real, calls = os.write, []

    def short(fd: int, data: bytes) -> int:
        calls.append(1)
        if len(calls) > 1:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(fd, data[:10])

    monkeypatch.setattr(os, "write", short)
    writer.write("out", b"lost\n")
    writer.flush(at_once=True)
    monkeypatch.undo()
    assert texts(logs.read("r")) == ["before"]
    logs.close()


def test_an_unwritable_folder_does_not_fail_the_step(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    logs = StepLogs(tmp_path / "file")
    writer = logs.writer("r", "s", 1)
    writer.write("out", b"line\n" * 100_000)
    writer.close()
    assert writer.dropped > 0
    assert list(logs.read("r")) == []
    logs.close()


def test_many_threads_may_write_to_one_step(logs: StepLogs) -> None:
    writer = logs.writer("r", "s", 1)

    def write_lines(name: int) -> None:
        for number in range(500):
            writer.write("out", b"%d %d\n" % (name, number))

    threads = [threading.Thread(target=write_lines, args=(name,)) for name in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    writer.close()
    writer.write("out", b"too late\n")
    lines = texts(logs.read("r"))
    assert len(lines) == 2000
    for name in range(4):
        assert [line for line in lines if line.startswith(f"{name} ")] == [f"{name} {number}" for number in range(500)]


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_forked_step_does_not_repeat_buffered_output(logs: StepLogs) -> None:
    writer = logs.writer("r", "s", 1)
    writer.write("out", b"parent before\nunfinished ")
    with writer._lock:  # A thread that does not exist in the fork holds the lock.
        pid = os.fork()
        if pid == 0:
            writer.write("out", b"child\n")
            writer.write("err", b"child err\n")
            os._exit(0)
    os.waitpid(pid, 0)
    writer.write("out", b"parent after\n")
    writer.close()
    assert sorted(texts(logs.read("r"))) == ["child", "child err", "parent before", "unfinished parent after"]


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_fork_can_write_the_first_line(logs: StepLogs) -> None:
    writer = logs.writer("r", "s", 1)
    with logs._lock:
        pid = os.fork()
        if pid == 0:
            writer.write("out", b"child\n")
            os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    writer.write("out", b"parent\n")
    assert sorted(texts(logs.read("r"))) == ["child", "parent"]


def test_output_of_a_destructor_during_a_write_does_not_hang(logs: StepLogs) -> None:
    writer = logs.writer("r", "s", 1)

    class PrintingBytes(bytes):
        def rfind(self, *args: Any) -> int:  # Simulate a garbage collection during the write.
            writer.write("out", b"inside\n")
            return super().rfind(*args)

    writer.write("out", PrintingBytes(b"outside\n"))
    assert texts(logs.read("r")) == ["outside"]


def test_reading_many_attempts_opens_few_files_at_a_time(logs: StepLogs) -> None:
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    for number in range(300):
        logs.writer("r", f"s[{number}]", 1).write("out", b"%d\n" % number)
    opened = len(os.listdir("/proc/self/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (opened + 20, hard))
    try:
        lines = texts(logs.read("r", "s"))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert len(lines) == 300


async def test_follow_yields_new_lines_and_steps_until_stopped(logs: StepLogs) -> None:
    seen: list[LogLine] = []
    is_done = False

    async def follow() -> None:
        async for line in logs.follow("r", stopped=lambda: is_done):
            seen.append(line)  # noqa: PERF401 - lines are checked while the loop runs

    async def wait_for_lines(*expected: str) -> None:
        async with asyncio.timeout(20):
            while sorted(texts(seen)) != sorted(expected):  # noqa: ASYNC110
                await asyncio.sleep(0.01)

    follower = asyncio.create_task(follow())
    first = logs.writer("r", "a", 1)
    first.write("out", b"one\n")
    await wait_for_lines("one")
    logs.writer("r", "b", 1).write("err", b"two")
    await wait_for_lines("one", "two")
    again = logs.writer("r", "a", 2)
    again.write("out", b"three\n")
    first.write("out", b"four\n")
    await wait_for_lines("one", "two", "three", "four")
    again.write("out", b"five")
    again.close()
    is_done = True
    await asyncio.wait_for(follower, 20)
    assert texts(seen)[-1] == "five"
    assert len(seen) == 5


async def test_follow_yields_lines_of_every_writer_of_an_attempt(logs: StepLogs) -> None:
    seen: list[str] = []
    is_done = False

    async def follow() -> None:
        async for line in logs.follow("r", stopped=lambda: is_done):
            seen.append(line.text)  # noqa: PERF401 - lines are checked while the loop runs

    follower = asyncio.create_task(follow())
    old, new = logs.writer("r", "s", 1), logs.writer("r", "s", 1)
    for number in range(6):
        (old, new)[number % 2].write("out", b"%d\n" % number)
        (old, new)[number % 2].flush(at_once=True)
        async with asyncio.timeout(20):
            while len(seen) <= number:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
    is_done = True
    await follower
    assert seen == ["0", "1", "2", "3", "4", "5"]


async def test_follow_continues_across_files(logs: StepLogs) -> None:
    writer, is_done = logs.writer("r", "s", 1), False
    seen: list[str] = []

    async def follow() -> None:
        seen.extend([line.text async for line in logs.follow("r", "s", stopped=lambda: is_done)])

    follower = asyncio.create_task(follow())
    for number in range(3000):
        writer.write("out", b"%d " % number + b"x" * 1000 + b"\n")
        if number % 100 == 0:
            await asyncio.sleep(0.001)
    writer.close()
    is_done = True
    await asyncio.wait_for(follower, 60)
    assert [int(text.split()[0]) for text in seen] == list(range(3000))
