"""A decider with a run, without store, clock or processes."""

from __future__ import annotations

from typing import Any

import runwright as rw
from runwright.contract import payloads
from runwright.contract.plan import ExecutionPlan, Order, PlanMetadata, Step, StepClass
from runwright.contract.refs import ErrorInfo
from runwright.core.decider import Decider
from runwright.core.fold.evolve import transition
from runwright.core.fold.execution_state import ExecutionState
from runwright.core.fold.run_state import RunState
from runwright.core.graph.plan_graph import PlanGraph
from runwright.core.scheduling.context import Capacity

BEGIN = 1_780_000_000_000_000
BROKEN = ErrorInfo("BROKEN", "it broke", retryable=True)


class DeciderHarness:
    """A decider with a run whose steps are ended by the test."""

    def __init__(
        self, *steps: Step, capacity: int = 100, queue: str | None = None, run_id: str = "run-1", **plan: Any
    ) -> None:
        plan = {"order": Order.SEQUENTIAL, **plan}
        self.plan = ExecutionPlan(metadata=PlanMetadata(plan_id="p"), steps=steps, **plan)
        self.graph = PlanGraph(self.plan, lambda _step: queue)
        self.run = rw.new_run(run_id, "p", "1")
        self.now = BEGIN
        self.capacity = capacity
        self.drafts: list[Any] = []
        self.decider = self._decider()
        self.decider.set_time(self.now)
        self.decider.emit("RunQueued", payload=payloads.RunQueued(params=dict(self.plan.params)))
        self.decider.emit("RunStarted", payload=payloads.RunStarted(started_at=None))

    def _decider(self) -> Decider:
        return Decider(self.graph, RunState(detailed=True, execution=ExecutionState(mentioned_steps=None)), self.run)

    def decide(self, *, stopped: bool = False) -> list[str]:
        self.decider.set_time(self.now)
        self.decider.decide(Capacity(dict.fromkeys(StepClass, self.capacity)), stopped=stopped)
        drafts, _ = self.decider.drain_drafts()
        self.drafts += drafts
        return [describe(draft) for draft in drafts]

    def end(self, step: str, *, error: ErrorInfo | None = None, attempt: int = 1) -> list[str]:
        self.decider.set_time(self.now)
        if error is None:
            self.decider.emit("StepCompleted", step, attempt, payloads.StepCompleted(1))
        else:
            self.decider.emit("StepFailed", step, attempt, payloads.StepFailed(error))
        return self.decide()[1:]

    def signal(self, kind: str, number: int = 1, **payload: Any) -> list[str]:
        self.accept(kind, number, **payload)
        return [entry for entry in self.decide() if not entry.startswith("SignalAccepted")]

    def accept(self, kind: str, number: int = 1, **payload: Any) -> None:
        signal_id = f"00000000-0000-4000-8000-{number:012}"
        decided = payloads.SignalDecided(signal_id=signal_id, signal_type=kind, payload=payload)
        self.decider.set_time(self.now)
        self.decider.emit("SignalAccepted", f"signal/{signal_id}", 1, decided)

    def restore(self) -> None:
        """Recover the run as another process would: fold all drafts into a new state."""
        self.decider.drain_drafts()
        self.decider = Decider(self.graph, self.fold(), self.run)

    def fold(self) -> RunState:
        """Fold all drafts into a new state. None of them may be forbidden."""
        state = self._decider().state
        for draft in self.drafts:
            assert transition(state, draft) is None
        return state

    @property
    def status(self) -> str:
        return str(self.decider.status)


def describe(draft: Any) -> str:
    payload = draft.raw_payload or b""
    code = next((word for word in CODES if f'"{word}"'.encode() in payload), "")
    attempt = "" if draft.logical_attempt_id == 1 else f"#{draft.logical_attempt_id}"
    path = "" if (draft.step_id or "").startswith("signal/") else draft.step_id
    return " ".join(filter(None, (draft.event_type, path, attempt, code)))


CODES = (
    "CONDITION_FALSE",
    "DEPENDENCY_SKIPPED",
    "DEPENDENCY_FAILED",
    "RUN_FAILED",
    "RUN_CANCELLED",
    "OPERATOR_SKIP",
    "RUN_TIMEOUT",
    "TIMEOUT",
    "CANCELLED",
    "KILLED",
    "RUN_TERMINAL",
    "ALREADY_PAUSED",
    "NOT_PAUSED",
    "STEP_TERMINAL",
)


def step(step_id: str, *needs: str, **more: Any) -> Step:
    return Step(step_id=step_id, kind="noop", depends_on=needs, **more)


def graph(*steps: Step, **more: Any) -> DeciderHarness:
    return DeciderHarness(*steps, order=Order.GRAPH, **more)
