"""Facts: what happened outside the log and belongs into it. A step ended, a checkpoint was written, a wait started.

A fact is retained until it is durable. It may be applied again, to a state that was refolded.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from typing import Literal, Protocol

import msgspec

from runwright.contract import payloads
from runwright.contract.errors import ErrorCode, RunwrightError
from runwright.contract.paths import EntityPath, parse_path
from runwright.contract.refs import ArtifactRef, ErrorInfo
from runwright.contract.timestamps import from_micros
from runwright.core.decider import Decider
from runwright.core.fold.execution_state import ChildRun
from runwright.core.scheduling.scheduler import AttemptEnd


class Fact(Protocol):
    def apply(self, decider: Decider) -> None:
        """Emit it, unless it no longer applies."""
        ...

    def on_durable(self) -> None:
        """It is in the log."""
        ...

    def on_abandoned(self, error: RunwrightError) -> None:
        """It was not written within the write budget, or the run is not driven here any more."""
        ...


class StepEnded:
    def __init__(
        self,
        path: str,
        attempt: int,
        duration_ms: float,
        result: bytes | None,
        error: ErrorInfo | None,
        artifacts: Sequence[ArtifactRef] = (),
    ) -> None:
        self.path = path
        self.attempt = attempt
        self.duration_ms = duration_ms
        self.result = result
        self.error = error
        self.artifacts = list(dict.fromkeys(artifacts))

    def apply(self, decider: Decider) -> None:
        end = AttemptEnd(self.path, self.attempt, self.duration_ms, self.result, self.error, self.artifacts)
        decider.scheduler.on_attempt_ended(end)

    def is_among(self, bodies: Collection[bytes]) -> bool:
        """Whether its result, or the result reported with its error, is one of these."""
        if self.error is None:
            return self.result in bodies
        facts = self.error.facts or {}
        return "result" in facts and msgspec.json.encode(facts["result"]) in bodies

    def lose_result(self) -> None:
        """The run ends, and the store of its result is unavailable."""
        if self.error is not None:
            facts = {name: fact for name, fact in (self.error.facts or {}).items() if name != "result"}
            self.error = msgspec.structs.replace(self.error, facts=facts)
            return
        message = "The step completed, but its result could not be stored: the store is unavailable."
        self.result = None
        self.error = ErrorInfo(ErrorCode.STORE_UNAVAILABLE, message, retryable=True, category="store")

    def on_durable(self) -> None: ...

    def on_abandoned(self, error: RunwrightError) -> None:
        """It is offered again: an outage of the store must not repeat work that was done."""


class WaitStarted:
    """A step that only waits: its due time is in the log, so it need not stay in memory."""

    def __init__(self, path: str, attempt: int, due: int, reason: Literal["wait", "until", "timeout"]) -> None:
        self.path = path
        self.attempt = attempt
        self.due = due
        self.reason = reason

    def apply(self, decider: Decider) -> None:
        if self.path not in decider.execution.due_at:
            delayed = payloads.StepDelayed(from_micros(self.due), self.reason)
            decider.emit("StepDelayed", self.path, self.attempt, delayed)

    def on_durable(self) -> None: ...

    def on_abandoned(self, error: RunwrightError) -> None: ...


class InputRequested:
    """A step that waits for an approval or an external event."""

    def __init__(self, path: str, attempt: int, event_type: str, question: msgspec.Struct) -> None:
        self.path = path
        self.attempt = attempt
        self.event_type = event_type
        self.question = question

    def apply(self, decider: Decider) -> None:
        if self.path not in decider.execution.pending_inputs and decider.scheduler.is_running(self.path, self.attempt):
            decider.emit(self.event_type, self.path, self.attempt, self.question)

    def on_durable(self) -> None: ...

    def on_abandoned(self, error: RunwrightError) -> None: ...


class _AwaitedFact(ABC):
    """A fact of a running attempt, which waits until the fact is durable."""

    def __init__(self, path: str, attempt: int, on_done: Callable[[Exception | None], None]) -> None:
        self.path = path
        self.attempt = attempt
        self._on_done: Callable[[Exception | None], None] | None = on_done

    def apply(self, decider: Decider) -> None:
        if self._on_done is None:
            return  # given up
        if decider.scheduler.is_running(self.path, self.attempt):
            self.emit(decider)
            return
        self.on_abandoned(
            RunwrightError(ErrorCode.STEP_TERMINAL, "This attempt has ended: it was stopped or abandoned.")
        )

    @abstractmethod
    def emit(self, decider: Decider) -> None: ...

    def on_durable(self) -> None:
        self._finish(None)

    def on_abandoned(self, error: RunwrightError) -> None:
        self._finish(error)

    def _finish(self, error: Exception | None) -> None:
        """Call back the attempt that waits, once."""
        on_done, self._on_done = self._on_done, None
        if on_done is not None:
            on_done(error)


class ChildRunNamed(_AwaitedFact):
    """The id of the run of a step. The run is created when the id is in the log."""

    def __init__(self, path: str, child: ChildRun, on_done: Callable[[Exception | None], None]) -> None:
        super().__init__(path, child.attempt, on_done)
        self._child = child

    def emit(self, decider: Decider) -> None:
        ordinal = len(decider.execution.child_runs.get(self.path, ())) + 1
        child = self._child
        initiated = payloads.ChildRunInitiated(child.run_id, child.attempt, child.plan_sha256)
        decider.emit("ChildRunInitiated", self.path, ordinal, initiated)


class CheckpointRequested(_AwaitedFact):
    def __init__(self, path: str, attempt: int, state: bytes, on_done: Callable[[Exception | None], None]) -> None:
        super().__init__(path, attempt, on_done)
        self.state = state

    def emit(self, decider: Decider) -> None:
        path = parse_path(self.path)
        entity = self.path
        if path is not None and not path.indexes and path.task is None:
            entity = str(EntityPath(path.step, path.visit, self.attempt))
        ordinal = decider.execution.checkpoint_counts.get(entity, 0) + 1
        decider.emit("CheckpointWritten", entity, ordinal, {"state": msgspec.Raw(self.state)})
