"""Event builders."""

from __future__ import annotations

from typing import Any

import runwright as rw


class History:
    """Builds events of one run from type, step, attempt and payload."""

    def __init__(self, run_id: str = "run-1", plan_id: str = "orders", plan_version: str = "1", **context: str) -> None:
        self.run = rw.new_run(run_id, plan_id, plan_version, **context)

    def __call__(
        self, event_type: str, step_id: str | None = None, attempt: int = 1, **payload: Any
    ) -> rw.RunEventWrite:
        return rw.new_event(event_type, self.run, step_id=step_id, attempt=attempt, payload=payload or None)

    def started(self) -> list[rw.RunEventWrite]:
        return [self("RunQueued"), self("RunStarted")]
