"""Several processes on one store: none is locked out, a tail loses nothing, and a run has one driver."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack, aclosing
from pathlib import Path

import pytest

import runwright as rw
from support import processes
from support.events import History

pytestmark = pytest.mark.slow

LENGTH = 150


async def run_appenders(url: str, commands: list[list[str]]) -> None:
    """Run appenders concurrently; none may fail or write to stderr."""

    async def one(arguments: list[str]) -> tuple[int | None, str]:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, str(processes.FOLDER / "appender.py"), *arguments),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        _, errors = await process.communicate()
        return process.returncode, errors.decode()

    for status, errors in await asyncio.gather(*(one([command[0], url, *command[1:]]) for command in commands)):
        assert status == 0, errors
        assert not errors


async def tail(log: rw.RunLog, count: int) -> list[rw.RunEventRecord]:
    found: list[rw.RunEventRecord] = []
    async with aclosing(log.tail()) as pages:
        async for page in pages:
            found += page.records
            if len(found) >= count:
                break
    return found


async def page_through(log: rw.RunLog, count: int) -> list[rw.RunEventRecord]:
    """Read like a sink: in small pages, each from the cursor of the one before."""
    found: list[rw.RunEventRecord] = []
    cursor = None
    while len(found) < count:
        page = await log.read_all(cursor, limit=7)
        found += page.records
        cursor = page.cursor
        if not page.records:
            await log.wait_for_events(0.05)
    return found


@pytest.mark.parametrize("processes", [2, 4])
@pytest.mark.parametrize("runs", ["the same events", "the same runs", "runs of their own"])
async def test_tail_returns_all_events_of_many_writers_in_order(durable_url: str, processes: int, runs: str) -> None:
    """The store does not exist at the start: the writers also race to create it."""
    commands: list[list[str]] = []
    for number in range(processes):
        prefix = "" if runs == "the same events" else f"p{number}-"
        names = [f"p{number}-run-{n}" if runs == "runs of their own" else f"run-{n}" for n in range(3)]
        commands.append(["some", str(LENGTH), prefix, *names])
    run_ids = {run_id for command in commands for run_id in command[3:]}
    writers_of_a_run = processes if runs == "the same runs" else 1
    per_run = 2 + writers_of_a_run * (LENGTH - 2)  # the first two events of a run are the same for all writers

    async with rw.open_log(durable_url) as log:
        readers = [asyncio.create_task(read(log, per_run * len(run_ids))) for read in (tail, page_through)]
        await run_appenders(durable_url, commands)
        for reader in readers:
            assert_each_run_in_order(await asyncio.wait_for(reader, 30), run_ids, per_run)
        whole = await log.read_all(limit=1_000_000)
        assert_each_run_in_order(whole.records, run_ids, per_run)
        assert [finding async for finding in log.verify()] == []
        assert (await log.rebuild(check=True)).different == []


def assert_each_run_in_order(records: Sequence[rw.RunEventRecord], run_ids: set[str], per_run: int) -> None:
    assert {record.run_id for record in records} == run_ids
    for run_id in run_ids:
        assert [record.run_seq for record in records if record.run_id == run_id] == list(range(1, per_run + 1))


async def test_concurrent_opens_and_closes_never_hit_a_lock(durable_url: str) -> None:
    """The last process to close a SQLite file cleans it up, which must not fail a concurrent open."""
    await run_appenders(durable_url, [["reopen", "25", f"p{number}"] for number in range(4)])
    async with rw.open_log(durable_url) as log:
        assert len((await log.list_runs(limit=200)).runs) == 100


async def test_processes_can_create_one_sqlite_file_concurrently(tmp_path: Path) -> None:
    start = time.time() + 1
    await run_appenders(str(tmp_path), [["make", "25", f"p{number}", str(start)] for number in range(4)])
    for number in range(25):
        async with rw.open_log(f"sqlite:///{tmp_path}/{number}.db") as log:
            assert len((await log.list_runs()).runs) == 4


async def test_verify_finds_nothing_while_others_write(durable_url: str) -> None:
    """Events that are appended during a check are no damage."""
    commands = [["some", "200", f"p{number}-", "run-1", f"run-{number}"] for number in (2, 3)]
    async with rw.open_log(durable_url) as log:
        writing = asyncio.create_task(run_appenders(durable_url, commands))
        rounds = 0
        while not writing.done() or rounds == 0:
            assert [finding async for finding in log.verify()] == []
            assert (await log.rebuild(check=True)).different == []
            rounds += 1
        await writing


# The cache of one log is out of date as soon as another appends, which must not be visible.


async def test_append_is_validated_against_events_of_another_log(durable_url: str, event: History) -> None:
    async with rw.open_log(durable_url) as log, rw.open_log(durable_url) as other:
        await log.append(event.started())
        await other.append([event("StepStarted", "a")])
        (receipt,) = await log.append([event("StepCompleted", "a")])
        assert (receipt.status, receipt.run_seq) == ("appended", 4)


async def test_expected_seq_counts_events_of_another_log(durable_url: str, event: History) -> None:
    async with rw.open_log(durable_url) as log, rw.open_log(durable_url) as other:
        await log.append(event.started())
        await other.append([event("StepStarted", "a")])
        (receipt,) = await log.append([event("StepStarted", "b")], expected_seq=3)
        assert receipt.run_seq == 4


async def test_refusal_reports_the_last_seq_of_another_log(durable_url: str, event: History) -> None:
    async with rw.open_log(durable_url) as log, rw.open_log(durable_url) as other:
        await log.append(event.started())
        await other.append([event("StepStarted", "a")])
        with pytest.raises(rw.AppendRefused) as caught:
            await log.append([event("StepStarted", "b")], expected_seq=7)
        assert caught.value.facts["lastEventSeq"] == 3


async def test_claim_and_release_by_another_log_take_effect(durable_url: str, event: History) -> None:
    async with rw.open_log(durable_url) as log, rw.open_log(durable_url) as other:
        await log.append(event.started())
        fence = await other.leases.claim_run("run-1", await other.leases.acquire("driver", 60))
        with pytest.raises(rw.AppendRefused) as caught:
            await log.append([event("StepStarted", "a")])
        assert caught.value.code == "RUN_OWNED"
        await log.append([event("StepStarted", "a")], fence=fence)
        await other.leases.release_run("run-1", fence)
        (receipt,) = await log.append([event("StepCompleted", "a")])
        assert receipt.run_seq == 4


async def test_summary_omits_a_payload_redacted_by_another_log(durable_url: str, event: History) -> None:
    async with rw.open_log(durable_url) as log, rw.open_log(durable_url) as other:
        await log.append([event("RunQueued"), event("RunStarted", engineRunRef="temporal://orders/secret-name/1")])
        await other.redact("run-1", 2)
        await log.append([event("StepStarted", "a")])
        assert "secret-name" not in (await log.find_run("run-1")).summary_text
        assert (await log.rebuild(check=True)).different == []


# Drivers


class Driver:
    """A lease_owner.py process and its answers."""

    def __init__(
        self, url: str, name: str, ttl: float = 60, *, known: bool = True, within: tuple[str, ...] = ()
    ) -> None:
        script = [sys.executable, str(processes.FOLDER / "lease_owner.py"), url, name, str(ttl)]
        self.process = subprocess.Popen(
            [*within, *script, "known" if known else "unknown"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        epoch, expires_at = self.read_answer().split()
        self.fence = rw.Fence(name, int(epoch))
        self.expires_at = int(expires_at)

    def send(self, *arguments: object) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(" ".join(map(str, arguments)).encode() + b"\n")
        self.process.stdin.flush()

    def read_answer(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline().decode()
        assert line, "the driver died"
        return line.strip()

    def call(self, *arguments: object) -> str:
        self.send(*arguments)
        return self.read_answer()

    def __enter__(self) -> Driver:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()


ROUNDS = 40
needs_proc = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="process identity needs /proc")


@pytest.mark.parametrize("state", ["free", "of a dead driver"])
async def test_of_two_racing_drivers_exactly_one_wins(durable_url: str, state: str) -> None:
    async with rw.open_log(durable_url) as log:
        gone = await log.leases.acquire("gone", 60)
        for number in range(ROUNDS):
            run_id = f"run-{number}"
            await log.append(History(run_id).started())
            if state == "of a dead driver":
                await log.leases.claim_run(run_id, gone)
        await log.leases.release(gone)
        winners: Counter[str] = Counter()
        with Driver(durable_url, "one") as one, Driver(durable_url, "two") as two:
            for number in range(ROUNDS):
                run_id = f"run-{number}"
                moment = time.time() + 0.01
                for driver in (one, two):
                    driver.send("claim", run_id, moment)
                answers = [one.read_answer(), two.read_answer()]
                assert sorted(answers) == ["RUN_OWNED", "won"]
                winner, loser = (one, two) if answers[0] == "won" else (two, one)
                for driver in (one, two):
                    driver.send("append", run_id, driver.fence.owner)
                assert (winner.read_answer(), loser.read_answer()) == ("appended", "STALE_FENCE")
                assert (await log.read(run_id))[-1].step_id == winner.fence.owner
                winners[winner.fence.owner] += 1
        assert winners.total() == ROUNDS


async def test_each_due_run_is_claimed_by_one_driver(durable_url: str) -> None:
    async with rw.open_log(durable_url) as log:
        run_ids = [f"run-{number}" for number in range(60)]
        with ExitStack() as stack:
            drivers = [stack.enter_context(Driver(durable_url, name)) for name in ("one", "two", "three")]
            for _ in range(3):
                gone = await log.leases.acquire("gone", 60)
                for run_id in run_ids:
                    await log.append(History(run_id).started())
                    await log.leases.claim_run(run_id, gone)
                await log.leases.release(gone)
                moment = time.time() + 0.01
                for driver in drivers:
                    driver.send("due", moment)
                shares = [driver.read_answer().split() for driver in drivers]
                claimed = [run_id for share in shares for run_id in share if run_id != "nothing"]
                assert sorted(claimed) == sorted(run_ids)
                run_ids = [f"again-{run_id}" for run_id in run_ids]


async def test_a_fence_is_stale_once_another_process_drives_the_run(durable_url: str, event: History) -> None:
    async with rw.open_log(durable_url) as log:
        await log.append(event.started())
        with Driver(durable_url, "slow", 0.5, known=False) as slow:
            assert slow.call("claim", "run-1", 0) == "won"
            assert slow.call("append", "run-1", "a") == "appended"
            lease = await log.leases.acquire("next", 60)
            fence = await claim_when_free(log, "run-1", lease)
            assert slow.call("append", "run-1", "b") == "STALE_FENCE"
            assert slow.call("claim", "run-1", 0) == "LEASE_LOST"
            await log.append([event("StepCompleted", "a")], fence=fence)
            assert slow.call("append", "run-1", "c") == "STALE_FENCE"
        assert [record.event_type for record in await log.read("run-1", after=2)] == ["StepStarted", "StepCompleted"]


async def claim_when_free(log: rw.RunLog, run_id: str, lease: rw.Lease) -> rw.Fence:
    while True:
        try:
            return await log.leases.claim_run(run_id, lease)
        except rw.RunwrightError as error:
            if error.code != "RUN_OWNED":
                raise
        await asyncio.sleep(0.02)


@needs_proc
@pytest.mark.parametrize("how", ["claim_run", "claim_due", "append"])
@pytest.mark.parametrize("reaped", [True, False], ids=["reaped", "not yet reaped"])
async def test_a_driver_that_was_killed_is_replaced_at_once(
    durable_url: str, event: History, how: str, reaped: bool
) -> None:
    """The lease lasts for an hour, but other processes on this machine can see that the driver is dead."""
    async with rw.open_log(durable_url) as log:
        await log.append(event.started())
        lease = await log.leases.acquire("next", 60)
        with Driver(durable_url, "killed", 3600) as driver:
            assert driver.call("claim", "run-1", 0) == "won"
            with pytest.raises(rw.RunwrightError) as caught:
                await log.leases.claim_run("run-1", lease)
            assert caught.value.code == "RUN_OWNED"
            assert await log.leases.claim_due(lease) == []
            driver.process.kill()
            if reaped:
                driver.process.wait()
            else:
                wait_until_dead(driver.process.pid)
            if how == "claim_run":
                await log.append([event("StepStarted", "a")], fence=await log.leases.claim_run("run-1", lease))
            elif how == "claim_due":
                assert await log.leases.claim_due(lease) == ["run-1"]
            else:
                await log.append([event("StepStarted", "a")])


def wait_until_dead(pid: int) -> None:
    """Wait until the killed process is a zombie: dead, but still listed, because its parent has not reaped it."""
    while Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
        time.sleep(0.01)


async def test_unidentified_driver_is_replaced_when_its_lease_expires(durable_url: str, event: History) -> None:
    async with rw.open_log(durable_url) as log:
        await log.append(event.started())
        lease = await log.leases.acquire("next", 60)
        with Driver(durable_url, "killed", 0.5, known=False) as driver:
            assert driver.call("claim", "run-1", 0) == "won"
            driver.process.kill()
            driver.process.wait()
            await claim_when_free(log, "run-1", lease)
            assert time.time_ns() // 1000 >= driver.expires_at


CONTAINER = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")


def has_containers() -> bool:
    if shutil.which("unshare") is None:
        return False
    return subprocess.run([*CONTAINER, "true"], capture_output=True, check=False).returncode == 0


async def test_driver_in_another_container_counts_as_alive(durable_url: str, event: History) -> None:
    """In another process namespace, a missing process id does not prove that the driver is dead."""
    if not has_containers():
        pytest.skip("making a process namespace needs root and unshare")
    async with rw.open_log(durable_url) as log:
        await log.append(event.started())
        lease = await log.leases.acquire("next", 60)
        with Driver(durable_url, "elsewhere", 3600, within=CONTAINER) as driver:
            assert driver.call("claim", "run-1", 0) == "won"
            with pytest.raises(rw.RunwrightError) as caught:
                await log.leases.claim_run("run-1", lease)
            assert caught.value.code == "RUN_OWNED"
            assert driver.call("append", "run-1", "a") == "appended"
