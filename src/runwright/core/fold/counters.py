"""Counters for people: progress of loops in snapshots, and the number of in-flight units of work.

A pause is DRAINING while anything is in flight. `state.inflight_count` adds `RunSummary.loose_tasks`, counted here, to
the number of running steps:

- A step of a plan is in flight from its start to its end. While it is a loop, its iterations are in flight instead:
  LoopStarted subtracts the step, LoopDone adds it again.
- Of a playbook, only tasks are in flight (`has_tasks`): from the start of an attempt to its end. The first attempt
  starts with its task. If a policy is evaluated, the end of the task follows the end of the attempt, so the policy
  event adds one again and the two end events count once.
"""

from __future__ import annotations

from collections.abc import Callable

from runwright.contract import payloads
from runwright.contract.events import FoldableEvent
from runwright.contract.paths import parse_path
from runwright.contract.playbook import PolicyAction
from runwright.contract.snapshot import IterationFailure, RunSummary
from runwright.contract.transitions import ENDED

from .payload_reader import may_contain_field, read_payload
from .run_state import LoopProgress, RunState

MAX_LISTED_FAILURES = 5
"""Failed iterations of a loop that a snapshot lists; further ones are only counted."""


def _on_loop_started(state: RunState, event: FoldableEvent) -> None:
    _add_iterations(state.summary, -1)
    path = parse_path(event.step_id or "") if state.detailed else None
    if path is None:
        return
    if path.owner not in state.loops or path.attempt > 1:
        payload = read_payload(payloads.LoopStarted, event)
        state.loops[path.owner] = LoopProgress(payload.total or 0, payload.carried_over or 0)


def _on_iteration_started(state: RunState, event: FoldableEvent) -> None:
    _add_iterations(state.summary, 1)
    progress = _progress_of(state, event)
    if progress is not None:
        progress.running[event.step_id or ""] = None


def _on_iteration_ended(state: RunState, event: FoldableEvent) -> None:
    _add_iterations(state.summary, -1)
    progress = _progress_of(state, event)
    path = event.step_id or ""
    if progress is None or path not in progress.running:
        return
    del progress.running[path]
    if event.event_type == "LoopIterationDone":
        progress.done += 1
        return
    progress.failed += 1
    index = _iteration_index(event)
    if len(progress.failures) < MAX_LISTED_FAILURES and index is not None:
        progress.failures.append(IterationFailure(index, read_payload(payloads.LoopIteration, event).error))


def _on_loop_done(state: RunState, _event: FoldableEvent) -> None:
    _add_iterations(state.summary, 1)


def _on_retry_scheduled(state: RunState, event: FoldableEvent) -> None:
    """Subtract an iteration that will be retried from the failed ones: its failure is not final."""
    if not state.loops or (event.step_id or "")[-1:] != "]" or state.summary.status in ENDED:
        return
    progress = _progress_of(state, event)
    if progress is None or not progress.failed:
        return
    progress.failed -= 1
    index = _iteration_index(event)
    progress.failures = [failure for failure in progress.failures if failure.index != index]


def _progress_of(state: RunState, event: FoldableEvent) -> LoopProgress | None:
    """Find the loop that an iteration belongs to; None if the state has no details or the loop is unknown."""
    if not state.detailed:
        return None
    path = parse_path(event.step_id or "")
    return None if path is None else state.loops.get(path.owner)


def _iteration_index(event: FoldableEvent) -> int | None:
    path = parse_path(event.step_id or "")
    return path.indexes[-1] if path is not None and path.indexes else None


def _add_iterations(summary: RunSummary, change: int) -> None:
    if not summary.has_tasks:  # of a playbook, the tasks of an iteration are counted
        summary.loose_tasks += change


def _on_task_event(state: RunState, event: FoldableEvent) -> None:
    change = _TASK_CHANGES[event.event_type]
    if event.event_type == "TaskAttemptStarted":
        change = int(event.logical_attempt_id > 1)  # the first attempt starts with its task
    elif event.event_type == "PolicyTaskEvaluated" and may_contain_field(event, b"retry"):
        action = read_payload(payloads.PolicyTaskEvaluated, event).action or {}
        change = int(action.get("do") != PolicyAction.RETRY)
    elif event.event_type == "TaskFailed" and may_contain_field(event, b"idle"):
        change = 0 if read_payload(payloads.TaskEnded, event).idle else -1
    state.summary.has_tasks = True
    state.summary.loose_tasks += change


_TASK_CHANGES = {
    "WorkflowStarted": 0,
    "TaskStarted": 1,
    "TaskAttemptStarted": 0,
    "TaskAttemptDone": -1,
    "TaskAttemptFailed": -1,
    "PolicyTaskEvaluated": 1,
    "TaskDone": -1,
    "TaskFailed": -1,
}

HANDLERS: dict[str, Callable[[RunState, FoldableEvent], None]] = {
    "StepRetryScheduled": _on_retry_scheduled,
    "LoopStarted": _on_loop_started,
    "LoopIterationStarted": _on_iteration_started,
    "LoopIterationDone": _on_iteration_ended,
    "LoopIterationFailed": _on_iteration_ended,
    "LoopDone": _on_loop_done,
    **dict.fromkeys(_TASK_CHANGES, _on_task_event),
}
