"""SQLite on a disk that is full, on one that cannot be written, and on a file that is not what it should be.

Whatever is wrong, the answer is an error with a code, and what was acknowledged is still there.
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
    with mounted_disk(tmp_path, "2m") as place:
        yield place


def remount_read_only(place: Path) -> None:
    subprocess.run(["mount", "-o", "remount,ro", str(place)], check=True)


def fill(place: Path, leave: int = 0) -> Path:
    """Take all the space there is, but for some bytes."""
    ballast = place / "ballast"
    with ballast.open("wb") as file:
        room = os.statvfs(place)
        file.write(bytes(room.f_bavail * room.f_frsize - leave))
    return ballast


async def first_error(url: str, appends: list[list[rw.RunEventWrite]]) -> rw.RunwrightError:
    """What goes wrong first, on opening or on appending. Something must."""
    try:
        async with rw.open_log(url) as log:
            for events in appends:
                await log.append(events)
    except rw.RunwrightError as error:
        return error
    pytest.fail("nothing went wrong")


async def test_a_full_disk_is_said_to_be_full_and_nothing_acknowledged_is_lost(
    small_disk: Path, event: History
) -> None:
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

        for _ in range(2):  # it stays full, and stays readable
            with pytest.raises(rw.RunwrightError) as caught:
                await log.append(batch)
            assert caught.value.code == "STORE_FULL"
            await assert_there_is_just(log, receipts)

        ballast.unlink()
        receipts += await log.append(batch)
        for more in range(number + 1, number + 5):
            receipts += await log.append(steps(event, more))
        await assert_there_is_just(log, receipts)
    async with rw.open_log(url) as log:
        await assert_there_is_just(log, receipts)


def steps(event: History, number: int) -> list[rw.RunEventWrite]:
    """An append of several events that takes a few pages."""
    padding = "x" * 3000
    return [
        made
        for step in (f"a{number}", f"b{number}")
        for made in (event("StepStarted", step), event("StepCompleted", step, result={"padding": padding}))
    ]


async def assert_there_is_just(log: rw.RunLog, receipts: list[rw.Receipt]) -> None:
    records = await log.read("run-1")
    assert [(record.run_seq, record.event_id) for record in records] == [
        (receipt.run_seq, receipt.event_id) for receipt in receipts
    ]
    assert [finding async for finding in log.verify()] == []
    assert (await log.rebuild(check=True)).different == []


@pytest.mark.parametrize("leave", [0, 8192, 40_000, 100_000])
async def test_a_store_that_finds_no_room_for_itself_is_refused_and_can_be_made_later(
    small_disk: Path, leave: int, event: History
) -> None:
    ballast = fill(small_disk, leave)
    error = await first_error(f"sqlite:///{small_disk}/runs.db", [History(f"run-{n}").started() for n in range(100)])
    assert error.code in ("STORE_FULL", "STORE_UNAVAILABLE")
    ballast.unlink()
    async with rw.open_log(f"sqlite:///{small_disk}/runs.db") as log:
        await log.append(event.started())
        assert [finding async for finding in log.verify()] == []


async def test_a_store_is_opened_on_a_full_disk_or_refused_with_a_code(small_disk: Path, event: History) -> None:
    """SQLite needs some room even to read."""
    url = f"sqlite:///{small_disk}/runs.db"
    async with rw.open_log(url) as log:
        receipts = await log.append(event.started())
    ballast = fill(small_disk)
    error = await first_error(url, [[event("StepStarted", "a", note="x" * 10_000)]])
    assert error.code in ("STORE_FULL", "STORE_UNAVAILABLE")
    ballast.unlink()
    async with rw.open_log(url) as log:
        await assert_there_is_just(log, receipts)


# What cannot be written


async def test_a_disk_that_cannot_be_written_is_said_to_be_so(small_disk: Path, event: History) -> None:
    url = f"sqlite:///{small_disk}/runs.db"
    async with rw.open_log(url) as log:
        await log.append(event.started())
    remount_read_only(small_disk)
    for name in ("runs.db", "other.db", "folder/other.db"):
        error = await first_error(f"sqlite:///{small_disk}/{name}", [[event("StepStarted", "a")]])
        assert error.code in ("STORE_READ_ONLY", "STORE_UNAVAILABLE")


async def test_a_file_that_cannot_be_written_is_said_to_be_so(tmp_path: Path, event: History) -> None:
    if os.geteuid() == 0:
        pytest.skip("root may write whatever the permissions say")
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


# What is not a store


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
async def test_what_is_not_a_store_is_refused_and_left_alone(tmp_path: Path, make: Callable[[Path], None]) -> None:
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


# What was a store


async def make_store(path: Path) -> Path:
    async with rw.open_log(f"sqlite:///{path}") as log:
        for number in range(12):
            event = History(f"run-{number}")
            await log.append(event.started())
            for step in range(20):
                await log.append([event("StepStarted", f"step-{step}"), event("StepCompleted", f"step-{step}", n=step)])
    return path


async def use_everything(path: Path) -> list[str]:
    """Do all that can be done with a store; gives the codes of what could not be. Nothing else may be raised."""
    codes: list[str] = []

    async def attempt(what: Awaitable[object]) -> None:
        try:
            await what
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
    assert await use_everything(path) == ["STORE_FOREIGN"]


@pytest.mark.parametrize("share", [0.9, 0.5, 0.1])
async def test_a_truncated_store_is_said_to_be_damaged(tmp_path: Path, share: float) -> None:
    path = await make_store(tmp_path / "runs.db")
    os.truncate(path, int(path.stat().st_size * share) // 4096 * 4096)
    assert "STORE_CORRUPT" in await use_everything(path)


SIZES = {"pages": 4096, "half pages": 2048, "a few bytes": 8, "single bytes": 1, "zeroes": 512}


@pytest.mark.parametrize("damage", SIZES)
async def test_damage_in_the_middle_of_the_file_is_answered_with_codes(tmp_path: Path, damage: str) -> None:
    """A read may give what it finds, or an error with a code; no damage may surface as anything else."""
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
        await use_everything(path)
