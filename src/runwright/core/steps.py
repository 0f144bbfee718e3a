"""The step machine: one state per step and attempt, and what an event of a step does to it."""

from __future__ import annotations

from runwright.contract import payloads
from runwright.contract.events import FoldableEvent
from runwright.contract.paths import signal_path
from runwright.contract.refs import ArtifactRef
from runwright.contract.snapshot import RunSummary
from runwright.contract.transitions import InvalidTransition, StepRule, StepStatus

from .reading import may_name, read_payload, shortened
from .state import RunState, StepCell

PENDING, RUNNING, SUCCESS, FAILED, SKIPPED = StepStatus  # reached through the enum, each costs a look-up an event


class _StepEnd(payloads.Payload, frozen=True):
    """What a fold wants of a step's end; the result itself is passed over unread."""

    artifact_refs: list[ArtifactRef] | None = None
    reason_code: str | None = None


def step_event(state: RunState, event: FoldableEvent, rule: StepRule) -> InvalidTransition | None:
    if event.step_id is None:  # a foreign record; our own stores never hold one
        return InvalidTransition(event.event_type, "stepId", "none", f"{event.event_type} without a stepId.")
    summary = state.summary
    attempt = event.logical_attempt_id
    before, after, legal_in = rule
    cell = state.steps.get(event.step_id)
    actual = PENDING if cell is None else cell.status_of(attempt)
    if actual is after or (after is RUNNING and actual in (SUCCESS, FAILED)):
        return None  # this very event took effect before
    if summary.status not in legal_in:
        expected = " or ".join(sorted(legal_in))
        return _illegal_step(
            event, expected, summary.status, f"needs a run that is {expected}; this run is {summary.status}"
        )
    if actual is not before:
        return _illegal_step(event, before, actual, f"needs that attempt to be {before}; it is {actual}")
    if before is PENDING and attempt > 1:
        earlier = PENDING if cell is None else cell.status_of(attempt - 1)
        if earlier is not FAILED and not _is_forced(state, event, earlier):
            return _illegal_step(event, FAILED, earlier, f"needs attempt {attempt - 1} to be FAILED; it is {earlier}")
    _move_step(state, event, event.step_id, cell, after)
    return None


def _illegal_step(event: FoldableEvent, expected: str, actual: str, why: str) -> InvalidTransition:
    detail = f"{event.event_type} of step {event.step_id!r} attempt {event.logical_attempt_id} {why}."
    return InvalidTransition(event.event_type, str(expected), str(actual), detail)


def _is_forced(state: RunState, event: FoldableEvent, earlier: StepStatus) -> bool:
    """RETRY_STEP with force may follow any end, if the accepted signal that asked for it is in the log."""
    if event.event_type != "StepStarted" or earlier not in (SUCCESS, SKIPPED):
        return False
    forced_by = read_payload(payloads.StepStarted, event).forced_by
    return forced_by is not None and signal_path(forced_by) in state.signals


def _move_step(state: RunState, event: FoldableEvent, step_id: str, cell: StepCell | None, after: StepStatus) -> None:
    summary = state.summary
    if cell is None:
        cell = state.steps[step_id] = StepCell(event.logical_attempt_id, after)
        summary.total_steps += 1
    else:
        _count(summary, cell.status, -1)
        if cell.retry:
            cell.retry = False
            summary.retrying_steps -= 1
        if event.logical_attempt_id != cell.attempt:
            cell.next_attempt(event.logical_attempt_id)
        cell.status = after
    _count(summary, after, +1)
    cell.engine_attempt_id = event.engine_attempt_id
    if after is RUNNING:
        cell.started_at = event.emitted_at
        return
    cell.completed_at = event.emitted_at
    if after is FAILED:
        _note_failure(state, event, step_id, cell)
    if state.detailed and (may_name(event, b"artifactRefs") or may_name(event, b"reasonCode")):
        end = read_payload(_StepEnd, event)
        cell.artifacts = tuple(end.artifact_refs or ())
        cell.reason_code = end.reason_code if after is SKIPPED else None


def _count(summary: RunSummary, status: StepStatus, change: int) -> None:
    if status is RUNNING:
        summary.running_steps += change
    elif status is SUCCESS:
        summary.completed_steps += change
    elif status is FAILED:
        summary.failed_steps += change
    elif status is SKIPPED:
        summary.skipped_steps += change


def _note_failure(state: RunState, event: FoldableEvent, step_id: str, cell: StepCell) -> None:
    error = read_payload(payloads.StepFailed, event).error
    code, message = (None, None) if error is None else (error.code, error.message)
    state.summary.last_failure = payloads.RootCause(shortened(step_id), shortened(code), shortened(message))
    if state.detailed:
        cell.error = error
