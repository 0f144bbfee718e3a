"""Decide what happens next in a run.

Pure: a function of plan graph, folded state, time and capacity. Every drafted event is folded immediately, so one
decision can trigger the next; the runtime appends all drafts together and, on SEQ_CONFLICT, refolds and decides again.
The cost is proportional to what changed, not to the size of the plan.
"""

from __future__ import annotations

from typing import Any

from runwright.contract import payloads
from runwright.contract.events import RunIdentity
from runwright.contract.transitions import ENDED, RunStatus
from runwright.core.fold.execution_state import ExecutionState
from runwright.core.fold.run_state import RunState
from runwright.core.graph.node import Node
from runwright.core.graph.plan_graph import PlanGraph
from runwright.core.playbook.scheduler import PlaybookScheduler
from runwright.core.scheduling.context import Capacity, Draft, Payload, SchedulingContext, Violation
from runwright.core.scheduling.dag_scheduler import DagScheduler
from runwright.core.scheduling.result_refs import StorageKey
from runwright.core.scheduling.scheduler import Scheduler
from runwright.core.scheduling.scope import raw_inputs
from runwright.core.scheduling.signals import SignalTarget, Stop, apply_signals, is_ending, next_deadline
from runwright.core.scheduling.stored_values import StoredValues


class Decider:
    """The facade over one run: its state, its scheduler, and the signals sent to it."""

    def __init__(
        self, graph: PlanGraph, state: RunState, run: RunIdentity, engine_attempt: int = 1, drain_timeout: float = 300.0
    ) -> None:
        self._context = SchedulingContext(graph, state, run, engine_attempt, drain_timeout)
        self.graph = graph
        self.run = run
        self.state: RunState = state
        self.execution: ExecutionState = self._context.execution
        self.values: StoredValues = self._context.values
        self.scheduler = _scheduler(self._context)
        self.stop: Stop | None = None  # running steps must be stopped before the run can end
        self._context.subscribe(self.scheduler.on_emitted)

    @property
    def status(self) -> RunStatus:
        return self.state.summary.status

    @property
    def now(self) -> int:
        return self._context.now

    @property
    def engine_attempt(self) -> int:
        return self._context.engine_attempt

    @engine_attempt.setter
    def engine_attempt(self, engine_attempt: int) -> None:
        self._context.engine_attempt = engine_attempt

    @property
    def missing_values(self) -> dict[str, dict[str, Any]]:
        """References to fetch before everything can be decided."""
        return self._context.missing_values

    @property
    def violations(self) -> list[Violation]:
        """Forbidden events that were not emitted, and were not reported yet."""
        return self._context.violations

    @property
    def is_deferred(self) -> bool:
        """Whether the last decision, with the evaluations since, has cost as much as it may: decide again soon."""
        return self._context.cost.is_spent

    def set_time(self, now: int) -> None:
        self._context.set_time(now)

    def emit(self, event_type: str, path: str | None = None, attempt: int = 1, payload: Payload = None) -> None:
        """Draft an event and fold it; see `SchedulingContext.emit`."""
        self._context.emit(event_type, path, attempt, payload)

    def start_run(self, queued: payloads.RunQueued, started: payloads.RunStarted) -> None:
        """Draft the first events of a run."""
        self.emit("RunQueued", payload=queued)
        self.scheduler.on_queued()
        self.emit("RunStarted", payload=started)

    def decide(self, capacity: Capacity, *, stopped: bool = False) -> None:
        """Draft what follows from the state: everything, or as much as one decision may cost; see `is_deferred`.
        `stopped`: no step of this run is executed any more."""
        self._context.missing_values.clear()
        self._context.cost.reset()
        if self.status in ENDED:
            return
        self.scheduler.propagate_ends()
        self.stop = None
        if self.execution.pending_signals or self._may_have_deadline():
            self.stop = apply_signals(SignalTarget(self._context, self.scheduler), stopped=stopped)
            if self.stop is not None or self.status in ENDED:
                return
        if self.status is RunStatus.RUNNING:
            self.scheduler.advance(capacity)
        else:
            self.scheduler.advance_paused()

    def drain_drafts(self) -> tuple[list[Draft], dict[str | StorageKey, bytes]]:
        """Drafts since the last call, and the values that must be stored before they are appended."""
        return self._context.drain_drafts()

    def claim(self, path: str, attempt: int, worker: str) -> bool:
        """Start a queued attempt for a worker. False if it may not start, or not now."""
        if self.status is not RunStatus.RUNNING or self.stop is not None:
            return False
        if self.execution.has_pending_signal("PAUSE", "CANCEL", "EMERGENCY_STOP"):
            return False  # once such a signal is in the log nothing starts, also before it is applied
        return self.scheduler.claim(path, attempt, worker)

    def is_ending(self) -> bool:
        """Whether the run is being cancelled, or its timeout has passed."""
        return is_ending(self._context)

    def next_wake(self) -> int | None:
        """The next time in the future at which there is something to decide."""
        deadline = next_deadline(self._context) if self._may_have_deadline() else None
        times = (self.scheduler.next_due(), deadline)
        return min((time for time in times if time is not None and time > self.now), default=None)

    def _may_have_deadline(self) -> bool:
        """Whether `next_deadline` can return a time. Most runs have neither a timeout nor a pause that drains."""
        return self.graph.plan.timeout is not None or self.status is RunStatus.PAUSED

    def raw_inputs(self, node: Node) -> dict[str, Any]:
        """The inputs of a step before expressions are evaluated, with overrides applied."""
        return raw_inputs(self.execution, node)


def _scheduler(context: SchedulingContext) -> Scheduler:
    if context.graph.playbook is None:
        return DagScheduler(context)
    return PlaybookScheduler(context, context.graph.playbook)
