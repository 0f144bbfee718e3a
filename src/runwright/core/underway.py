"""How much is being worked on, counted from events alone: what a pause still waits for.

A step of a plan is at work from its start to its end, but for the time that it is a loop: then its iterations are. Of a
playbook, tasks are at work: from their start, or that of a further try, to the end of the try. Where a policy judges
it, the task itself ends with that, so the two events of its end count once.
"""

from __future__ import annotations

from runwright.contract import payloads
from runwright.contract.events import FoldableEvent
from runwright.contract.playbook import Do

from .reading import may_name, read_payload
from .state import RunState


def count(state: RunState, event: FoldableEvent) -> None:
    change = _CHANGES[event.event_type]
    summary = state.summary
    if event.event_type.startswith("Loop"):
        if not summary.has_tasks:
            summary.loose_tasks += change
        return
    summary.has_tasks = True
    if event.event_type == "TaskAttemptStarted":
        change = int(event.logical_attempt_id > 1)  # the first begins with its task
    elif event.event_type == "PolicyTaskEvaluated" and may_name(event, b"retry"):
        action = read_payload(payloads.PolicyTaskEvaluated, event).action or {}
        change = int(action.get("do") != Do.RETRY)
    elif event.event_type == "TaskFailed" and may_name(event, b"idle"):
        change = 0 if read_payload(payloads.TaskEnded, event).idle else -1
    summary.loose_tasks += change


_CHANGES = {
    "LoopStarted": -1,
    "LoopIterationStarted": 1,
    "LoopIterationDone": -1,
    "LoopIterationFailed": -1,
    "LoopDone": 1,
    "WorkflowStarted": 0,
    "TaskStarted": 1,
    "TaskAttemptStarted": 0,
    "TaskAttemptDone": -1,
    "TaskAttemptFailed": -1,
    "PolicyTaskEvaluated": 1,
    "TaskDone": -1,
    "TaskFailed": -1,
}

COUNTED = frozenset(_CHANGES)
