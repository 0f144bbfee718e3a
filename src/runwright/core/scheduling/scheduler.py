"""The interface of a scheduler. `DagScheduler` runs plans, `PlaybookScheduler` runs playbooks."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Protocol

import msgspec

from runwright.contract import payloads
from runwright.contract.refs import ArtifactRef, ErrorInfo
from runwright.core.fold.payload_reader import StoredResult
from runwright.core.graph.node import Node

from .context import Capacity, Draft
from .due_times import DueTimes


class AttemptEnd(msgspec.Struct):
    """The end of an attempt, as an executor or a worker reports it."""

    path: str
    attempt: int
    duration_ms: float
    result: bytes | None = None
    error: ErrorInfo | None = None
    artifacts: Sequence[ArtifactRef] = ()


class RunningAttempt(msgspec.Struct, frozen=True):
    path: str
    attempt: int


class Timeout(msgspec.Struct, frozen=True):
    """Seconds that an attempt may take, and the error with which it fails afterwards."""

    seconds: float
    error: ErrorInfo


class ResultPrefix(msgspec.Struct, frozen=True):
    """Stored results that are no longer needed: the keys in `store` that begin with `prefix`."""

    store: str
    prefix: str


class Scheduler(Protocol):
    # Scheduling

    def on_queued(self) -> None:
        """Emit what stands between RunQueued and RunStarted."""
        ...

    def on_emitted(self, event: Draft) -> None:
        """Note what a draft touches; the next `advance` looks only at that."""
        ...

    def propagate_ends(self) -> None:
        """Pass on how touched steps ended, before signals are applied."""
        ...

    @property
    def due_times(self) -> DueTimes: ...

    def advance(self, capacity: Capacity) -> None:
        """Emit everything that follows from the state."""
        ...

    def advance_paused(self) -> None:
        """Emit what may happen while the run does not start anything new."""
        ...

    def next_due(self) -> int | None:
        """When there will be something to do; None if nothing waits for a time."""
        ...

    def requeue_retry(self, path: str) -> None:
        """Schedule a retry whose due time was changed."""
        ...

    def skip_pending(self, code: str, reason: str) -> bool:
        """Skip the steps that never started, because the run ends. False if some remain for the next decision."""
        ...

    def end_running(self, error: ErrorInfo) -> None:
        """Fail everything that is running, because the run ends."""
        ...

    def end_run(self, event_type: str, payload: payloads.RunEnded) -> None: ...

    def stored_result(self) -> StoredResult | None:
        """The result of a step that is the result of the run as it is; None if that has to be evaluated."""
        ...

    def result(self) -> Any:
        """The result of a completed run. Raises MissingValues if values must be fetched first."""
        ...

    # Attempts

    def is_running(self, path: str, attempt: int) -> bool:
        """Whether the log has this attempt as running."""
        ...

    def running_attempts(self) -> list[RunningAttempt]:
        """Attempts that are executed according to the log. Waits are not executed."""
        ...

    def starts_execution(self, event: Draft) -> bool:
        """Whether an attempt is to be executed once this event is durable."""
        ...

    def on_attempt_ended(self, end: AttemptEnd) -> None:
        """Emit the end of an attempt, unless it has ended otherwise."""
        ...

    def inputs_of(self, node: Node, path: str, more: dict[str, Any]) -> Any:
        """The inputs of a step or task with its expressions evaluated."""
        ...

    def timeout_of(self, node: Node, path: str) -> Timeout | None: ...

    def inherited_secret_names(self, path: str) -> frozenset[str]:
        """Names under which a task finds secret references that other tasks provide."""
        ...

    def iteration_of(self, path: str) -> dict[str, Any] | None:
        """The iteration of a playbook loop that a task belongs to; a sub-run receives it."""
        ...

    def results_out_of_scope(self, events: list[Draft]) -> Collection[ResultPrefix]:
        """Stored results that can be deleted once these events are durable."""
        ...

    # Workers

    def queued_for_workers(self) -> dict[str, int]:
        """Attempts that workers may claim: path to attempt."""
        ...

    def claim(self, path: str, attempt: int, worker: str) -> bool:
        """Start a queued attempt for a worker. False if it is not queued."""
        ...
