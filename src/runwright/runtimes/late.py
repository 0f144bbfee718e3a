"""Results that come too late: their run has gone to another process. They are kept for people, and never applied."""

from __future__ import annotations

from typing import Any

import msgspec

from runwright.contract.refs import ErrorInfo
from runwright.contract.snapshot import Alert

LARGEST = 64 * 1024


def late_result(
    run_id: str, path: str, attempt: int, engine_attempt: int, result: bytes | None, error: ErrorInfo | None
) -> Alert:
    """What an operator is told of it; once for each time that the attempt was run."""
    facts: dict[str, Any] = {"stepId": path, "logicalAttemptId": attempt, "engineAttemptId": engine_attempt}
    if error is not None:
        facts["error"] = msgspec.to_builtins(error)
    elif result is not None and len(result) > LARGEST:
        facts["resultBytes"] = len(result)
    else:
        facts["result"] = None if result is None else msgspec.json.decode(result)
    how = "failed" if error is not None else "completed"
    return Alert(
        code="LATE_RESULT",
        severity="P2",
        detail=f"Step {path!r} {how} here after its run had gone to another process. What it gave was not applied.",
        run_id=run_id,
        subject=f"{path}|{attempt}|{engine_attempt}",
        facts=facts,
    )
