"""Apply one event to the state of a run: `evolve` and `transition`, the entry points of the fold.

The projector, run lists, run details, recovery, time travel, verification and the checks of the append authority all
use them. An illegal event changes nothing (policy A) except that `evolve` marks the run INCONSISTENT; the reason is
returned, so that the caller can raise one alert per event.
"""

from __future__ import annotations

from collections.abc import Callable

from runwright.contract import payloads
from runwright.contract.events import FoldableEvent
from runwright.contract.paths import signal_path
from runwright.contract.refs import ArtifactRef, EngineRun, format_engine_run_ref
from runwright.contract.snapshot import RunSummary
from runwright.contract.timestamps import is_utc
from runwright.contract.transitions import (
    ENDED,
    RUN_TRANSITIONS,
    STEP_TRANSITIONS,
    InvalidTransition,
    RunStatus,
    StepStatus,
)

from .counters import HANDLERS as COUNTER_HANDLERS
from .payload_reader import may_contain_field, read_payload, truncated
from .run_state import RunState, StepState

PENDING, RUNNING, SUCCESS, FAILED, SKIPPED = StepStatus  # globals are faster than enum attributes


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
    if event_type in STEP_TRANSITIONS:
        invalid = _apply_step_event(state, event)
    elif event_type in RUN_TRANSITIONS:
        invalid = _apply_run_event(state, event)
    else:
        invalid = None
        if event_type in HANDLERS:
            HANDLERS[event_type](state, event)
        if event_type in COUNTER_HANDLERS:
            COUNTER_HANDLERS[event_type](state, event)
    if invalid is None:
        if event.engine_attempt_id > state.summary.engine_attempt_id:
            state.summary.engine_attempt_id = event.engine_attempt_id
        if state.execution is not None:
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
    ref = payload.engine_run_ref
    summary.engine_run_ref = format_engine_run_ref(ref) if isinstance(ref, EngineRun) else ref
    summary.waits_on_failure = payload.on_failure == "wait"
    engine_run = payload.parsed_engine_run
    if engine_run is not None:
        summary.provider = engine_run.provider
        summary.provider_scope = engine_run.scope
        summary.workflow_id = engine_run.workflow_id
        summary.provider_run_id = engine_run.run_id


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


# Events of the step state machine


class _StepEnd(payloads.Payload, frozen=True):
    """The fields that the fold needs of a step's end event; the result is not decoded."""

    artifact_refs: list[ArtifactRef] | None = None
    reason_code: str | None = None


def _apply_step_event(state: RunState, event: FoldableEvent) -> InvalidTransition | None:
    """Apply a step event if it is legal; otherwise return why not, and change nothing."""
    if event.step_id is None:  # only possible in foreign records; stores refuse such an event
        return InvalidTransition(event.event_type, "stepId", "none", f"{event.event_type} requires a stepId.")
    summary = state.summary
    attempt = event.logical_attempt_id
    before, after, legal_in = STEP_TRANSITIONS[event.event_type]
    step = state.steps.get(event.step_id)
    actual = _status_of(step, attempt)
    if actual is after or (after is RUNNING and actual in (SUCCESS, FAILED)):
        return None  # this same event was applied before
    if summary.status not in legal_in:
        expected = " or ".join(sorted(legal_in))
        return _illegal_step(
            event, expected, summary.status, f"requires run status {expected}; the run is {summary.status}"
        )
    if actual is not before:
        return _illegal_step(event, before, actual, f"requires the attempt to be {before}; it is {actual}")
    if before is PENDING and attempt > 1:
        earlier = _status_of(step, attempt - 1)
        if earlier is not FAILED and not _is_forced(state, event, earlier):
            return _illegal_step(
                event, FAILED, earlier, f"requires attempt {attempt - 1} to be FAILED; it is {earlier}"
            )
    _apply_transition(state, event, event.step_id, step, after)
    return None


def _status_of(step: StepState | None, attempt: int) -> StepStatus:
    if step is None:
        return PENDING
    if attempt == step.attempt:
        return step.status
    return PENDING if step.past is None else step.past.get(attempt, PENDING)


def _illegal_step(event: FoldableEvent, expected: str, actual: str, problem: str) -> InvalidTransition:
    detail = f"{event.event_type} of step {event.step_id!r} attempt {event.logical_attempt_id} {problem}."
    return InvalidTransition(event.event_type, str(expected), str(actual), detail)


def _is_forced(state: RunState, event: FoldableEvent, earlier: StepStatus) -> bool:
    """Return whether a RETRY_STEP signal with force, accepted earlier in the log, allows another attempt.

    Such an attempt may follow any end of the attempt before it, not only a failure.
    """
    if event.event_type != "StepStarted" or earlier not in (SUCCESS, SKIPPED):
        return False
    forced_by = read_payload(payloads.StepStarted, event).forced_by
    return forced_by is not None and signal_path(forced_by) in state.signals


def _apply_transition(
    state: RunState, event: FoldableEvent, step_id: str, step: StepState | None, after: StepStatus
) -> None:
    summary = state.summary
    if step is None:
        step = state.steps[step_id] = StepState(event.logical_attempt_id, after)
        summary.total_steps += 1
    else:
        _count(summary, step.status, -1)
        if step.retry:
            step.retry = False
            summary.retrying_steps -= 1
        if event.logical_attempt_id != step.attempt:
            step.next_attempt(event.logical_attempt_id)
        step.status = after
    _count(summary, after, +1)
    step.engine_attempt_id = event.engine_attempt_id
    if after is RUNNING:
        step.started_at = event.emitted_at
        return
    step.completed_at = event.emitted_at
    if after is FAILED:
        _record_failure(state, event, step_id, step)
    if state.detailed and (may_contain_field(event, b"artifactRefs") or may_contain_field(event, b"reasonCode")):
        end = read_payload(_StepEnd, event)
        step.artifacts = tuple(end.artifact_refs or ())
        step.reason_code = end.reason_code if after is SKIPPED else None


def _count(summary: RunSummary, status: StepStatus, change: int) -> None:
    if status is RUNNING:
        summary.running_steps += change
    elif status is SUCCESS:
        summary.completed_steps += change
    elif status is FAILED:
        summary.failed_steps += change
    elif status is SKIPPED:
        summary.skipped_steps += change


def _record_failure(state: RunState, event: FoldableEvent, step_id: str, step: StepState) -> None:
    error = read_payload(payloads.StepFailed, event).error
    code, message = (None, None) if error is None else (error.code, error.message)
    state.summary.last_failure = payloads.RootCause(truncated(step_id), truncated(code), truncated(message))
    if state.detailed:
        step.error = error


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
