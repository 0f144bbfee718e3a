"""The step state machine: one status per step and attempt, and the transitions of the four step events."""

from __future__ import annotations

from collections.abc import Callable

from runwright.contract import payloads
from runwright.contract.events import FoldableEvent
from runwright.contract.paths import signal_path
from runwright.contract.refs import ArtifactRef
from runwright.contract.snapshot import RunSummary
from runwright.contract.transitions import STEP_TRANSITIONS, InvalidTransition, StepStatus

from .payload_reader import may_contain_field, read_payload, truncated
from .state import RunState, StepState

PENDING, RUNNING, SUCCESS, FAILED, SKIPPED = StepStatus  # globals are faster than enum attributes


class _StepEnd(payloads.Payload, frozen=True):
    """The fields that the fold needs of a step's end event; the result is not decoded."""

    artifact_refs: list[ArtifactRef] | None = None
    reason_code: str | None = None


def _on_step_event(state: RunState, event: FoldableEvent) -> InvalidTransition | None:
    """Apply a step event if it is legal; otherwise return why not, and change nothing."""
    if event.step_id is None:  # only possible in foreign records; stores refuse such an event
        return InvalidTransition(event.event_type, "stepId", "none", f"{event.event_type} requires a stepId.")
    summary = state.summary
    attempt = event.logical_attempt_id
    before, after, legal_in = STEP_TRANSITIONS[event.event_type]
    step = state.steps.get(event.step_id)
    actual = PENDING if step is None else step.status_of(attempt)
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
        earlier = PENDING if step is None else step.status_of(attempt - 1)
        if earlier is not FAILED and not _is_forced(state, event, earlier):
            return _illegal_step(
                event, FAILED, earlier, f"requires attempt {attempt - 1} to be FAILED; it is {earlier}"
            )
    _apply_transition(state, event, event.step_id, step, after)
    return None


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


HANDLERS: dict[str, Callable[[RunState, FoldableEvent], InvalidTransition | None]] = {
    "StepStarted": _on_step_event,
    "StepCompleted": _on_step_event,
    "StepFailed": _on_step_event,
    "StepSkipped": _on_step_event,
}
