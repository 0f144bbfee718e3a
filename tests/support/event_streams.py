"""Streams of events for the tests of the fold, and a second implementation to compare with.

`Opinion` is a slow reference implementation of the fold: it computes state from the whole list of applied
events, by the rules of RunEvents v2.0.1 and of our decisions on it, without code from `src`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec
from hypothesis import strategies as st

import runwright as rw

RUN = rw.new_run("run-1", "orders")


class Event(NamedTuple):
    """An event of a test. `number` determines its id; None stands for its position in the stream."""

    event_type: str
    step_id: str | None = None
    attempt: int = 1
    payload: dict[str, Any] | None = None
    number: int | None = None


def event_id(number: int) -> str:
    return f"00000000-0000-4000-8000-{number:012x}"


def to_write(event: Event, place: int) -> rw.RunEventWrite:
    number = place if event.number is None else event.number
    return rw.new_event(
        event.event_type,
        RUN,
        step_id=event.step_id,
        attempt=event.attempt,
        payload=event.payload,
        event_id=event_id(number),
        emitted_at=f"2026-01-31T08:00:{place % 60:02d}Z",
    )


def to_record(event: Event, seq: int) -> rw.RunEventRecord:
    written = to_write(event, seq)
    fields = {name: getattr(written, name) for name in written.__struct_fields__}
    return rw.RunEventRecord(
        **fields, run_seq=seq, persisted_at=f"2026-01-31T09:00:{seq % 60:02d}.000000Z", hash="0" * 64
    )


def to_records(events: list[Event], first: int = 1) -> list[rw.RunEventRecord]:
    return [to_record(event, seq) for seq, event in enumerate(events, first)]


# The reference implementation

LEADS_TO = {
    "RunApproved": "APPROVED",
    "RunStarted": "RUNNING",
    "RunPaused": "PAUSED",
    "RunResumed": "RUNNING",
    "RunCompleted": "COMPLETED",
    "RunFailed": "FAILED",
    "RunCancelled": "CANCELLED",
}
RUN_NEEDS = {
    "RunQueued": "PENDING APPROVED",
    "RunApproved": "PENDING",
    "RunStarted": "PENDING APPROVED",
    "RunPaused": "RUNNING",
    "RunResumed": "PAUSED",
    "RunCompleted": "RUNNING",
    "RunFailed": "PENDING APPROVED RUNNING PAUSED",
    "RunCancelled": "PENDING APPROVED RUNNING PAUSED",
    "StepStarted": "RUNNING PAUSED",
    "StepCompleted": "RUNNING PAUSED",
    "StepFailed": "RUNNING PAUSED",
    "StepSkipped": "PENDING APPROVED RUNNING PAUSED",
}
STEP_LEADS_TO = {
    "StepStarted": "RUNNING",
    "StepCompleted": "SUCCESS",
    "StepFailed": "FAILED",
    "StepSkipped": "SKIPPED",
}


class Opinion:
    """The events applied so far, and the state that follows from them."""

    def __init__(self) -> None:
        self.happened: list[Event] = []
        self.inconsistent = False

    def hear(self, event: Event) -> str:
        """Process one event: it "applies", it "repeats" an applied event, or it is "illegal"."""
        if event.event_type in RUN_NEEDS:
            if any(event[:3] == earlier[:3] for earlier in self.happened):
                return "repeats"
            if not self._is_legal(event):
                self.inconsistent = True
                return "illegal"
        if event.event_type == "RunDrainTimedOut" and (
            self.run_status != "PAUSED" or any(event[:3] == earlier[:3] for earlier in self.happened)
        ):
            return "repeats"  # the pause it belongs to has ended
        self.happened.append(event)
        return "applies"

    def _is_legal(self, event: Event) -> bool:
        if self.run_status not in RUN_NEEDS[event.event_type].split():
            return False
        if event.event_type == "RunStarted":
            return self.run_status == "APPROVED" or not self._approval_required
        if event.event_type not in STEP_LEADS_TO:
            return True
        assert event.step_id is not None
        now = self.step_status(event.step_id, event.attempt)
        if event.event_type in ("StepCompleted", "StepFailed"):
            return now == "RUNNING"
        if now != "PENDING" or event.attempt == 1:
            return now == "PENDING"
        before = self.step_status(event.step_id, event.attempt - 1)
        return before == "FAILED" or (before in ("SUCCESS", "SKIPPED") and self._is_forced(event))

    def _is_forced(self, event: Event) -> bool:
        signal = (event.payload or {}).get("forcedBy")
        accepted = Event("SignalAccepted", f"signal/{signal}")
        return event.event_type == "StepStarted" and any(accepted[:3] == other[:3] for other in self.happened)

    @property
    def _approval_required(self) -> bool:
        queued = [event for event in self.happened if event.event_type == "RunQueued"]
        return any((event.payload or {}).get("approvalRequired") for event in queued)

    @property
    def run_status(self) -> str:
        return next((LEADS_TO[e.event_type] for e in reversed(self.happened) if e.event_type in LEADS_TO), "PENDING")

    def step_status(self, step_id: str, attempt: int) -> str:
        for event in reversed(self.happened):
            if event.event_type in STEP_LEADS_TO and (event.step_id, event.attempt) == (step_id, attempt):
                return STEP_LEADS_TO[event.event_type]
        return "PENDING"

    def steps(self) -> dict[str, tuple[int, str]]:
        """Each step with its newest attempt and its status, in order of first events."""
        newest: dict[str, tuple[int, str]] = {}
        for event in self.happened:
            if event.event_type in STEP_LEADS_TO:
                assert event.step_id is not None
                newest[event.step_id] = (event.attempt, STEP_LEADS_TO[event.event_type])
        return newest

    def retrying(self) -> set[str]:
        """Steps with a retry scheduled after their newest attempt failed; none once the run has ended."""
        found: set[str] = set()
        if self.run_status in ("COMPLETED", "FAILED", "CANCELLED"):
            return found
        for step_id, (attempt, status) in self.steps().items():
            told = [e.event_type for e in self.happened if (e.step_id, e.attempt) == (step_id, attempt)]
            if status == "FAILED" and "StepRetryScheduled" in told[told.index("StepFailed") :]:
                found.add(step_id)
        return found

    def waiting_approvals(self) -> int:
        def told(event_type: str) -> set[tuple[str | None, int]]:
            return {(e.step_id, e.attempt) for e in self.happened if e.event_type == event_type}

        return len(told("ApprovalRequested") - told("ApprovalGranted") - told("ApprovalDenied"))

    def drain_timed_out(self) -> bool:
        since = next((n for n, e in enumerate(reversed(self.happened)) if e.event_type in LEADS_TO), 0)
        recent = self.happened[len(self.happened) - since :]
        return self.run_status == "PAUSED" and any(event.event_type == "RunDrainTimedOut" for event in recent)

    def counts(self) -> dict[str, int]:
        statuses = [status for _, status in self.steps().values()]
        return {
            "total_steps": len(statuses),
            "running_steps": statuses.count("RUNNING"),
            "completed_steps": statuses.count("SUCCESS"),
            "failed_steps": statuses.count("FAILED"),
            "skipped_steps": statuses.count("SKIPPED"),
            "pauses": sum(event.event_type == "RunPaused" for event in self.happened),
        }

    def substatus(self) -> str | None:
        running = self.counts()["running_steps"]
        if self.run_status == "PAUSED" and running and not self.drain_timed_out():
            return "DRAINING"
        if self.run_status == "PENDING" and self._approval_required:
            return "WAITING_APPROVAL"
        if self.run_status != "RUNNING":
            return None
        return "WAITING_APPROVAL" if self.waiting_approvals() else "RETRYING" if self.retrying() else None


# Random streams

STEPS = ("a", "b", "c")
_TYPES = [*RUN_NEEDS, "StepRetryScheduled"]

ANY_EVENT = [
    *(Event(name, None, attempt) for name in RUN_NEEDS if name.startswith("Run") for attempt in (1, 2)),
    *(Event(name, step, n) for name in _TYPES if name.startswith("Step") for step in STEPS for n in (1, 2, 3, 4)),
    *(Event("StepStarted", step, n, {"forcedBy": by}) for step in STEPS for n in (2, 3) for by in ("s1", "s2")),
    *(Event("StepSkipped", step, 2, {"forcedBy": "s1"}) for step in STEPS),
    *(Event("SignalAccepted", f"signal/{name}", n) for name in ("s1", "s2") for n in (1, 2)),
    *(Event(f"Approval{end}", s, n) for end in ("Requested", "Granted", "Denied") for s in ("a", "b") for n in (1, 2)),
    *(Event("RunDrainTimedOut", None, attempt) for attempt in (1, 2)),
    *(Event("SomethingNew", step) for step in (None, "a")),
    *(Event("SomethingNew", f"reuse-{number}", 1, None, number) for number in (1, 3)),
]
BEGINNINGS: list[list[Event]] = [
    [],
    [Event("RunQueued")],
    [Event("RunQueued"), Event("RunStarted")],
    [Event("RunQueued", None, 1, {"approvalRequired": True}), Event("RunApproved"), Event("RunStarted")],
    [Event("RunQueued", None, 1, {"approvalRequired": True})],
]

Move = Event | tuple[str, str]
_moves = st.sampled_from([(kind, step) for kind in ("well", "badly") for step in STEPS]) | st.sampled_from(
    [("pause", ""), ("resume", ""), ("well", "a"), ("badly", "a"), ("again", "a"), ("ask", "a"), ("answer", "a")]
)


def _step_move(kind: str, step: str, attempt: int, status: str) -> Event:
    """A plausible next event of a step."""
    if status == "PENDING":
        return Event("StepStarted" if kind == "well" else "StepSkipped", step, attempt)
    if status == "RUNNING":
        return Event("StepCompleted" if kind == "well" else "StepFailed", step, attempt)
    if status == "FAILED" and kind == "badly":
        return Event("StepRetryScheduled", step, attempt)
    if status == "FAILED":
        return Event("StepStarted", step, attempt + 1)
    return Event("StepStarted", step, attempt + 1, {"forcedBy": "s1"})


def play(beginning: list[Event], moves: list[Move]) -> list[Event]:
    """Return the events of these moves; most of them are legal after the ones before."""
    opinion, events = Opinion(), list(beginning)
    for event in beginning:
        opinion.hear(event)
    for move in moves:
        event = move if isinstance(move, Event) else _natural(opinion, *move)
        opinion.hear(event)
        events.append(event)
    return events


def _natural(opinion: Opinion, kind: str, step: str) -> Event:
    pauses = opinion.counts()["pauses"]
    steered = {"pause": Event("RunPaused", None, pauses + 1), "resume": Event("RunResumed", None, max(pauses, 1))}
    asked = {"ask": Event("ApprovalRequested", step), "answer": Event("ApprovalGranted", step)}
    if kind in steered:
        return steered[kind]
    if kind in asked:
        return asked[kind]
    if kind == "again":
        return Event("SignalAccepted", "signal/s1")
    attempt, status = opinion.steps().get(step, (1, "PENDING"))
    return _step_move(kind, step, attempt, status)


def streams(longest: int = 30) -> st.SearchStrategy[list[Event]]:
    move = _moves | _moves | st.sampled_from(ANY_EVENT)
    moves = st.lists(move, max_size=longest) | st.lists(move, min_size=longest // 2, max_size=longest)
    return st.builds(play, st.sampled_from(BEGINNINGS + BEGINNINGS[2:4] * 3), moves)


def without_resume(snapshot: rw.RunSnapshot) -> rw.RunSnapshot:
    """Return the snapshot without its data for resuming."""
    return msgspec.structs.replace(snapshot, resume=b"")


MANY_PAUSES = [Event("RunStarted")] + [
    Event(name, None, number) for number in range(1, 50) for name in ("RunPaused", "RunResumed")
]
