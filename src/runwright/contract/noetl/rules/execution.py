"""Rules for a whole execution: its root, the order of its phases, its end, and missing events."""

from __future__ import annotations

from .event import STOP_CODES, CheckedEvent, FindingCollector
from .history import CheckedExecution

_PHASES = (
    "playbook.execution.requested",
    "playbook.request.evaluated",
    "playbook.started",
    "workflow.started",
    "steps",
    "workflow.finished",
    "playbook.finished",
    "playbook.processed",
)
"""Phases of a playbook, each once and in this order. All events of its steps form one phase."""

_START_EVENTS = ("playbook.started", "workflow.started", "workflow.finished")
"""Events that may be absent if an execution was refused, or cancelled before its start."""

_REFUSALS = frozenset({"REJECT", "REJECTED", "DENY", "DENIED", "REFUSED"})
_PHASE_OF = {name: phase for phase, name in enumerate(_PHASES)}
_STEPS_PHASE = _PHASE_OF["steps"]
_STEP_EVENTS = frozenset(
    {
        *("policy.admit.evaluated", "step.scheduled", "step.started", "step.done", "step.failed"),
        *("task.started", "task.attempt.started", "task.attempt.done", "task.attempt.failed", "task.done"),
        *("task.failed", "policy.task.evaluated", "next.evaluated", "loop.started", "loop.done"),
        *("loop.iteration.scheduled", "loop.iteration.started", "loop.iteration.done", "loop.iteration.failed"),
        *("result.stored", "result.manifest.updated"),
    }
)
_FORBIDDEN_AFTER_END = _STEP_EVENTS | {"step.skipped", "playbook.started", "playbook.paused", "playbook.resumed"}
_PLAYBOOK_EVENTS = frozenset(
    {
        *("workflow.started", "workflow.finished", "playbook.processed", "policy.admit.evaluated"),
        *("policy.task.evaluated", "next.evaluated", "task.started", "task.done", "task.failed"),
    }
)
"""An execution with one of these events is a playbook, so every event that the model requires must be present."""


def check_phase(findings: FindingCollector, execution: CheckedExecution, event: CheckedEvent) -> None:
    """Advance the phase of the execution, and check that the event is allowed in it."""
    name = event.name
    execution.is_playbook = execution.is_playbook or name in _PLAYBOOK_EVENTS
    _check_root(findings, execution, name)
    _check_request(findings, execution, event)
    _check_end(findings, execution, event)
    phase = _STEPS_PHASE if name in _STEP_EVENTS else _PHASE_OF.get(name)
    if phase is None:
        if name == "playbook.resumed" and execution.event_counts[name] >= execution.event_counts["playbook.paused"]:
            findings.add("NOT_PAUSED", "The playbook was resumed but was not paused.")
        return
    is_once = phase != _STEPS_PHASE and name != "playbook.execution.requested"
    if is_once and execution.event_counts[name] and name != "playbook.finished":
        findings.add("TWICE", f"Duplicate {name}.")
    elif is_once and execution.phase > phase:
        findings.add("RUN_ORDER", f"{name} must not follow {_PHASES[execution.phase]}.")
    execution.phase = max(execution.phase, phase)


def _check_root(findings: FindingCollector, execution: CheckedExecution, name: str) -> None:
    if name != "playbook.execution.requested":
        return
    if execution.event_counts[name]:
        findings.add("TWO_ROOTS", "The execution was already requested.")
    elif execution.event_counts:
        findings.add("ROOT_NOT_FIRST", "playbook.execution.requested must be the first event.")


def _check_request(findings: FindingCollector, execution: CheckedExecution, event: CheckedEvent) -> None:
    if event.name == "playbook.request.evaluated":
        decision = event.meta.get("decision", event.payload.get("decision"))
        execution.is_refused = event.status == "error" or str(decision).upper() in _REFUSALS
    elif event.name == "playbook.started" and execution.is_refused:
        findings.add("REFUSED", "The playbook started although its request was refused.")


def _check_end(findings: FindingCollector, execution: CheckedExecution, event: CheckedEvent) -> None:
    name = event.name
    if execution.finished_event is not None and name in _FORBIDDEN_AFTER_END:
        findings.add("AFTER_THE_END", f"{name} must not follow playbook.finished.")
    elif execution.event_counts["workflow.finished"] and name in _STEP_EVENTS:
        findings.add("AFTER_THE_END", f"{name} must not follow workflow.finished.")
    if name == "workflow.finished":
        for visit in execution.open_visits:
            if visit.is_running:
                findings.add("STEP_OPEN", f"The workflow finished while {visit.step_run_id} was still running.")
        execution.workflow_end_event = event
    if name == "playbook.finished":
        workflow_end = execution.workflow_end_event
        workflow_status = None if workflow_end is None else workflow_end.status
        if {event.status, workflow_status} == {"success", "error"}:
            findings.add("STATUS", f"The workflow ended with {workflow_status}, its playbook with {event.status}.")
        if execution.finished_event is not None:
            findings.add("TWO_TERMINALS", "The playbook was already finished.")
        else:
            execution.finished_event = event


# Completeness, once all events were read


def check_completeness(findings: FindingCollector, execution: CheckedExecution) -> None:
    """Report missing events. Without an end, the execution may still be running, so little can be required."""
    name = execution.execution_id
    if not execution.event_counts["playbook.execution.requested"]:
        findings.add("NO_ROOT", f"Execution {name} was never requested.")
    if execution.finished_event is None and not execution.event_counts["playbook.processed"]:
        sentence = f"Execution {name} has no playbook.finished: it may still be running."
        findings.add("NO_TERMINAL", sentence, warning=True)
    if not execution.is_playbook:
        return
    for missing in _missing_events(execution):
        findings.add("MISSING", f"Execution {name} has no {missing}.")
    if execution.event_counts["policy.task.evaluated"]:
        for event in execution.events_without_policy:
            sentence = f"{event.name} follows an attempt whose policy was not evaluated."
            # A warning only: the model recommends policy.task.evaluated, and does not require it.
            findings.add("POLICY_MISSING", sentence, about=event, warning=True)
    if execution.finished_event is not None:
        _check_steps(findings, execution, execution.finished_event)


def _missing_events(execution: CheckedExecution) -> list[str]:
    required, finished = list(_PHASES[1 : execution.phase]), execution.finished_event
    if finished is not None:
        required.append("playbook.processed")
        if not _is_success(finished) and not execution.visits and not execution.event_counts["workflow.started"]:
            required = [name for name in required if name not in _START_EVENTS]
    return [name for name in required if name != "steps" and not execution.event_counts[name]]


def _is_success(finished: CheckedEvent) -> bool:
    return finished.status == "success"


def _was_stopped(finished: CheckedEvent) -> bool:
    """Whether the execution may have been stopped, so that arcs of ended steps need not be evaluated."""
    if _is_success(finished):
        return False
    status = finished.meta.get("runStatus")
    return status == "CANCELLED" or _reports_stop(finished) or (status is None and not finished.error_codes)


def _reports_stop(event: CheckedEvent) -> bool:
    """Whether the error is a stop of the whole execution; a timeout of one step is not."""
    return bool(STOP_CODES & event.error_codes) and "step_timeout" not in event.error_codes


def _check_steps(findings: FindingCollector, execution: CheckedExecution, finished: CheckedEvent) -> None:
    stopped = _was_stopped(finished)
    for visit in execution.open_visits:
        if visit.is_running and not execution.event_counts["workflow.finished"]:
            findings.add(
                "STEP_OPEN", f"Execution {execution.execution_id} ended while {visit.step_run_id} was still running."
            )
        if visit.end_event is not None and not visit.is_routed and not stopped and not _reports_stop(visit.end_event):
            findings.add("NOT_ROUTED", f"The arcs of {visit.step_run_id} were never evaluated.")
        if not visit.is_started and _is_success(finished):
            sentence = f"The execution succeeded, but {visit.step_run_id} was scheduled and never started."
            findings.add("NEVER_STARTED", sentence)
    if _is_success(finished) and not execution.has_unnamed_steps:
        _check_tokens(findings, execution)


def _check_tokens(findings: FindingCollector, execution: CheckedExecution) -> None:
    if not any(visit.is_scheduled for visit in execution.visits.values()):
        findings.add("NEVER_SCHEDULED", f"Execution {execution.execution_id} succeeded without any step.")
        return
    for name, unused in execution.min_tokens.items():
        if unused > 0 and name not in execution.denied_steps:
            findings.add("NEVER_SCHEDULED", f"An arc to {name} was selected, but {name} was not scheduled for it.")
