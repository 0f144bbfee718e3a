"""`evolve`: the only code in the project that turns events into state.

The projector, the list page, the detail page, recovery, time travel, verification and the checks at
append time all come here. An event that may not happen changes nothing (policy A): the run is marked
INCONSISTENT, and the caller is told, so that it can raise one alert per event.
"""

from __future__ import annotations

from collections.abc import Callable

from runwright.contract import payloads
from runwright.contract.events import FoldableEvent
from runwright.contract.timestamps import is_utc
from runwright.contract.transitions import (
    ENDED,
    RUN_TRANSITIONS,
    STEP_TRANSITIONS,
    InvalidTransition,
    RunStatus,
    StepStatus,
)

from .loops import loop_event, loop_retry
from .reading import read_payload, shortened
from .state import RunState
from .steps import step_event
from .underway import COUNTED, count


def evolve(state: RunState, event: FoldableEvent) -> InvalidTransition | None:
    """Fold one event. Whatever the event, the watermark moves on; what was folded before is a no-op."""
    summary = state.summary
    if event.run_seq <= summary.last_event_seq:
        return None
    invalid = transition(state, event)
    summary.last_event_seq = event.run_seq
    if invalid is not None:
        summary.inconsistent = True
    return invalid


def transition(state: RunState, event: FoldableEvent) -> InvalidTransition | None:
    """Apply the event where it is legal; otherwise leave the state as it was and say why."""
    event_type = event.event_type
    step = STEP_TRANSITIONS.get(event_type)
    if step is not None:
        invalid = step_event(state, event, step)
    elif event_type in RUN_TRANSITIONS:
        invalid = _run_event(state, event)
    else:
        invalid = None
        beside = _BESIDE.get(event_type)
        if beside is not None:
            beside(state, event)
        if event_type in COUNTED:
            count(state, event)
    if invalid is None and state.workings is not None:
        state.workings.note(event)
    return invalid


# Run-level events


def _run_event(state: RunState, event: FoldableEvent) -> InvalidTransition | None:
    mark = f"{event.event_type}|{event.logical_attempt_id}"
    if mark in state.applied:
        return None
    summary = state.summary
    legal_in, leads_to = RUN_TRANSITIONS[event.event_type]
    if event.event_type == "RunStarted" and summary.approval_required:
        legal_in = frozenset({RunStatus.APPROVED})
    if summary.status not in legal_in:
        expected = " or ".join(sorted(legal_in))
        return InvalidTransition(
            event.event_type,
            expected,
            str(summary.status),
            f"{event.event_type} needs a run that is {expected}; this run is {summary.status}.",
        )
    state.applied[mark] = None
    if leads_to is not None:
        summary.status = leads_to
    _RUN_EFFECTS[event.event_type](state, event)
    return None


def _queued(state: RunState, event: FoldableEvent) -> None:
    payload = read_payload(payloads.RunQueued, event)
    if payload.approval_required:
        state.summary.approval_required = True  # being queued again does not lift it
    state.summary.origin_run_id = state.summary.origin_run_id or payload.origin_run_id


def _no_effect(_state: RunState, _event: FoldableEvent) -> None: ...


def _started(state: RunState, event: FoldableEvent) -> None:
    payload = read_payload(payloads.RunStarted, event)
    summary = state.summary
    known = payload.started_at is not None and is_utc(payload.started_at)
    summary.started_at = payload.started_at if known else event.emitted_at
    summary.engine_run_ref = payload.engine_run_ref
    summary.waits_on_failure = payload.on_failure == "wait"
    if payload.engine_run is not None:
        summary.provider = payload.engine_run.provider
        summary.workflow_id = payload.engine_run.workflow_id
        summary.provider_run_id = payload.engine_run.run_id


def _paused(state: RunState, event: FoldableEvent) -> None:
    state.summary.pauses += 1
    state.summary.drain_timed_out = False
    state.summary.reason = shortened(read_payload(payloads.RunSteered, event).reason)


def _resumed(state: RunState, _event: FoldableEvent) -> None:
    state.summary.drain_timed_out = False
    state.summary.reason = None


def _ended(state: RunState, event: FoldableEvent) -> None:
    payload = read_payload(payloads.RunEnded, event)
    summary = state.summary
    summary.completed_at = event.emitted_at
    summary.reason = shortened(payload.reason)
    if summary.retrying_steps:  # nothing will be tried again
        summary.retrying_steps = 0
        for cell in state.steps.values():
            cell.retry = False
    if state.detailed:
        state.artifacts = tuple(payload.artifact_refs or ())
    if summary.status is not RunStatus.FAILED:
        return
    if payload.root_cause is not None:
        cause = payload.root_cause
        summary.root_cause = payloads.RootCause(
            shortened(cause.step_id), shortened(cause.code), shortened(cause.message)
        )
    elif payload.error is not None:
        summary.root_cause = payloads.RootCause(None, shortened(payload.error.code), shortened(payload.error.message))
    else:
        summary.root_cause = summary.last_failure


_RUN_EFFECTS: dict[str, Callable[[RunState, FoldableEvent], None]] = {
    "RunQueued": _queued,
    "RunApproved": _no_effect,
    "RunStarted": _started,
    "RunPaused": _paused,
    "RunResumed": _resumed,
    "RunCompleted": _ended,
    "RunFailed": _ended,
    "RunCancelled": _ended,
}


# Events beside the two machines


def _signal_accepted(state: RunState, event: FoldableEvent) -> None:
    if event.step_id is not None and event.logical_attempt_id == 1:  # a signal is accepted once
        state.signals[event.step_id] = None


def _retry_scheduled(state: RunState, event: FoldableEvent) -> None:
    if state.summary.status in ENDED:
        return  # nothing will be tried again
    loop_retry(state, event)
    cell = state.steps.get(event.step_id or "")
    if cell is None or cell.retry or (cell.attempt, cell.status) != (event.logical_attempt_id, StepStatus.FAILED):
        return
    cell.retry = True
    state.summary.retrying_steps += 1


def _approval_requested(state: RunState, event: FoldableEvent) -> None:
    request = approval_ref(event)
    if request not in state.approvals:
        state.approvals[request] = True
        state.summary.waiting_approvals += 1


def _approval_answered(state: RunState, event: FoldableEvent) -> None:
    request = approval_ref(event)
    if state.approvals.get(request):
        state.summary.waiting_approvals -= 1
    state.approvals[request] = False


def approval_ref(event: FoldableEvent) -> str:
    return f"{event.step_id}|{event.logical_attempt_id}"


def _drain_timed_out(state: RunState, event: FoldableEvent) -> None:
    mark = f"{event.event_type}|{event.logical_attempt_id}"
    if state.summary.status is RunStatus.PAUSED and mark not in state.applied:
        state.applied[mark] = None
        state.summary.drain_timed_out = True


_BESIDE: dict[str, Callable[[RunState, FoldableEvent], None]] = {
    "SignalAccepted": _signal_accepted,
    "StepRetryScheduled": _retry_scheduled,
    "ApprovalRequested": _approval_requested,
    "ApprovalGranted": _approval_answered,
    "ApprovalDenied": _approval_answered,
    "RunDrainTimedOut": _drain_timed_out,
    "LoopStarted": loop_event,
    "LoopIterationStarted": loop_event,
    "LoopIterationDone": loop_event,
    "LoopIterationFailed": loop_event,
}
