"""The disk fills up during a run. Once there is space again, the run continues."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.disks import mounted_disk
from support.engine import engine, event_lines, lines_of_types, wait_for_end, wait_for_event, wait_for_file_inputs

pytestmark = pytest.mark.slow


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    with mounted_disk(tmp_path, "4m") as disk:
        yield disk


def fill(disk: Path) -> Path:
    """Fill the disk."""
    ballast = disk / "ballast"
    with ballast.open("wb") as file:
        space = os.statvfs(disk)
        file.write(bytes(space.f_bavail * space.f_frsize))
    return ballast


@pytest.mark.parametrize("seconds", [0.5, 4.5])
@pytest.mark.parametrize("result", ["small", "large"])
async def test_run_continues_after_the_disk_was_full(
    small_disk: Path, tmp_path: Path, seconds: float, result: str
) -> None:
    """The disk is full for less and for more than the write budget. A large result is stored by reference first."""
    go = tmp_path / "go"
    value: Any = "x" * 200_000 if result == "large" else "small"
    noisy = {
        "id": "noisy",
        "shell": "for n in 1 2 3 4 5; do echo 'hello from the step'; done",
        "dependsOn": ["a"],
        "retry": {"maxAttempts": 5, "initial": "50ms"},
    }
    steps = [
        {
            "id": "a",
            "retry": {"maxAttempts": 5, "initial": "50ms"},
            "python": {
                "call": "support.engine_steps:wait_for_file",
                "args": {"file": str(go), "value": "{{ params.value }}"},
            },
        },
        noisy,
        {"id": "b", "dependsOn": ["noisy"], "noop": {}},
    ]
    async with engine(f"sqlite:///{small_disk}/runs.db") as operations:
        run_id = await operations.start(operations.load({"plan": "p", "params": {"value": value}, "steps": steps}))
        await wait_for_event(operations, run_id, "StepStarted", "a")
        ballast = fill(small_disk)
        go.touch()
        await asyncio.sleep(seconds)
        ballast.unlink()
        snapshot = await wait_for_end(operations, run_id)
        lines = await event_lines(operations, run_id)
        assert await operations.result(run_id, "a") == value
        assert [finding async for finding in operations.log.verify()] == []
    assert snapshot.status == "COMPLETED"
    failures = lines_of_types(lines, "StepFailed")
    assert {entry.split()[-1] for entry in failures} <= {"STORE_WRITE_BUDGET_EXCEEDED"}
    if seconds < 1:
        assert failures == []


async def test_run_can_be_resumed_after_closing_on_a_full_disk(small_disk: Path, tmp_path: Path) -> None:
    go, store = tmp_path / "go", f"sqlite:///{small_disk}/runs.db"
    plan = {"plan": "p", "steps": [{"id": "a", "python": wait_for_file_inputs(go)}, {"id": "b", "noop": {}}]}
    async with engine(store) as operations:
        await operations.start(operations.load(plan), run_id="run-1")
        await wait_for_event(operations, "run-1", "StepStarted", "a")
        ballast = fill(small_disk)
        go.touch()
        await asyncio.sleep(0.5)
    ballast.unlink()
    async with engine(store) as operations:
        await operations.start(operations.load(plan), run_id="run-1")
        assert (await wait_for_end(operations, "run-1")).status == "COMPLETED"
