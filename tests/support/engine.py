"""Helpers for tests of the engine: start a run, wait for its events, read its log."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import runwright as rw
from runwright.control.bootstrap import open_operations
from runwright.control.operations import Operations
from runwright.runtimes.settings import EngineSettings
from support.waiting import PATIENCE, until

ENDS = ("RunCompleted", "RunFailed", "RunCancelled")


@asynccontextmanager
async def engine(store: str, **settings: Any) -> AsyncGenerator[Operations]:
    async with open_operations(store, settings=EngineSettings(**settings)) as operations:
        yield operations


async def wait_for_event(
    operations: Operations, run_id: str, event_type: str, step: str | None = None, attempt: int = 1
) -> rw.RunEventRecord:
    """Wait for an event."""

    async def look() -> rw.RunEventRecord | None:
        try:
            return await operations.log.find_event(run_id, event_type, step, attempt)
        except rw.RunwrightError as error:
            if error.code != "RUN_NOT_FOUND":
                raise
            return None  # The run does not exist yet.

    found = await until(look, f"{event_type} {step or ''} {attempt}")
    assert found is not None
    return found


async def run_plan(operations: Operations, plan: dict[str, Any], **start: Any) -> rw.RunSnapshot:
    """Run a plan to its end."""
    run_id = await operations.start(operations.load(plan), **start)
    return await wait_for_end(operations, run_id)


async def wait_for_end(operations: Operations, run_id: str) -> rw.RunSnapshot:
    snapshot = await operations.wait(run_id, PATIENCE)
    told = "\n".join(await event_lines(operations, run_id))
    assert snapshot.status in ("COMPLETED", "FAILED", "CANCELLED"), f"the run did not end:\n{told}"
    assert not snapshot.inconsistent, told
    assert not {"RUNNING", "PENDING"} & {step.status for step in snapshot.steps}, told
    return snapshot


async def event_lines(operations: Operations, run_id: str) -> list[str]:
    """Return one short line per event of the run."""
    return [event_line(record) for record in await operations.log.read(run_id)]


def event_line(record: rw.RunEventRecord) -> str:
    payload = record.payload or {}
    error = payload.get("error") or {}
    more = payload.get("reasonCode") or error.get("code") or payload.get("engineResult") or payload.get("code") or ""
    if record.event_type in ("SignalAccepted", "SignalRejected", "SignalProcessed"):
        return " ".join(filter(None, (record.event_type, payload.get("signalType"), more)))
    attempt = "" if record.logical_attempt_id == 1 else f"#{record.logical_attempt_id}"
    return " ".join(filter(None, (record.event_type, record.step_id, attempt, more)))


def lines_of_types(lines: list[str], *kinds: str) -> list[str]:
    return [entry for entry in lines if entry.split()[0] in kinds]


def statuses(snapshot: rw.RunSnapshot) -> dict[str, str]:
    return {step.step_id: str(step.status) for step in snapshot.steps}


def step_of(snapshot: rw.RunSnapshot, step_id: str) -> rw.StepSnapshot:
    return next(step for step in snapshot.steps if step.step_id == step_id)


def skip_reasons(lines: list[str]) -> dict[str, str]:
    """Return the reason code of each skipped step."""
    return {entry.split()[1]: entry.split()[-1] for entry in lines if entry.startswith("StepSkipped")}


async def wait_for_alerts(operations: Operations, run_id: str, code: str) -> list[rw.Alert]:
    """Wait for alerts with this code."""

    async def look() -> list[rw.Alert]:
        return [alert for alert in await operations.log.alerts(run_id) if alert.code == code]

    return await until(look, f"alert {code}")


def python_inputs(code: str, **args: Any) -> dict[str, Any]:
    return {"code": code, "args": args}


def sleep_inputs(seconds: float, value: Any = None) -> dict[str, Any]:
    return {"call": "support.engine_steps:sleep", "args": {"seconds": seconds, "value": value}}


def fail_once_inputs(file: object, **more: Any) -> dict[str, Any]:
    """Inputs of a step that fails in its first attempt, which it records in the file."""
    return {"call": "support.engine_steps:fail_times", "args": {"file": str(file), "times": 1, **more}}


def wait_for_file_inputs(file: object, **more: Any) -> dict[str, Any]:
    """Inputs of a step that runs until the file exists or the step is stopped."""
    return {"call": "support.engine_steps:wait_for_file", "args": {"file": str(file), **more}}
