"""Several processes on one store: one drives a run, others send signals and take over when it is gone."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import runwright as rw
from runwright.contract.timestamps import to_micros
from support.engine import (
    engine,
    event_lines,
    lines_of_types,
    run_plan,
    wait_for_end,
    wait_for_event,
    wait_for_file_inputs,
)
from support.paths import TESTS

pytestmark = pytest.mark.slow


PROCESS = """
import asyncio, json, sys
from runwright.control.bootstrap import open_operations
from runwright.runtimes.settings import EngineSettings

async def main(store, plan, run_ids, ttl):
    async with open_operations(store, settings=EngineSettings(lease_ttl=float(ttl))) as operations:
        for run_id in run_ids.split(","):
            await operations.start(operations.load(json.loads(plan)), run_id=run_id)
        print("started", flush=True)
        print(*{str((await operations.wait(run_id)).status) for run_id in run_ids.split(",")}, flush=True)

asyncio.run(main(*sys.argv[1:]))
"""


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@contextmanager
def process(
    store: str, plan: dict[str, Any], run_id: str = "run-1", ttl: float = 30.0
) -> Iterator[subprocess.Popen[str]]:
    """Start another process that drives these runs until they end, or until it is killed."""
    arguments = [sys.executable, "-c", PROCESS, store, json.dumps(plan), run_id, str(ttl)]
    environment = {**os.environ, "PYTHONPATH": str(TESTS)}
    other = subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
    try:
        yield other
    finally:
        other.kill()
        other.communicate()


async def expect_line(other: subprocess.Popen[str], text: str) -> None:
    assert other.stdout is not None
    line = await asyncio.to_thread(other.stdout.readline)
    assert line.strip() == text, other.stderr and other.stderr.read()


def two_steps(go: Path, notes: Path, **first: Any) -> dict[str, Any]:
    return {
        "plan": "p",
        "steps": [
            {"id": "a", "python": wait_for_file_inputs(go, value=1), **first},
            {"id": "b", "python": {"call": "support.engine_steps:note", "args": {"file": str(notes)}}},
        ],
    }


async def test_a_signal_from_another_process_acts_within_a_second(durable_url: str, tmp_path: Path) -> None:
    go = tmp_path / "go"
    with process(durable_url, two_steps(go, tmp_path / "notes")) as other:
        await expect_line(other, "started")
        async with engine(durable_url) as operations:
            await wait_for_event(operations, "run-1", "StepStarted", "a")
            paused = await operations.signal("run-1", "PAUSE")
            assert paused.engine_result == "PAUSED"
            accepted = await wait_for_event(operations, "run-1", "SignalAccepted", f"signal/{paused.signal_id}")
            done = await wait_for_event(operations, "run-1", "SignalProcessed", f"signal/{paused.signal_id}")
            assert to_micros(done.persisted_at) - to_micros(accepted.persisted_at) < 1_000_000
            go.touch()
            await wait_for_event(operations, "run-1", "StepCompleted", "a")
            assert (await operations.signal("run-1", "RESUME")).engine_result == "RESUMED"
            assert (await wait_for_end(operations, "run-1")).status == "COMPLETED"
        await expect_line(other, "COMPLETED")


async def test_a_killed_process_is_replaced_at_once(durable_url: str, tmp_path: Path) -> None:
    """On the same machine the death of a process is visible, so its lease of 30 s need not expire."""
    go, notes = tmp_path / "go", tmp_path / "notes"
    with process(durable_url, two_steps(go, notes), ttl=30.0) as other:
        await expect_line(other, "started")
        async with engine(durable_url, recover=True) as operations:
            await wait_for_event(operations, "run-1", "StepStarted", "a")
            other.kill()
            other.wait()
            go.touch()
            began = time.monotonic()
            snapshot = await wait_for_end(operations, "run-1")
            assert time.monotonic() - began < 15
            done = await wait_for_event(operations, "run-1", "StepCompleted", "a")
            assert await operations.result("run-1", "a") == 1
            lines = await event_lines(operations, "run-1")
    assert snapshot.status == "COMPLETED"
    assert (done.logical_attempt_id, done.engine_attempt_id) == (1, 2)
    assert len(lines_of_types(lines, "StepCompleted")) == 2
    assert len(notes.read_text().splitlines()) == 1


async def test_replaced_process_writes_nothing_after_it_continues(durable_url: str, tmp_path: Path) -> None:
    go, notes = tmp_path / "go", tmp_path / "notes"
    with process(durable_url, two_steps(go, notes), ttl=1.0) as other:
        await expect_line(other, "started")
        async with engine(durable_url, recover=True) as operations:
            await wait_for_event(operations, "run-1", "StepStarted", "a")
            other.send_signal(signal.SIGSTOP)
            await asyncio.sleep(1.5)
            go.touch()
            snapshot = await wait_for_end(operations, "run-1")
            records = await operations.log.read("run-1")
            other.send_signal(signal.SIGCONT)
            await expect_line(other, "COMPLETED")  # it reads the end that the other process wrote
            assert other.wait(20) == 0
            assert [record.event_id for record in await operations.log.read("run-1")] == [
                record.event_id for record in records
            ]
            assert [finding async for finding in operations.log.verify("run-1")] == []
            (late,) = [alert for alert in await operations.log.alerts("run-1") if alert.code == "LATE_RESULT"]
            assert (late.facts["stepId"], late.facts["engineAttemptId"]) == ("a", 1), (
                "the alert is about another result"
            )
    assert snapshot.status == "COMPLETED"
    assert len(notes.read_text().splitlines()) == 1
    assert {record.engine_attempt_id for record in records if record.event_type == "StepCompleted"} == {2}


async def test_stopped_process_continues_if_it_was_not_replaced(durable_url: str, tmp_path: Path) -> None:
    """The lease expires while the process is stopped, as after Ctrl-Z and a later fg."""
    go, notes = tmp_path / "go", tmp_path / "notes"
    with process(durable_url, two_steps(go, notes), ttl=1.0) as other:
        await expect_line(other, "started")
        async with engine(durable_url) as operations:
            await wait_for_event(operations, "run-1", "StepStarted", "a")
        other.send_signal(signal.SIGSTOP)
        go.touch()
        await asyncio.sleep(2.0)
        other.send_signal(signal.SIGCONT)
        await expect_line(other, "COMPLETED")
        assert other.wait(20) == 0
    assert len(notes.read_text().splitlines()) == 1


async def test_a_process_stopped_with_many_runs_loses_none_of_them(tmp_path: Path) -> None:
    store, go = f"sqlite:///{tmp_path}/runs.db", tmp_path / "go"
    steps = [
        {"id": f"s{n}", "python": {"call": "support.engine_steps:sleep", "args": {"seconds": 0.1}}} for n in range(10)
    ]
    plan = {
        "plan": "p",
        "steps": [*steps, {"id": "w", "wait": "0.5s"}, {"id": "held", "python": wait_for_file_inputs(go)}],
    }
    with process(store, plan, ",".join(f"run-{n}" for n in range(20)), ttl=1.0) as other:
        await expect_line(other, "started")
        for _ in range(2):
            await asyncio.sleep(0.5)
            other.send_signal(signal.SIGSTOP)
            await asyncio.sleep(1.5)
            other.send_signal(signal.SIGCONT)
        go.touch()
        await expect_line(other, "COMPLETED")


async def test_start_by_id_takes_over_when_the_lease_expires(durable_url: str, tmp_path: Path) -> None:
    """The owner is not visibly dead: it is stopped, or on another machine."""
    go, notes = tmp_path / "go", tmp_path / "notes"
    plan = two_steps(go, notes)
    with process(durable_url, plan, ttl=2.0) as other:
        await expect_line(other, "started")
        async with engine(durable_url) as operations:
            await wait_for_event(operations, "run-1", "StepStarted", "a")
            other.send_signal(signal.SIGSTOP)
            go.touch()
            await operations.start(operations.load(plan), run_id="run-1")
            assert (await wait_for_end(operations, "run-1")).status == "COMPLETED"
    assert len(notes.read_text().splitlines()) == 1


async def test_accepted_cancel_is_executed_after_a_crash(durable_url: str, tmp_path: Path) -> None:
    plan = two_steps(tmp_path / "never", tmp_path / "notes", cancellable=False)
    with process(durable_url, plan) as other:
        await expect_line(other, "started")
        async with engine(durable_url) as operations:
            await wait_for_event(operations, "run-1", "StepStarted", "a")
            decision = await operations.signal("run-1", "CANCEL", reason="enough")
            assert (decision.decision, decision.engine_result) == ("ACCEPTED", None)  # the step may not be interrupted
        other.kill()
        other.wait()
    async with engine(durable_url, recover=True) as operations:
        snapshot = await wait_for_end(operations, "run-1")
        lines = await event_lines(operations, "run-1")
    assert (snapshot.status, snapshot.reason) == ("CANCELLED", "enough")
    assert lines[-4:] == [
        "StepSkipped b RUN_CANCELLED",
        "StepFailed a CANCELLED",
        "RunCancelled",
        "SignalProcessed CANCEL CANCELLED",
    ]


async def test_of_two_processes_with_one_run_exactly_one_drives(durable_url: str, tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    steps = [
        {"id": f"s{n}", "python": {"call": "support.engine_steps:note", "args": {"file": str(notes), "seconds": 0.02}}}
        for n in range(20)
    ]
    plan = {"plan": "p", "steps": steps}
    with process(durable_url, plan) as one, process(durable_url, plan) as other:
        for each in (one, other):
            await expect_line(each, "started")
        for each in (one, other):
            await expect_line(each, "COMPLETED")
    written = [line.split()[0] for line in notes.read_text().splitlines()]
    assert written == [f"s{n}" for n in range(20)]
    async with rw.open_log(durable_url) as log:
        assert {record.engine_attempt_id for record in await log.read("run-1")} == {1}


async def test_abandoned_run_is_claimed_only_on_request(durable_url: str, tmp_path: Path) -> None:
    go = tmp_path / "go"
    plan = two_steps(go, tmp_path / "notes")
    with process(durable_url, plan) as other:
        await expect_line(other, "started")
    go.touch()
    async with engine(durable_url) as operations:
        await run_plan(operations, {"plan": "q", "steps": [{"id": "a", "noop": {}}]})
        assert (await operations.log.snapshot("run-1")).status == "RUNNING"
        await operations.start(operations.load(plan), run_id="run-1")
        assert (await wait_for_end(operations, "run-1")).status == "COMPLETED"
