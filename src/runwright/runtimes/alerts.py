"""Alerts that runtimes raise."""

from __future__ import annotations

from typing import Any

import msgspec

from runwright.contract.events import RunIdentity
from runwright.contract.refs import ErrorInfo
from runwright.contract.snapshot import Alert
from runwright.core.scheduling.context import Draft, Violation
from runwright.storage.output.writer import LogWriter

DRIVER_FAILED = "DRIVER_FAILED"
MAX_RESULT_SIZE = 64 * 1024  # bytes; of a larger result the alert has only the size


def late_result(
    run_id: str, path: str, attempt: int, engine_attempt: int, result: bytes | None, error: ErrorInfo | None
) -> Alert:
    """An attempt ended after its run had moved to another process. Raised once per execution of the attempt."""
    facts: dict[str, Any] = {"stepId": path, "logicalAttemptId": attempt, "engineAttemptId": engine_attempt}
    if error is not None:
        facts["error"] = msgspec.to_builtins(error)
    elif result is not None and len(result) > MAX_RESULT_SIZE:
        facts["resultBytes"] = len(result)
    else:
        facts["result"] = None if result is None else msgspec.json.decode(result)
    how = "failed" if error is not None else "completed"
    return Alert(
        code="LATE_RESULT",
        severity="P2",
        detail=f"Step {path!r} {how} here after its run had moved to another process. The result was not applied.",
        run_id=run_id,
        subject=f"{path}|{attempt}|{engine_attempt}",
        facts=facts,
    )


def output_dropped(run_id: str, path: str, attempt: int, writer: LogWriter) -> Alert:
    return Alert(
        code="OUTPUT_DROPPED",
        severity="P3",
        detail=f"{writer.dropped:,} bytes of the output of step {path!r} could not be stored: {writer.failure}.",
        run_id=run_id,
        subject=f"{path}|{attempt}",
        facts={"stepId": path, "logicalAttemptId": attempt, "droppedBytes": writer.dropped},
    )


def drain_timed_out(run: RunIdentity, running: int, pauses: int) -> Alert:
    return Alert(
        code="PAUSE_DRAIN_TIMEOUT",
        severity="P2",
        detail=f"Pause drain timed out: {running} steps are still running.",
        run_id=run.run_id,
        subject=str(pauses),
    )


def emergency_stop(run: RunIdentity, processed: Draft) -> Alert:
    return Alert(
        code="EMERGENCY_STOP",
        severity="P1",
        detail="The run was stopped by force.",
        run_id=run.run_id,
        subject=processed.step_id or "",
    )


def invalid_transition(run: RunIdentity, violation: Violation) -> Alert:
    return Alert(
        code="INVALID_TRANSITION",
        severity="P2",
        detail=str(violation),
        run_id=run.run_id,
        subject=f"{violation.entity}|{violation.facts['attemptedEventType']}",
        facts=violation.facts,
    )


def driver_failed(run: RunIdentity, error: BaseException, seq: int) -> Alert:
    detail = f"The driver of this run failed and released it: {type(error).__name__}: {error}"[:500]
    return Alert(code=DRIVER_FAILED, severity="P1", detail=detail, run_id=run.run_id, subject=str(seq))
