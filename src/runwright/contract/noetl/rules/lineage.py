"""Rules for the parent, the entity and the emitter of an event."""

from __future__ import annotations

from collections.abc import Callable

from runwright.contract.catalog import CATALOG, Role

from .event import CheckedEvent, FindingCollector
from .history import CheckedExecution
from .locate import EventLocation, is_within_step, label_of_run, step_name, task_label, without_attempt

_PARENTS: dict[str, tuple[str, ...]] = {
    "playbook": ("execution",),
    "workflow": ("execution", "playbook"),
    "step": ("workflow", "execution", "playbook"),
    "task": ("step", "iteration"),
    "loop": ("step", "loop"),
    "next": ("step",),
    "policy.admit.evaluated": ("step", "workflow"),
    "policy.task.evaluated": ("task", "step", "iteration"),
    "result": ("task", "step", "iteration"),
}
"""Allowed kinds of parents by event name or family: a workflow has steps, a step has tasks."""

_PARENTS_WITHIN_STEP = ("workflow", "execution", "playbook", "step", "iteration")
"""The same for step events outside of the model, which a step, an iteration or a task may emit."""

_FAMILIES_WITH_PARENT = frozenset({"step", "task", "loop", "next"})
_ROLES = {kind.dotted: kind.role for kind in CATALOG.values()}
_WORKER_EVENTS = frozenset(
    {
        *("step.started", "step.done", "step.failed", "task.started", "task.done", "task.failed"),
        *("task.attempt.started", "task.attempt.done", "task.attempt.failed", "policy.task.evaluated"),
    }
)
"""Events that only a worker may emit. For loops and results the model allows both emitters."""

_LOST_WORKER_CODES = frozenset(
    {
        *("worker_lost", "lease_expired", "step_timeout", "run_timeout", "worker_timeout", "timeout"),
        *("cancelled", "canceled", "killed", "operator"),
    }
)
"""Error codes that the server reports on behalf of a worker, because no live worker can."""


# Parents


def check_parent(
    findings: FindingCollector,
    executions: dict[str, CheckedExecution],
    execution: CheckedExecution,
    location: EventLocation,
    event: CheckedEvent,
) -> None:
    parent = event.parent_id
    if parent is None:
        if event.has_null_parent and execution.has_parents and event.family in _FAMILIES_WITH_PARENT:
            findings.add("PARENT_MISSING", f"{event.name} has no parent.")
        return
    execution.has_parents = True
    if event.family == "step" and not execution.has_step_parents:
        execution.has_step_parents = True
        if execution.workflow_run_id is None and not _is_known(execution, location, event, parent):
            execution.workflow_ids.add(parent)  # the log has no other event with the workflow's id
    allowed = _allowed_parents(event)
    if any(_IS_PARENT[kind](execution, location, event, parent) for kind in allowed):
        return
    if event.name == "playbook.execution.requested" and _is_in_other_execution(executions, parent):
        return
    if not _is_known(execution, location, event, parent):
        findings.add("PARENT_UNKNOWN", f"Unknown parent {parent!r}.")
    elif allowed:
        findings.add("PARENT_WRONG", f"{parent!r} is not an allowed parent of {event.name}.")


def _allowed_parents(event: CheckedEvent) -> tuple[str, ...]:
    """Return the allowed kinds of parents; empty if the model does not restrict them."""
    if event.name not in _ROLES:
        return ()
    if is_within_step(event):
        return _PARENTS_WITHIN_STEP
    allowed = _PARENTS.get(event.name) or _PARENTS.get(event.family, ())
    return (*allowed, "workflow") if event.family == "result" and event.task_run_id is None else allowed


def _is_step(_execution: CheckedExecution, location: EventLocation, _event: CheckedEvent, parent: str) -> bool:
    visit = location.visit
    return visit is not None and (without_attempt(parent) == visit.step_run_id or _is_step_name(parent, visit.name))


def _is_iteration(_execution: CheckedExecution, location: EventLocation, _event: CheckedEvent, parent: str) -> bool:
    iteration = location.iteration
    return iteration is not None and iteration.state is not None and parent == iteration.iteration_id


def _is_loop(_execution: CheckedExecution, location: EventLocation, _event: CheckedEvent, parent: str) -> bool:
    loop = None if location.visit is None else location.visit.loop
    return loop is not None and parent == loop.entity_id


def _is_task(execution: CheckedExecution, location: EventLocation, event: CheckedEvent, parent: str) -> bool:
    task = location.task
    if task is not None:
        return parent in (task.task_run_id, task.label, f"task:{task.label}") or label_of_run(parent) == task.label
    label = label_of_run(parent)
    if label in execution.ambiguous_tasks:
        return True
    if event.family != "result" or location.visit is not None:
        return False
    return parent in execution.task_ids or label in execution.task_ids  # the task may have ended already


_IS_PARENT: dict[str, Callable[[CheckedExecution, EventLocation, CheckedEvent, str], bool]] = {
    "execution": lambda execution, _location, _event, parent: parent == execution.execution_id,
    "playbook": lambda execution, _location, _event, parent: parent == execution.entities.get("playbook"),
    "workflow": lambda execution, _location, _event, parent: parent in execution.workflow_ids,
    "step": _is_step,
    "iteration": _is_iteration,
    "loop": _is_loop,
    "task": _is_task,
}
"""By kind of parent: whether the id is the parent of that kind at the event's own location."""


def _is_known(execution: CheckedExecution, location: EventLocation, event: CheckedEvent, parent: str) -> bool:
    known = (execution.iterations, execution.task_ids, execution.newest_visits)
    if any(parent in ids for ids in known) or without_attempt(parent) in execution.visits:
        return True
    return any(is_parent(execution, location, event, parent) for is_parent in _IS_PARENT.values())


def _is_step_name(parent: str, name: str | None) -> bool:
    return name is not None and parent in (name, f"step:{name}")


def _is_in_other_execution(executions: dict[str, CheckedExecution], parent: str) -> bool:
    """Whether the parent is in another execution: a nested playbook belongs to a step or task of the outer one."""
    return any(
        parent == other.execution_id or parent in other.visits or parent in other.task_ids
        for other in executions.values()
    )


# Entities


def check_entity(
    findings: FindingCollector, execution: CheckedExecution, location: EventLocation, event: CheckedEvent
) -> None:
    """Check that ids are used consistently: one workflow, one step per step run, one task per task run."""
    if event.workflow_run_id is not None:
        if execution.workflow_run_id not in (None, event.workflow_run_id):
            findings.add("ENTITY", f"The workflow run is {execution.workflow_run_id!r}, not {event.workflow_run_id!r}.")
        elif execution.workflow_run_id is None:
            execution.workflow_run_id = event.workflow_run_id
            execution.workflow_ids.add(event.workflow_run_id)
    if event.entity_id is None or event.name not in _ROLES:
        return
    if event.family in ("playbook", "workflow"):
        known = execution.entities.setdefault(event.family, event.entity_id)
        if known != event.entity_id:
            findings.add("ENTITY", f"The {event.family} is {known!r}, not {event.entity_id!r}.")
    visit, task = location.visit, location.task
    if visit is not None and visit.name is not None and _is_about_step(event) and step_name(event) != visit.name:
        findings.add("ENTITY", f"{visit.step_run_id} is a run of {visit.name}, not of {event.entity_id}.")
    label = task_label(event)
    if task is not None and task.label is not None and label not in (None, task.label):
        findings.add("ENTITY", f"{task.task_run_id} is a run of {task.label}, not of {event.entity_id}.")


def _is_about_step(event: CheckedEvent) -> bool:
    if event.family == "step":
        return not is_within_step(event) or event.iteration_id is None
    return event.name in ("next.evaluated", "policy.admit.evaluated") and (event.entity_id or "").startswith("step:")


# Emitters


def check_source(findings: FindingCollector, location: EventLocation, event: CheckedEvent) -> None:
    """Check the emitter: workers never decide, and the server reports for a worker only if no live one can."""
    role = _ROLES.get(event.name)
    if event.source == "worker" and role is Role.SERVER and event.family != "loop":
        findings.add("EMISSION_RIGHT", f"A worker may not emit {event.name}.")
    elif event.source == "server" and event.name in _WORKER_EVENTS and not _may_server_emit(location, event):
        findings.add("EMISSION_RIGHT", f"The server may not emit {event.name} for work that a worker executes.")


def _may_server_emit(location: EventLocation, event: CheckedEvent) -> bool:
    if event.verb == "failed" and _LOST_WORKER_CODES & event.error_codes:
        return True
    visit = location.visit
    if event.family != "step" or visit is None:
        return event.family == "step"
    return event.name == "step.started" or visit.loop is not None or not visit.pipeline.tasks
