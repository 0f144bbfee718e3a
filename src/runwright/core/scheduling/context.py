"""The data of a decision: the state of one run, the time, free capacity, and drafts of events."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from runwright.contract import payloads
from runwright.contract.events import RunIdentity
from runwright.contract.keys import RUN
from runwright.contract.plan import StepClass
from runwright.contract.refs import ErrorInfo
from runwright.contract.timestamps import from_micros, to_micros
from runwright.contract.transitions import STEP_TRANSITIONS, InvalidTransition, RunStatus
from runwright.core.expressions.budget import CostMeter
from runwright.core.fold.evolve import transition
from runwright.core.fold.run_state import RunState
from runwright.core.graph.plan_graph import PlanGraph

from .result_refs import StorageKey
from .stored_values import StoredValues

_encode = msgspec.json.Encoder().encode

_EVENT_COST = 1000  # cost units of an event: a decision emits some thousands of them

Payload = msgspec.Struct | dict[str, Any] | bytes | None


class Draft(msgspec.Struct, gc=False):
    """An event that a decision emitted: folded at once, appended later by the runtime."""

    event_type: str
    step_id: str | None
    logical_attempt_id: int
    raw_payload: bytes | None
    emitted_at: str
    engine_attempt_id: int
    run_seq: int = 0  # not known yet
    schema_version: int | None = None
    is_append_boundary: bool = False  # the log may end here: an append may be split after this event


OnEmitted = Callable[[Draft], None]


class Violation(Exception):
    """This engine was about to emit an event that the state machines forbid."""

    def __init__(self, entity: str, invalid: InvalidTransition) -> None:
        super().__init__(invalid.detail)
        self.entity = entity
        self.facts = {
            "invalidTransitionDetected": True,
            "expectedState": invalid.expected_state,
            "actualState": invalid.actual_state,
            "attemptedEventType": invalid.attempted_event_type,
        }


class Capacity:
    """The slots that one decision may use. `closed`: nothing may start, not even steps that need no slot."""

    def __init__(self, free: dict[StepClass, int], *, closed: bool = False) -> None:
        self.free = free
        self.closed = closed
        self.refused = closed  # a step that could start was not started
        self.short: set[StepClass] = set()  # classes without a free slot for a ready step
        self.acquired: list[StepClass] = []

    def has(self, step_class: StepClass) -> bool:
        return self.free.get(step_class, 0) > 0

    def mark_short(self, step_class: StepClass) -> None:
        self.refused = True
        self.short.add(step_class)

    def is_available(self) -> bool:
        return not self.closed and any(count > 0 for count in self.free.values())

    def acquire(self, step_class: StepClass) -> bool:
        if not self.has(step_class):
            self.mark_short(step_class)
            return False
        self.free[step_class] -= 1
        self.acquired.append(step_class)
        return True


class SchedulingContext:
    """The state of one run and the drafts made from it. Every draft is folded as soon as it is emitted."""

    def __init__(
        self, graph: PlanGraph, state: RunState, run: RunIdentity, engine_attempt: int = 1, drain_timeout: float = 300.0
    ) -> None:
        assert state.execution is not None, "a run is scheduled on a state that was folded with its execution state"
        self.graph = graph
        self.state = state
        self.execution = state.execution
        self.run = run
        self.engine_attempt = engine_attempt
        self.drain_timeout = drain_timeout  # seconds
        self.values = StoredValues()
        self.missing_values: dict[str, dict[str, Any]] = {}  # references to fetch before all can be decided
        self.pending_values: dict[str | StorageKey, bytes] = {}  # values to store before the drafts are appended
        self.suppressed_entities: set[str] = set()  # entities about which a forbidden event was nearly emitted
        self.violations: list[Violation] = []  # not reported yet
        self.emitted = 0  # events so far
        self.cost = CostMeter()  # of the current decision
        self.now = 0  # microseconds since 1970
        self._now_text = ""
        self._drafts: list[Draft] = []
        self._on_emitted: OnEmitted | None = None

    def subscribe(self, on_emitted: OnEmitted) -> None:
        """Call this with every draft about an entity of the run."""
        self._on_emitted = on_emitted

    @property
    def status(self) -> RunStatus:
        return self.state.summary.status

    def set_time(self, now: int) -> None:
        self.now = self.values.now = now
        self._now_text = from_micros(now)

    def emit(self, event_type: str, path: str | None = None, attempt: int = 1, payload: Payload = None) -> None:
        """Draft an event and fold it. An event the state machines forbid is not drafted: its entity is suppressed until
        the next refold, and a Violation is recorded. A forbidden event about the run itself raises the Violation."""
        if path in self.suppressed_entities and event_type in STEP_TRANSITIONS:
            return
        raw = payload if payload is None or isinstance(payload, bytes) else _encode(payload)
        event = Draft(event_type, path, attempt, raw, self._now_text, self.engine_attempt)
        if (invalid := transition(self.state, event)) is not None:
            if path is None:
                raise Violation(RUN, invalid)
            self.suppressed_entities.add(path)
            self.violations.append(Violation(path, invalid))
            return
        self._drafts.append(event)
        self.emitted += 1
        self.cost.add(_EVENT_COST)
        if path is not None and self._on_emitted is not None:
            self._on_emitted(event)

    def mark_append_boundary(self) -> None:
        """Allow the log to end here. A long list of drafts is appended in parts that end at such boundaries only: a
        process that recovers the run there makes the same decisions."""
        if self._drafts:
            self._drafts[-1].is_append_boundary = True

    def drain_drafts(self) -> tuple[list[Draft], dict[str | StorageKey, bytes]]:
        """Drafts since the last call, and the values that must be stored before they are appended."""
        drafts, self._drafts = self._drafts, []
        values, self.pending_values = self.pending_values, {}
        return drafts, values

    def fail_step(self, path: str, attempt: int, code: str, message: str) -> None:
        """Fail a step for a reason that lies in the plan."""
        error = ErrorInfo(code, message, retryable=False, category="plan")
        self.emit("StepFailed", path, attempt, payloads.StepFailed(error, 0.0))

    def ms_since(self, start: str | None) -> float | None:
        return None if start is None else max(0, self.now - to_micros(start)) / 1000

    def ms_since_micros(self, start: int) -> float:
        return max(0, self.now - start) / 1000
