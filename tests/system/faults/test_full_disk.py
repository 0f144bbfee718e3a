"""SQLite on a full disk, on a read-only disk, and on foreign and damaged files.

Each fault raises an error with a code, and acknowledged events stay readable.
"""

from __future__ import annotations

import os
import random
import subprocess
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import apsw
import pytest

import runwright as rw
from support import processes
from support.disks import mounted_disk
from support.events import History

pytestmark = pytest.mark.slow


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    with mounted_disk(tmp_path, "2m") as disk:
        yield disk


def remount_read_only(disk: Path) -> None:
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)


def fill(disk: Path, leave: int = 0) -> Path:
    """Fill the disk, except for some bytes."""
    ballast = disk / "ballast"
    with ballast.open("wb") as file:
        space = os.statvfs(disk)
        file.write(bytes(space.f_bavail * space.f_frsize - leave))
    return ballast


async def first_error(url: str, appends: list[list[rw.RunEventWrite]]) -> rw.RunwrightError:
    """Return the first error of opening and appending, and fail if there is none."""
    try:
        async with rw.open_log(url) as log:
            for events in appends:
                await log.append(events)
    except rw.RunwrightError as error:
        return error
    pytest.fail("no error was raised")


async def test_full_disk_is_reported_and_loses_no_acknowledged_event(small_disk: Path, event: History) -> None:
    url = f"sqlite:///{small_disk}/runs.db"
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(1_000_000))
    async with rw.open_log(url) as log:
        receipts = await log.append(event.started())
        for number in range(10_000):
            batch = steps(event, number)
            try:
                receipts += await log.append(batch)
            except rw.RunwrightError as error:
                refused = error
                break
        assert refused.code == "STORE_FULL"

        for _ in range(2):  # the disk stays full, and the log stays readable
            with pytest.raises(rw.RunwrightError) as caught:
                await log.append(batch)
            assert caught.value.code == "STORE_FULL"
            await assert_exactly_stored(log, receipts)

        ballast.unlink()
        receipts += await log.append(batch)
        for more in range(number + 1, number + 5):
            receipts += await log.append(steps(event, more))
        await assert_exactly_stored(log, receipts)
    async with rw.open_log(url) as log:
        await assert_exactly_stored(log, receipts)


def steps(event: History, number: int) -> list[rw.RunEventWrite]:
    """Several events that need a few pages."""
    padding = "x" * 3000
    return [
        event_write
        for step in (f"a{number}", f"b{number}")
        for event_write in (event("StepStarted", step), event("StepCompleted", step, result={"padding": padding}))
    ]


async def assert_exactly_stored(log: rw.RunLog, receipts: list[rw.Receipt]) -> None:
    records = await log.read("run-1")
    assert [(record.run_seq, record.event_id) for record in records] == [
        (receipt.run_seq, receipt.event_id) for receipt in receipts
    ]
    assert [finding async for finding in log.verify()] == []
    assert (await log.rebuild(check=True)).different == []


@pytest.mark.parametrize("leave", [0, 8192, 40_000, 100_000])
async def test_store_can_be_created_once_a_full_disk_has_space(small_disk: Path, leave: int, event: History) -> None:
    ballast = fill(small_disk, leave)
    error = await first_error(f"sqlite:///{small_disk}/runs.db", [History(f"run-{n}").started() for n in range(100)])
    assert error.code in ("STORE_FULL", "STORE_UNAVAILABLE")
    ballast.unlink()
    async with rw.open_log(f"sqlite:///{small_disk}/runs.db") as log:
        await log.append(event.started())
        assert [finding async for finding in log.verify()] == []


async def test_store_on_a_full_disk_fails_with_a_code(small_disk: Path, event: History) -> None:
    """SQLite needs some space even to read."""
    url = f"sqlite:///{small_disk}/runs.db"
    async with rw.open_log(url) as log:
        receipts = await log.append(event.started())
    ballast = fill(small_disk)
    error = await first_error(url, [[event("StepStarted", "a", note="x" * 10_000)]])
    assert error.code in ("STORE_FULL", "STORE_UNAVAILABLE")
    ballast.unlink()
    async with rw.open_log(url) as log:
        await assert_exactly_stored(log, receipts)


# Read-only stores


async def test_read_only_disk_is_reported(small_disk: Path, event: History) -> None:
    url = f"sqlite:///{small_disk}/runs.db"
    async with rw.open_log(url) as log:
        await log.append(event.started())
    remount_read_only(small_disk)
    for name in ("runs.db", "other.db", "folder/other.db"):
        error = await first_error(f"sqlite:///{small_disk}/{name}", [[event("StepStarted", "a")]])
        assert error.code in ("STORE_READ_ONLY", "STORE_UNAVAILABLE")


async def test_read_only_file_is_reported(tmp_path: Path, event: History) -> None:
    if os.geteuid() == 0:
        pytest.skip("root can write regardless of permissions")
    path = tmp_path / "folder" / "runs.db"
    async with rw.open_log(f"sqlite:///{path}") as log:
        await log.append(event.started())
    path.chmod(0o444)
    path.parent.chmod(0o555)
    try:
        error = await first_error(f"sqlite:///{path}", [[event("StepStarted", "a")]])
        assert error.code in ("STORE_READ_ONLY", "STORE_UNAVAILABLE")
    finally:
        path.parent.chmod(0o755)


# Foreign files


def another_programs(path: Path) -> None:
    connection = apsw.Connection(str(path))
    connection.execute("CREATE TABLE event (id INTEGER PRIMARY KEY, what TEXT)")
    connection.execute("INSERT INTO event (what) VALUES ('ours')")
    connection.close()


def text(path: Path) -> None:
    path.write_text("Dear diary,\n" + "nothing happened today.\n" * 500)


def short_text(path: Path) -> None:
    path.write_text("hello")


def noise(path: Path) -> None:
    path.write_bytes(random.Random(1).randbytes(50_000))


@pytest.mark.parametrize("make", [another_programs, text, short_text, noise])
async def test_foreign_file_is_refused_and_not_changed(tmp_path: Path, make: Callable[[Path], None]) -> None:
    path = tmp_path / "runs.db"
    make(path)
    before = path.read_bytes()
    with pytest.raises(rw.RunwrightError) as caught:
        async with rw.open_log(f"sqlite:///{path}"):
            pass
    assert caught.value.code == "STORE_FOREIGN"
    assert path.read_bytes() == before


async def test_a_folder_is_not_a_store(tmp_path: Path) -> None:
    with pytest.raises(rw.RunwrightError) as caught:
        async with rw.open_log(f"sqlite:///{tmp_path}"):
            pass
    assert caught.value.code == "STORE_UNAVAILABLE"


# Damaged stores


async def make_store(path: Path) -> Path:
    async with rw.open_log(f"sqlite:///{path}") as log:
        for number in range(12):
            event = History(f"run-{number}")
            await log.append(event.started())
            for step in range(20):
                await log.append([event("StepStarted", f"step-{step}"), event("StepCompleted", f"step-{step}", n=step)])
    return path


async def use_all_operations(path: Path) -> list[str]:
    """Execute every operation of a log and return the error codes. No other exception may be raised."""
    codes: list[str] = []

    async def attempt(operation: Awaitable[object]) -> None:
        try:
            await operation
        except rw.RunwrightError as error:
            codes.append(error.code)

    log = rw.open_log(f"sqlite:///{path}")
    await attempt(log.open())
    if codes:
        return codes
    try:
        await attempt(log.list_runs(limit=100))
        for number in range(12):
            await attempt(log.read(f"run-{number}"))
            await attempt(log.snapshot(f"run-{number}"))
        await attempt(log.read_all(limit=10_000))
        await attempt(log.append([History("run-3")("StepStarted", "new")]))
        await attempt(log.append(History("fresh").started()))
        await attempt(drive(log, "run-5"))
        await attempt(log.rebuild(check=True))
        await attempt(every_finding(log))
        await attempt(log.rebuild())
        await attempt(log.redact("run-7", 4))
        await attempt(log.alerts())
        await attempt(log.health())
    finally:
        await log.close()
    return codes


async def drive(log: rw.RunLog, run_id: str) -> None:
    lease = await log.leases.acquire("me")
    fence = await log.leases.claim_run(run_id, lease)
    await log.append([History(run_id)("StepStarted", "new")], fence=fence)
    await log.leases.release_run(run_id, fence)
    await log.leases.claim_due(lease)


async def every_finding(log: rw.RunLog) -> list[rw.Finding]:
    return [finding async for finding in log.verify()]


async def test_a_store_with_a_garbage_header_is_refused(tmp_path: Path) -> None:
    path = await make_store(tmp_path / "runs.db")
    with path.open("r+b") as file:
        file.write(b"\xa5" * 100)
    assert await use_all_operations(path) == ["STORE_FOREIGN"]


@pytest.mark.parametrize("share", [0.9, 0.5, 0.1])
async def test_truncated_store_is_reported_as_corrupt(tmp_path: Path, share: float) -> None:
    path = await make_store(tmp_path / "runs.db")
    os.truncate(path, int(path.stat().st_size * share) // 4096 * 4096)
    assert "STORE_CORRUPT" in await use_all_operations(path)


SIZES = {"pages": 4096, "half pages": 2048, "a few bytes": 8, "single bytes": 1, "zeroes": 512}


@pytest.mark.parametrize("damage", SIZES)
async def test_damaged_file_raises_only_errors_with_codes(tmp_path: Path, damage: str) -> None:
    """A read of a damaged file may return data or raise an error with a code, and nothing else."""
    chance = processes.random_from_seed(7)
    whole = (await make_store(tmp_path / "whole.db")).read_bytes()
    size = SIZES[damage]
    for number in range(15):
        content = bytearray(whole)
        for _ in range(chance.choice([1, 5])):
            start = chance.randrange(4096, len(content) - size) // size * size
            content[start : start + size] = bytes(size) if damage == "zeroes" else chance.randbytes(size)
        path = tmp_path / f"{number}.db"
        path.write_bytes(content)
        await use_all_operations(path)
