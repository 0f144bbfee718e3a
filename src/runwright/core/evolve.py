"""`evolve`: the only code in the project that turns events into state.

The projector, the list page, the detail page, recovery, time travel, verification and the checks at
append time all come here. An event that may not happen changes nothing (policy A): the run is marked
INCONSISTENT, and the caller is told, so that it can raise one alert per event.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import msgspec

from runwright.contract import payloads
from runwright.contract.events import FoldableEvent
from runwright.contract.paths import signal_path
from runwright.contract.refs import ArtifactRef
from runwright.contract.timestamps import is_utc
from runwright.contract.transitions import RUN_TRANSITIONS, STEP_TRANSITIONS, RunStatus, StepStatus
from runwright.contract.upcasts import upcast

from .state import RunState, StepCell, StepDetail

_LONGEST_TEXT = 1000  # what the summary keeps of a message: it must stay small


class InvalidTransition(msgspec.Struct, frozen=True, rename="camel"):
    """Why an event may not happen now."""

    attempted_event_type: str
    expected_state: str
    actual_state: str
    detail: str


class _StepEnd(payloads.Payload, frozen=True):
    """What a fold wants of a step's end; the result itself is passed over unread."""

    artifact_refs: list[ArtifactRef] | None = None
    reason_code: str | None = None


P = TypeVar("P", bound=msgspec.Struct)


def _read(kind: type[P], event: FoldableEvent) -> P:
    """The fields a fold needs. A payload from elsewhere that does not fit counts as an empty one."""
    raw = event.raw_payload
    data = b"" if raw is None else bytes(raw)
    if not data:
        return kind()
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return kind()


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
    if event_type in STEP_TRANSITIONS:
        return _step_event(state, event)
    if event_type in RUN_TRANSITIONS:
        return _run_event(state, event)
    beside = _BESIDE.get(event_type)
    if beside is not None:
        beside(state, event)
    return None


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
    state.applied.add(mark)
    if leads_to is not None:
        summary.status = leads_to
    _RUN_EFFECTS[event.event_type](state, event)
    return None


def _queued(state: RunState, event: FoldableEvent) -> None:
    payload = _read(payloads.RunQueued, event)
    state.summary.approval_required = bool(payload.approval_required)
    state.summary.origin_run_id = payload.origin_run_id


def _no_effect(_state: RunState, _event: FoldableEvent) -> None: ...


def _started(state: RunState, event: FoldableEvent) -> None:
    payload = _read_run_started(event)
    summary = state.summary
    known = payload.started_at is not None and is_utc(payload.started_at)
    summary.started_at = payload.started_at if known else event.emitted_at
    summary.engine_run_ref = payload.engine_run_ref
    if payload.engine_run is not None:
        summary.provider = payload.engine_run.provider
        summary.workflow_id = payload.engine_run.workflow_id
        summary.provider_run_id = payload.engine_run.run_id


def _read_run_started(event: FoldableEvent) -> payloads.RunStarted:
    payload = _read(payloads.RunStarted, event)
    if payload.engine_run is not None or payload.engine_run_ref is None:
        return payload
    older = {"engineRunRef": payload.engine_run_ref}
    newest = msgspec.convert(upcast("RunStarted", event.schema_version or 1, older), payloads.RunStarted)
    return msgspec.structs.replace(payload, engine_run=newest.engine_run)


def _paused(state: RunState, event: FoldableEvent) -> None:
    state.summary.pauses += 1
    state.summary.drain_timed_out = False
    state.summary.reason = _short(_read(payloads.RunSteered, event).reason)


def _resumed(state: RunState, _event: FoldableEvent) -> None:
    state.summary.drain_timed_out = False
    state.summary.reason = None


def _ended(state: RunState, event: FoldableEvent) -> None:
    payload = _read(payloads.RunEnded, event)
    summary = state.summary
    summary.completed_at = event.emitted_at
    summary.reason = _short(payload.reason)
    if state.details is not None:
        state.artifacts = tuple(payload.artifact_refs or ())
    if summary.status is not RunStatus.FAILED:
        return
    if payload.root_cause is not None:
        cause = payload.root_cause
        summary.root_cause = payloads.RootCause(_short(cause.step_id), _short(cause.code), _short(cause.message))
    elif payload.error is not None:
        summary.root_cause = payloads.RootCause(None, _short(payload.error.code), _short(payload.error.message))
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


# Step-level events


def _step_event(state: RunState, event: FoldableEvent) -> InvalidTransition | None:
    if event.step_id is None:  # a foreign record; our own stores never hold one
        return InvalidTransition(event.event_type, "stepId", "none", f"{event.event_type} without a stepId.")
    summary = state.summary
    attempt = event.logical_attempt_id
    before, after, legal_in = STEP_TRANSITIONS[event.event_type]
    cell = state.steps.get(event.step_id)
    actual = StepStatus.PENDING if cell is None else cell.status_of(attempt)
    if actual is after or (after is StepStatus.RUNNING and actual in (StepStatus.SUCCESS, StepStatus.FAILED)):
        return None  # this very event took effect before
    if summary.status not in legal_in:
        expected = " or ".join(sorted(legal_in))
        return _illegal_step(
            event, expected, summary.status, f"needs a run that is {expected}; this run is {summary.status}"
        )
    if actual is not before:
        return _illegal_step(event, before, actual, f"needs that attempt to be {before}; it is {actual}")
    if before is StepStatus.PENDING and attempt > 1:
        earlier = StepStatus.PENDING if cell is None else cell.status_of(attempt - 1)
        if earlier is not StepStatus.FAILED and not _is_forced(state, event, earlier):
            return _illegal_step(event, "FAILED", earlier, f"needs attempt {attempt - 1} to be FAILED; it is {earlier}")
    _move_step(state, event, event.step_id, cell, after)
    return None


def _illegal_step(event: FoldableEvent, expected: str, actual: str, why: str) -> InvalidTransition:
    detail = f"{event.event_type} of step {event.step_id!r} attempt {event.logical_attempt_id} {why}."
    return InvalidTransition(event.event_type, str(expected), str(actual), detail)


def _is_forced(state: RunState, event: FoldableEvent, earlier: StepStatus) -> bool:
    """RETRY_STEP with force may follow any end, if the accepted signal that asked for it is in the log."""
    if event.event_type != "StepStarted" or earlier not in (StepStatus.SUCCESS, StepStatus.SKIPPED):
        return False
    forced_by = _read(payloads.StepStarted, event).forced_by
    return forced_by is not None and signal_path(forced_by) in state.signals


def _move_step(state: RunState, event: FoldableEvent, step_id: str, cell: StepCell | None, after: StepStatus) -> None:
    summary = state.summary
    if cell is None:
        cell = state.steps[step_id] = StepCell(event.logical_attempt_id, StepStatus.PENDING)
        summary.total_steps += 1
    else:
        _count(state, cell.status, -1)
        if event.logical_attempt_id != cell.attempt:
            cell.past[cell.attempt] = cell.status
            cell.attempt = event.logical_attempt_id
    if cell.retry:
        cell.retry = False
        summary.retrying_steps -= 1
    cell.status = after
    _count(state, after, +1)
    if after is StepStatus.FAILED:
        _note_failure(state, event, step_id)
    if state.details is not None:
        _note_detail(state.details, event, step_id, after)


def _count(state: RunState, status: StepStatus, change: int) -> None:
    summary = state.summary
    if status is StepStatus.RUNNING:
        summary.running_steps += change
    elif status is StepStatus.SUCCESS:
        summary.completed_steps += change
    elif status is StepStatus.FAILED:
        summary.failed_steps += change
    elif status is StepStatus.SKIPPED:
        summary.skipped_steps += change


def _note_failure(state: RunState, event: FoldableEvent, step_id: str) -> None:
    error = _read(payloads.StepFailed, event).error
    code, message = (None, None) if error is None else (error.code, error.message)
    state.summary.last_failure = payloads.RootCause(_short(step_id), _short(code), _short(message))


def _note_detail(details: dict[str, StepDetail], event: FoldableEvent, step_id: str, after: StepStatus) -> None:
    if after is StepStatus.RUNNING or step_id not in details:
        details[step_id] = StepDetail(event.engine_attempt_id)
    detail = details[step_id]
    detail.engine_attempt_id = event.engine_attempt_id
    if after is StepStatus.RUNNING:
        detail.started_at = event.emitted_at
        return
    end = _read(_StepEnd, event)
    detail.completed_at = event.emitted_at
    detail.artifacts = tuple(end.artifact_refs or ())
    detail.reason_code = end.reason_code if after is StepStatus.SKIPPED else None
    detail.error = _read(payloads.StepFailed, event).error if after is StepStatus.FAILED else None


# Events beside the two machines


def _signal_accepted(state: RunState, event: FoldableEvent) -> None:
    if event.step_id is not None:
        state.signals.add(event.step_id)


def _retry_scheduled(state: RunState, event: FoldableEvent) -> None:
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
        state.applied.add(mark)
        state.summary.drain_timed_out = True


_BESIDE: dict[str, Callable[[RunState, FoldableEvent], None]] = {
    "SignalAccepted": _signal_accepted,
    "StepRetryScheduled": _retry_scheduled,
    "ApprovalRequested": _approval_requested,
    "ApprovalGranted": _approval_answered,
    "ApprovalDenied": _approval_answered,
    "RunDrainTimedOut": _drain_timed_out,
}


def _short(text: str | None) -> str | None:
    return text if text is None or len(text) <= _LONGEST_TEXT else text[: _LONGEST_TEXT - 1] + "…"
