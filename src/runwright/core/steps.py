"""The step machine: one state per step and attempt, and what an event of a step does to it."""

from __future__ import annotations

from runwright.contract import payloads
from runwright.contract.events import FoldableEvent
from runwright.contract.paths import signal_path
from runwright.contract.refs import ArtifactRef
from runwright.contract.transitions import STEP_TRANSITIONS, InvalidTransition, StepStatus

from .reading import read_payload, shortened
from .state import RunState, StepCell, StepDetail


class _StepEnd(payloads.Payload, frozen=True):
    """What a fold wants of a step's end; the result itself is passed over unread."""

    artifact_refs: list[ArtifactRef] | None = None
    reason_code: str | None = None


def step_event(state: RunState, event: FoldableEvent) -> InvalidTransition | None:
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
    forced_by = read_payload(payloads.StepStarted, event).forced_by
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
    error = read_payload(payloads.StepFailed, event).error
    code, message = (None, None) if error is None else (error.code, error.message)
    state.summary.last_failure = payloads.RootCause(shortened(step_id), shortened(code), shortened(message))


def _note_detail(details: dict[str, StepDetail], event: FoldableEvent, step_id: str, after: StepStatus) -> None:
    if after is StepStatus.RUNNING or step_id not in details:
        details[step_id] = StepDetail(event.engine_attempt_id)
    detail = details[step_id]
    detail.engine_attempt_id = event.engine_attempt_id
    if after is StepStatus.RUNNING:
        detail.started_at = event.emitted_at
        return
    end = read_payload(_StepEnd, event)
    detail.completed_at = event.emitted_at
    detail.artifacts = tuple(end.artifact_refs or ())
    detail.reason_code = end.reason_code if after is StepStatus.SKIPPED else None
    detail.error = read_payload(payloads.StepFailed, event).error if after is StepStatus.FAILED else None
