"""Output that cannot be stored: the step goes on, and an alert reports the loss."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from runwright.storage.output.chunks import ChunkFiles
from runwright.storage.output.log_table import StepLogTable
from support.engine import engine, run_plan, wait_for_alerts

PLAN = {"plan": "p", "steps": [{"id": "a", "shell": "echo lost"}, {"id": "b", "noop": {}}]}


async def test_output_that_cannot_be_written_raises_an_alert(
    store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(ChunkFiles, "write", refuse)
    monkeypatch.setattr(StepLogTable, "queue", refuse)
    monkeypatch.chdir(tmp_path)
    async with engine(store) as operations:
        snapshot = await run_plan(operations, PLAN)
        assert snapshot.status == "COMPLETED"
        (alert,) = await wait_for_alerts(operations, snapshot.run_id, "OUTPUT_DROPPED")
        assert alert.detail.endswith("bytes of the output of step 'a' could not be stored: Permission denied.")
        assert alert.facts["stepId"] == "a"


async def test_output_that_is_stored_raises_no_alert(store: str) -> None:
    async with engine(store) as operations:
        snapshot = await run_plan(operations, PLAN)
        assert await operations.log.alerts(snapshot.run_id) == []
