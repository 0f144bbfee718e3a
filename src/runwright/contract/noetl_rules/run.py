"""Rules for an execution as a whole: where it begins, the order of its stations, where it ends, what is missing."""

from __future__ import annotations

from .findings import Findings
from .said import STOPS, Said
from .story import Execution, Visit

_WAY = (
    "playbook.execution.requested",
    "playbook.request.evaluated",
    "playbook.started",
    "workflow.started",
    "steps",
    "workflow.finished",
    "playbook.finished",
    "playbook.processed",
)
"""The stations of a playbook, each once, in this order; all that its steps do is one of them."""

_OF_BEGUN = ("playbook.started", "workflow.started", "workflow.finished")
"""What is not missing where an execution was refused, or cancelled before it began."""

_REFUSALS = frozenset({"REJECT", "REJECTED", "DENY", "DENIED", "REFUSED"})
_RANK = {name: rank for rank, name in enumerate(_WAY)}
_STEPS = _RANK["steps"]
_AT_WORK = frozenset(
    {
        *("policy.admit.evaluated", "step.scheduled", "step.started", "step.done", "step.failed"),
        *("task.started", "task.attempt.started", "task.attempt.done", "task.attempt.failed", "task.done"),
        *("task.failed", "policy.task.evaluated", "next.evaluated", "loop.started", "loop.done"),
        *("loop.iteration.scheduled", "loop.iteration.started", "loop.iteration.done", "loop.iteration.failed"),
        *("result.stored", "result.manifest.updated"),
    }
)
_NOT_AFTERWARDS = _AT_WORK | {"step.skipped", "playbook.started", "playbook.paused", "playbook.resumed"}
_OF_PLAYBOOKS = frozenset(
    {
        *("workflow.started", "workflow.finished", "playbook.processed", "policy.admit.evaluated"),
        *("policy.task.evaluated", "next.evaluated", "task.started", "task.done", "task.failed"),
    }
)
"""Whoever says one of these runs a playbook, and must say all that the model asks for."""


def take_station(findings: Findings, run: Execution, said: Said) -> None:
    """Where on its way the execution is, and whether the event belongs there."""
    name = said.name
    run.is_playbook = run.is_playbook or name in _OF_PLAYBOOKS
    _root(findings, run, name)
    _request(findings, run, said)
    _end(findings, run, said)
    rank = _STEPS if name in _AT_WORK else _RANK.get(name)
    if rank is None:
        if name == "playbook.resumed" and run.seen[name] >= run.seen["playbook.paused"]:
            findings.tell("NOT_PAUSED", "The playbook was resumed, and was not paused.")
        return
    if rank != _STEPS and run.seen[name] and name not in ("playbook.execution.requested", "playbook.finished"):
        findings.tell("TWICE", f"{name} was said before.")
    elif rank != _STEPS and run.reached > rank and name != "playbook.execution.requested":
        findings.tell("RUN_ORDER", f"{name} comes too late: {_WAY[run.reached]} was before it.")
    run.reached = max(run.reached, rank)


def _root(findings: Findings, run: Execution, name: str) -> None:
    if name != "playbook.execution.requested":
        return
    if run.seen[name]:
        findings.tell("TWO_ROOTS", "The execution was requested before.")
    elif run.seen:
        findings.tell("ROOT_NOT_FIRST", "The request is not the first event.")


def _request(findings: Findings, run: Execution, said: Said) -> None:
    if said.name == "playbook.request.evaluated":
        decision = said.meta.get("decision", said.payload.get("decision"))
        run.is_refused = said.status == "error" or str(decision).upper() in _REFUSALS
    elif said.name == "playbook.started" and run.is_refused:
        findings.tell("REFUSED", "The request was refused, and the playbook started.")


def _end(findings: Findings, run: Execution, said: Said) -> None:
    name = said.name
    if run.finished is not None and name in _NOT_AFTERWARDS:
        findings.tell("AFTER_THE_END", f"{name} after playbook.finished.")
    elif run.seen["workflow.finished"] and name in _AT_WORK:
        findings.tell("AFTER_THE_END", f"{name} after workflow.finished.")
    if name == "workflow.finished":
        for visit in run.live:
            if visit.is_running:
                findings.tell("STEP_OPEN", f"The workflow finished while {visit.step_run_id} had not ended.")
        run.workflow_end = said
    if name == "playbook.finished":
        told, end = said.status, None if run.workflow_end is None else run.workflow_end.status
        if {told, end} == {"success", "error"}:
            findings.tell("STATUS", f"The workflow ended with {end}, and its playbook with {told}.")
        if run.finished is not None:
            findings.tell("TWO_TERMINALS", "The playbook was finished before.")
        else:
            run.finished = said


# What is missing once the log has ended


def close(findings: Findings, run: Execution) -> None:
    """A log that has not come to its end yet may still be told the rest."""
    name = run.execution_id
    if not run.seen["playbook.execution.requested"]:
        findings.tell("NO_ROOT", f"Execution {name} was never requested.")
    if run.finished is None and not run.seen["playbook.processed"]:
        sentence = f"Execution {name} has no playbook.finished: it may still be running."
        findings.tell("NO_TERMINAL", sentence, warning=True)
    if not run.is_playbook:
        return
    for station in _missing(run):
        findings.tell("MISSING", f"Execution {name} has no {station}.")
    if run.seen["policy.task.evaluated"]:
        for said in run.unjudged:
            sentence = f"{said.name} came without asking the policy about the try."
            findings.tell("POLICY_MISSING", sentence, about=said, warning=True)  # that it is told is recommended
    if run.finished is not None:
        _close_steps(findings, run, run.finished)


def _missing(run: Execution) -> list[str]:
    needed = list(_WAY[1 : run.reached])
    if run.finished is not None:
        needed.append("playbook.processed")
    if run.finished is not None and not _is_good(run.finished) and not run.visits and not run.seen["workflow.started"]:
        needed = [each for each in needed if each not in _OF_BEGUN]
    return [each for each in needed if each != "steps" and not run.seen[each]]


def _is_good(finished: Said) -> bool:
    return finished.status == "success"


def _is_stopped(finished: Said) -> bool:
    """Whether it may have been stopped: then steps need not have been routed from."""
    if _is_good(finished):
        return False
    status = finished.meta.get("runStatus")
    return status == "CANCELLED" or _speaks_of_stop(finished) or (status is None and not finished.trouble)


def _speaks_of_stop(said: Said) -> bool:
    """A step that took too long was not stopped with all the rest."""
    return bool(STOPS & said.trouble) and "step_timeout" not in said.trouble


def _close_steps(findings: Findings, run: Execution, finished: Said) -> None:
    stopped = _is_stopped(finished)
    for visit in run.live:
        if visit.is_running and not run.seen["workflow.finished"]:
            findings.tell("STEP_OPEN", f"Execution {run.execution_id} ended while {visit.step_run_id} had not.")
        if visit.ended is not None and not visit.routed and not stopped and not _speaks_of_stop(visit.ended):
            findings.tell("NOT_ROUTED", f"The arcs of {visit.step_run_id} were never evaluated.")
        if not visit.started and _is_good(finished):
            findings.tell("NEVER_STARTED", f"It ended well, and {visit.step_run_id} was scheduled and never started.")
    if _is_good(finished) and not run.nameless:
        _close_tokens(findings, run)


def _close_tokens(findings: Findings, run: Execution) -> None:
    if not any(map(_was_scheduled, run.visits.values())):
        findings.tell("NEVER_SCHEDULED", f"Execution {run.execution_id} ended well without any step.")
        return
    for name, left in run.fresh.items():
        if left > 0 and name not in run.denied:
            findings.tell("NEVER_SCHEDULED", f"An arc to {name} was selected, and {name} never scheduled for it.")


def _was_scheduled(visit: Visit) -> bool:
    return visit.scheduled
