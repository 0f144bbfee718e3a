"""State of a run that only its driver needs: parameters, due times, results, pending signals.

A run that is only displayed is folded without it; `RunState.execution` is then None.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from runwright.contract import payloads
from runwright.contract.events import FoldableEvent
from runwright.contract.paths import parse_path

from .loop_state import HANDLERS as LOOP_HANDLERS
from .loop_state import LoopState
from .payload_reader import NOTHING, StoredResult, micros_or_zero, read_payload, result_of
from .playbook_state import HANDLERS as PLAYBOOK_HANDLERS
from .playbook_state import PlaybookState, store_newest_result


class PendingInput(msgspec.Struct, frozen=True):
    """The input that a step waits for: a person's approval, or an external event."""

    attempt: int
    approval: payloads.Approval | None = None
    event: str | None = None
    key: str | None = None


class ChildRun(msgspec.Struct, frozen=True):
    """The run of an attempt of a step, as the log of its parent names it. It may not exist yet."""

    attempt: int
    run_id: str
    plan_sha256: str


class ExecutionState(msgspec.Struct):
    """State for the driver of a run.

    Dicts are keyed by entity path unless noted; times are microseconds since 1970. Dicts with None values are ordered
    sets.
    """

    mentioned_steps: frozenset[str] | None = frozenset()  # steps whose results an expression mentions; None: all steps
    params: dict[str, Any] = {}
    started_at: int | None = None
    paused_at: int | None = None
    engine_attempt: int = 0
    plan_sha: str | None = None
    pending_signals: dict[str, payloads.SignalDecided] = {}  # accepted, not processed yet, in the order of the log
    retry_at: dict[str, int] = {}
    retry_signal_ids: dict[str, str] = {}  # id of the signal that requested the retry
    due_at: dict[str, int] = {}
    until_times: dict[str, None] = {}  # waits whose due time the plan names
    fails_when_due: dict[str, None] = {}  # waits that fail when due, because their timeout comes first
    pending_inputs: dict[str, PendingInput] = {}  # steps that wait for an approval or an external event
    unclaimed_attempts: dict[str, int] = {}  # attempts that workers may claim and none has claimed
    granted_approvals: dict[str, None] = {}  # steps that may start because their approval was granted
    results: dict[str, StoredResult] = {}  # by step id
    loops: dict[str, LoopState] = {}
    checkpoints: dict[str, bytes] = {}
    checkpoint_counts: dict[str, int] = {}
    child_runs: dict[str, list[ChildRun]] = {}  # in the order of the log
    overrides: dict[str, dict[str, Any]] = {}
    override_counts: dict[str, int] = {}
    params_update_count: int = 0
    playbook: PlaybookState | None = None  # None unless the plan is a playbook
    is_child: bool = False  # a task of another run
    parent_iter: dict[str, Any] | None = None  # the iteration that this run is a task of

    def fold(self, event: FoldableEvent) -> None:
        """Fold an event that was legal."""
        if event.engine_attempt_id > self.engine_attempt:
            self.engine_attempt = event.engine_attempt_id
        event_type = event.event_type
        if event_type in HANDLERS:
            HANDLERS[event_type](self, event)
        if event_type in LOOP_HANDLERS:
            LOOP_HANDLERS[event_type](self, event)
        if (self.playbook is not None or event_type == "WorkflowStarted") and event_type in PLAYBOOK_HANDLERS:
            PLAYBOOK_HANDLERS[event_type](self, event)

    def has_pending_signal(self, *kinds: str) -> bool:
        """Return whether a signal of one of these types was accepted and is not processed yet."""
        return any(signal.signal_type in kinds for signal in self.pending_signals.values())

    def child_run(self, path: str, attempt: int) -> ChildRun | None:
        """Return the run of an attempt of a step: the newest that the log names."""
        named = (child for child in reversed(self.child_runs.get(path, ())) if child.attempt == attempt)
        return next(named, None)

    def stores_result_of(self, step_id: str) -> bool:
        return self.mentioned_steps is None or step_id in self.mentioned_steps


def _on_run_queued(execution: ExecutionState, event: FoldableEvent) -> None:
    payload = read_payload(payloads.RunQueued, event)
    execution.params = payload.params or execution.params
    execution.is_child = payload.parent_run_id is not None or execution.is_child
    execution.parent_iter = payload.parent_iter or execution.parent_iter


def _on_run_started(execution: ExecutionState, event: FoldableEvent) -> None:
    payload = read_payload(payloads.RunStarted, event)
    execution.started_at = micros_or_zero(payload.started_at or event.emitted_at)
    execution.plan_sha = None if payload.plan_ref is None else payload.plan_ref.sha256


def _on_run_paused(execution: ExecutionState, event: FoldableEvent) -> None:
    execution.paused_at = micros_or_zero(event.emitted_at)


def _on_run_resumed(execution: ExecutionState, _event: FoldableEvent) -> None:
    execution.paused_at = None


def _on_step_scheduled(execution: ExecutionState, event: FoldableEvent) -> None:
    execution.unclaimed_attempts[event.step_id or ""] = event.logical_attempt_id
    execution.retry_at.pop(event.step_id or "", None)


def _on_step_started(execution: ExecutionState, event: FoldableEvent) -> None:
    execution.unclaimed_attempts.pop(event.step_id or "", None)
    execution.retry_at.pop(event.step_id or "", None)
    execution.retry_signal_ids.pop(event.step_id or "", None)


def _on_step_delayed(execution: ExecutionState, event: FoldableEvent) -> None:
    path, payload = event.step_id or "", read_payload(payloads.StepDelayed, event)
    if payload.event is not None:
        execution.pending_inputs[path] = PendingInput(event.logical_attempt_id, event=payload.event, key=payload.key)
    if payload.scheduled_at is not None:
        execution.due_at[path] = micros_or_zero(payload.scheduled_at)
    if payload.reason == "until":
        execution.until_times[path] = None
    else:
        execution.until_times.pop(path, None)
    if payload.reason == "timeout" or payload.event is not None:
        execution.fails_when_due[path] = None
    else:
        execution.fails_when_due.pop(path, None)


def _on_step_ended(execution: ExecutionState, event: FoldableEvent) -> None:
    step_id = event.step_id or ""
    execution.due_at.pop(step_id, None)
    execution.pending_inputs.pop(step_id, None)
    execution.retry_at.pop(step_id, None)
    execution.unclaimed_attempts.pop(step_id, None)
    if step_id in execution.loops:  # its iterations are not retried in this attempt any more
        for times in (execution.retry_at, execution.due_at):
            for path in [path for path in times if path.startswith((f"{step_id}[", f"{step_id}~"))]:
                del times[path]
    is_failed = event.event_type == "StepFailed"
    if not is_failed:
        execution.checkpoints.pop(step_id, None)
        execution.loops.pop(step_id, None)
    if execution.playbook is not None:
        store_newest_result(execution, execution.playbook, event, is_failed=is_failed)
    elif not is_failed and execution.stores_result_of(step_id):
        execution.results[step_id] = result_of(event)


def _on_retry_scheduled(execution: ExecutionState, event: FoldableEvent) -> None:
    path = event.step_id or ""
    payload = read_payload(payloads.StepRetryScheduled, event)
    execution.retry_at[path] = micros_or_zero(payload.next_attempt_at)
    if payload.signal_id is not None:
        execution.retry_signal_ids[path] = payload.signal_id


def _on_child_run_initiated(execution: ExecutionState, event: FoldableEvent) -> None:
    payload = read_payload(payloads.ChildRunInitiated, event)
    child = ChildRun(payload.attempt or 0, payload.child_run_id or "", payload.plan_sha256 or "")
    execution.child_runs.setdefault(event.step_id or "", []).append(child)


class _Checkpoint(payloads.Payload, frozen=True):
    state: msgspec.Raw = NOTHING


def _on_checkpoint_written(execution: ExecutionState, event: FoldableEvent) -> None:
    text = event.step_id or ""
    path = parse_path(text)
    state = read_payload(_Checkpoint, event).state
    owner = text if path is None or path.task is not None else checkpoint_owner(path.step, path.indexes)
    execution.checkpoints[owner] = bytes(state) or b"null"
    execution.checkpoint_counts[text] = max(event.logical_attempt_id, execution.checkpoint_counts.get(text, 0))


def checkpoint_owner(step_id: str, indexes: tuple[int, ...]) -> str:
    """Return the path that checkpoints are stored under: a step or iteration, without the attempt that wrote them."""
    return step_id + "".join(f"[{index}]" for index in indexes)


def _on_step_overridden(execution: ExecutionState, event: FoldableEvent) -> None:
    step_id = event.step_id or ""
    execution.overrides[step_id] = {
        **execution.overrides.get(step_id, {}),
        **(read_payload(payloads.StepChanged, event).override or {}),
    }
    execution.override_counts[step_id] = event.logical_attempt_id


def _on_params_updated(execution: ExecutionState, event: FoldableEvent) -> None:
    execution.params = read_payload(payloads.RunParamsUpdated, event).params or execution.params
    execution.params_update_count += 1


def _on_approval_requested(execution: ExecutionState, event: FoldableEvent) -> None:
    path, payload = event.step_id or "", read_payload(payloads.Approval, event)
    execution.pending_inputs[path] = PendingInput(event.logical_attempt_id, payload)
    if payload.expires_at is not None:
        execution.due_at[path] = micros_or_zero(payload.expires_at)
        execution.fails_when_due[path] = None


def _on_approval_granted(execution: ExecutionState, event: FoldableEvent) -> None:
    _on_approval_denied(execution, event)
    execution.granted_approvals[event.step_id or ""] = None


def _on_approval_denied(execution: ExecutionState, event: FoldableEvent) -> None:
    execution.pending_inputs.pop(event.step_id or "", None)
    execution.due_at.pop(event.step_id or "", None)


def _on_signal_accepted(execution: ExecutionState, event: FoldableEvent) -> None:
    if event.logical_attempt_id == 1:
        execution.pending_signals[event.step_id or ""] = read_payload(payloads.SignalDecided, event)


def _on_signal_processed(execution: ExecutionState, event: FoldableEvent) -> None:
    signal = execution.pending_signals.pop(event.step_id or "", None)
    if signal is None or signal.signal_type != "RETRY_STEP":
        return
    step_id = str((signal.payload or {}).get("stepId"))
    if step_id not in execution.retry_at:
        return
    if read_payload(payloads.SignalProcessed, event).engine_result != "RETRYING":
        return
    # The retry policy may have scheduled the retry for later; the signal makes it due now.
    execution.retry_at[step_id] = min(execution.retry_at[step_id], micros_or_zero(event.emitted_at))
    if signal.signal_id is not None:
        execution.retry_signal_ids[step_id] = signal.signal_id


HANDLERS: dict[str, Callable[[ExecutionState, FoldableEvent], None]] = {
    "RunQueued": _on_run_queued,
    "RunStarted": _on_run_started,
    "RunPaused": _on_run_paused,
    "RunResumed": _on_run_resumed,
    "StepScheduled": _on_step_scheduled,
    "StepStarted": _on_step_started,
    "StepDelayed": _on_step_delayed,
    "StepCompleted": _on_step_ended,
    "StepFailed": _on_step_ended,
    "StepSkipped": _on_step_ended,
    "StepRetryScheduled": _on_retry_scheduled,
    "ChildRunInitiated": _on_child_run_initiated,
    "CheckpointWritten": _on_checkpoint_written,
    "StepOverridden": _on_step_overridden,
    "RunParamsUpdated": _on_params_updated,
    "ApprovalRequested": _on_approval_requested,
    "ApprovalGranted": _on_approval_granted,
    "ApprovalDenied": _on_approval_denied,
    "SignalAccepted": _on_signal_accepted,
    "SignalProcessed": _on_signal_processed,
}
