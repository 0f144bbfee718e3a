"""The same run in pyeventsourcing: one aggregate, with its SQLite persistence and its JSON transcoder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from eventsourcing.application import Application
from eventsourcing.domain import Aggregate, event

from .samples import EMITTED_AT, result
from .stopwatch import Stopwatch

_EVENTS_PER_SAVE = 1000


class PeerRun(Aggregate):
    @event("RunStarted")
    def __init__(self) -> None:
        self.status = "RUNNING"
        self.steps: dict[str, dict[str, Any]] = {}

    @event("StepStarted")
    def start_step(self, step_id: str, emitted_at: str) -> None:
        self.steps[step_id] = {"status": "RUNNING", "startedAt": emitted_at}

    @event("StepCompleted")
    def complete_step(self, step_id: str, emitted_at: str, payload: dict[str, Any]) -> None:
        step = self.steps[step_id]
        step["status"] = "SUCCESS"
        step["completedAt"] = emitted_at
        step["artifacts"] = payload.get("artifactRefs")


class EventsourcingPeer:
    def __init__(self, path: Path, count: int) -> None:
        self._app: Application[Any] = Application(
            env={"PERSISTENCE_MODULE": "eventsourcing.sqlite", "SQLITE_DBNAME": str(path)}
        )
        self._count = count
        run = PeerRun()
        for step in range(1, count // 2 + 1):
            run.start_step(f"load_orders_{step}", EMITTED_AT)
            run.complete_step(f"load_orders_{step}", EMITTED_AT, result(step))
            if len(run.pending_events) >= _EVENTS_PER_SAVE:
                self._app.save(run)
        self._app.save(run)
        self._id = run.id

    def replay(self) -> float:
        """Read, decode and fold the aggregate; return the seconds."""
        with Stopwatch() as watch:
            run = self._app.repository.get(self._id)
        assert isinstance(run, PeerRun)
        assert (run.version, len(run.steps)) == (self._count, self._count // 2)
        return watch.seconds

    def close(self) -> None:
        self._app.close()
