"""Apply one event to the state of a run: `evolve` and `transition`, the entry points of the fold.

The projector, run lists, run details, recovery, time travel, verification and the checks of the append authority all
use them. An illegal event changes nothing (policy A) except that `evolve` marks the run INCONSISTENT; the reason is
returned, so that the caller can raise one alert per event.
"""

from __future__ import annotations

from collections.abc import Callable

from runwright.contract import payloads
from runwright.contract.events import FoldableEvent
from runwright.contract.timestamps import is_utc
from runwright.contract.transitions import ENDED, RUN_TRANSITIONS, InvalidTransition, RunStatus, StepStatus

from .counters import HANDLERS as COUNTER_HANDLERS
from .payload_reader import read_payload, truncated
from .state import RunState
from .steps import HANDLERS as STEP_HANDLERS


def evolve(state: RunState, event: FoldableEvent) -> InvalidTransition | None:
    """Fold one event and advance the watermark; an event at or below the watermark changes nothing.

    Return why the event is illegal, or None.
    """
    summary = state.summary
    if event.run_seq <= summary.last_event_seq:
        return None
    invalid = transition(state, event)
    summary.last_event_seq = event.run_seq
    if invalid is not None:
        summary.inconsistent = True
    return invalid


def transition(state: RunState, event: FoldableEvent) -> InvalidTransition | None:
    """Apply the event if it is legal; otherwise leave the state unchanged and return why."""
    event_type = event.event_type
    if event_type in STEP_HANDLERS:
        invalid = STEP_HANDLERS[event_type](state, event)
    elif event_type in RUN_TRANSITIONS:
        invalid = _apply_run_event(state, event)
    else:
        invalid = None
        if event_type in HANDLERS:
            HANDLERS[event_type](state, event)
        if event_type in COUNTER_HANDLERS:
            COUNTER_HANDLERS[event_type](state, event)
    if invalid is None and state.execution is not None:
        state.execution.fold(event)
    return invalid


# Events of the run state machine


def _apply_run_event(state: RunState, event: FoldableEvent) -> InvalidTransition | None:
    key = f"{event.event_type}|{event.logical_attempt_id}"
    if key in state.applied:
        return None
    summary = state.summary
    legal_in, next_status = RUN_TRANSITIONS[event.event_type]
    if event.event_type == "RunStarted" and summary.approval_required:
        legal_in = frozenset({RunStatus.APPROVED})
    if summary.status not in legal_in:
        expected = " or ".join(sorted(legal_in))
        return InvalidTransition(
            event.event_type,
            expected,
            str(summary.status),
            f"{event.event_type} requires run status {expected}; the run is {summary.status}.",
        )
    state.applied[key] = None
    if next_status is not None:
        summary.status = next_status
    HANDLERS[event.event_type](state, event)
    return None


def _on_run_queued(state: RunState, event: FoldableEvent) -> None:
    payload = read_payload(payloads.RunQueued, event)
    if payload.approval_required:
        state.summary.approval_required = True  # a later RunQueued event cannot lift the requirement
    state.summary.origin_run_id = state.summary.origin_run_id or payload.origin_run_id


def _on_run_approved(_state: RunState, _event: FoldableEvent) -> None:
    """Change only the status, which the transition table does."""


def _on_run_started(state: RunState, event: FoldableEvent) -> None:
    payload = read_payload(payloads.RunStarted, event)
    summary = state.summary
    is_valid = payload.started_at is not None and is_utc(payload.started_at)
    summary.started_at = payload.started_at if is_valid else event.emitted_at
    summary.engine_run_ref = payload.engine_run_ref
    summary.waits_on_failure = payload.on_failure == "wait"
    if payload.engine_run is not None:
        summary.provider = payload.engine_run.provider
        summary.workflow_id = payload.engine_run.workflow_id
        summary.provider_run_id = payload.engine_run.run_id


def _on_run_paused(state: RunState, event: FoldableEvent) -> None:
    state.summary.pauses += 1
    state.summary.drain_timed_out = False
    state.summary.reason = truncated(read_payload(payloads.RunSteered, event).reason)


def _on_run_resumed(state: RunState, _event: FoldableEvent) -> None:
    state.summary.drain_timed_out = False
    state.summary.reason = None


def _on_run_ended(state: RunState, event: FoldableEvent) -> None:
    payload = read_payload(payloads.RunEnded, event)
    summary = state.summary
    summary.completed_at = event.emitted_at
    summary.reason = truncated(payload.reason)
    if summary.retrying_steps:  # an ended run retries nothing
        summary.retrying_steps = 0
        for step in state.steps.values():
            step.retry = False
    if state.detailed:
        state.artifacts = tuple(payload.artifact_refs or ())
    if summary.status is RunStatus.FAILED:
        summary.root_cause = _root_cause(payload) or summary.last_failure


def _root_cause(payload: payloads.RunEnded) -> payloads.RootCause | None:
    if payload.root_cause is not None:
        cause = payload.root_cause
        return payloads.RootCause(truncated(cause.step_id), truncated(cause.code), truncated(cause.message))
    if payload.error is not None:
        return payloads.RootCause(None, truncated(payload.error.code), truncated(payload.error.message))
    return None


# Events outside of the two state machines


def _on_signal_accepted(state: RunState, event: FoldableEvent) -> None:
    if event.step_id is not None and event.logical_attempt_id == 1:  # a signal is accepted once
        state.signals[event.step_id] = None


def _on_retry_scheduled(state: RunState, event: FoldableEvent) -> None:
    if state.summary.status in ENDED:
        return  # an ended run retries nothing
    step = state.steps.get(event.step_id or "")
    if step is None or step.retry or (step.attempt, step.status) != (event.logical_attempt_id, StepStatus.FAILED):
        return
    step.retry = True
    state.summary.retrying_steps += 1


def _on_approval_requested(state: RunState, event: FoldableEvent) -> None:
    request = approval_key(event)
    if request not in state.approvals:
        state.approvals[request] = True
        state.summary.waiting_approvals += 1


def _on_approval_decided(state: RunState, event: FoldableEvent) -> None:
    request = approval_key(event)
    if state.approvals.get(request):
        state.summary.waiting_approvals -= 1
    state.approvals[request] = False


def approval_key(event: FoldableEvent) -> str:
    """Return the key of an approval request in `RunState.approvals`."""
    return f"{event.step_id}|{event.logical_attempt_id}"


def _on_drain_timed_out(state: RunState, event: FoldableEvent) -> None:
    key = f"{event.event_type}|{event.logical_attempt_id}"
    if state.summary.status is RunStatus.PAUSED and key not in state.applied:
        state.applied[key] = None
        state.summary.drain_timed_out = True


HANDLERS: dict[str, Callable[[RunState, FoldableEvent], None]] = {
    "RunQueued": _on_run_queued,
    "RunApproved": _on_run_approved,
    "RunStarted": _on_run_started,
    "RunPaused": _on_run_paused,
    "RunResumed": _on_run_resumed,
    "RunCompleted": _on_run_ended,
    "RunFailed": _on_run_ended,
    "RunCancelled": _on_run_ended,
    "SignalAccepted": _on_signal_accepted,
    "StepRetryScheduled": _on_retry_scheduled,
    "ApprovalRequested": _on_approval_requested,
    "ApprovalGranted": _on_approval_decided,
    "ApprovalDenied": _on_approval_decided,
    "RunDrainTimedOut": _on_drain_timed_out,
}
