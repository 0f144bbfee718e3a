"""Rules for whom an event is about and who said it: parents, names of entities, and the right to emit."""

from __future__ import annotations

from collections.abc import Callable

from runwright.contract.catalog import CATALOG, Role

from .findings import Findings
from .place import Place, is_within_step, label_in, step_name, task_label, without_attempt
from .said import Said
from .story import Execution

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
"""What the parent of an event may be: workflow, step, task, in this order."""

_WITHIN_STEP = ("workflow", "execution", "playbook", "step", "iteration")
"""The same for what the model does not have, and a step, an iteration or a task may say."""

_INNER = frozenset({"step", "task", "loop", "next"})
_ROLES = {kind.dotted: kind.role for kind in CATALOG.values()}
_OF_WORKERS = frozenset(
    {
        *("step.started", "step.done", "step.failed", "task.started", "task.done", "task.failed"),
        *("task.attempt.started", "task.attempt.done", "task.attempt.failed", "policy.task.evaluated"),
    }
)
"""What only a worker can know. Of loops and results, the model has both speak, and says nothing of who begins."""

_WITHOUT_WORKER = frozenset(
    {
        *("worker_lost", "lease_expired", "step_timeout", "run_timeout", "worker_timeout", "timeout"),
        *("cancelled", "canceled", "killed", "operator"),
    }
)
"""What errors are called that no live worker can report."""


# Parents


def check_parent(findings: Findings, runs: dict[str, Execution], run: Execution, place: Place, said: Said) -> None:
    parent = said.parent_id
    if parent is None:
        if said.is_orphan and run.has_parents and said.family in _INNER:
            findings.tell("PARENT_MISSING", f"{said.name} has no parent.")
        return
    run.has_parents = True
    if said.family == "step" and not run.has_step_parents:
        run.has_step_parents = True
        if run.workflow_run_id is None and not _is_known(run, place, said, parent):
            run.workflow_ids.add(parent)  # nobody else says what the workflow is called
    allowed = _allowed(said)
    if any(_IS[kind](run, place, said, parent) for kind in allowed):
        return
    if said.name == "playbook.execution.requested" and _is_elsewhere(runs, parent):
        return
    if not _is_known(run, place, said, parent):
        findings.tell("PARENT_UNKNOWN", f"Its parent {parent!r} was never heard of.")
    elif allowed:
        findings.tell("PARENT_WRONG", f"{parent!r} is not what {said.name} can belong to.")


def _allowed(said: Said) -> tuple[str, ...]:
    """Nothing where the model does not say."""
    if said.name not in _ROLES:
        return ()
    if is_within_step(said):
        return _WITHIN_STEP
    allowed = _PARENTS.get(said.name) or _PARENTS.get(said.family, ())
    return (*allowed, "workflow") if said.family == "result" and said.task_run_id is None else allowed


def _is_step(_run: Execution, place: Place, _said: Said, parent: str) -> bool:
    visit = place.visit
    return visit is not None and (without_attempt(parent) == visit.step_run_id or _names(parent, visit.name))


def _is_iteration(_run: Execution, place: Place, _said: Said, parent: str) -> bool:
    each = place.round
    return each is not None and each.state is not None and parent == each.iteration_id


def _is_loop(_run: Execution, place: Place, _said: Said, parent: str) -> bool:
    loop = None if place.visit is None else place.visit.loop
    return loop is not None and parent == loop.entity_id


def _is_task(run: Execution, place: Place, said: Said, parent: str) -> bool:
    task = place.task
    if task is not None:
        return parent in (task.task_run_id, task.label, f"task:{task.label}") or label_in(parent) == task.label
    label = label_in(parent)
    is_late = said.family == "result" and place.visit is None  # its task may have been closed by then
    return label in run.vague_tasks or (is_late and (parent in run.task_ids or label in run.task_ids))


_IS: dict[str, Callable[[Execution, Place, Said, str], bool]] = {
    "execution": lambda run, _place, _said, parent: parent == run.execution_id,
    "playbook": lambda run, _place, _said, parent: parent == run.entities.get("playbook"),
    "workflow": lambda run, _place, _said, parent: parent in run.workflow_ids,
    "step": _is_step,
    "iteration": _is_iteration,
    "loop": _is_loop,
    "task": _is_task,
}
"""Whether a parent is this to an event: the run of its own step, and not of another."""


def _is_known(run: Execution, place: Place, said: Said, parent: str) -> bool:
    if parent in run.rounds or parent in run.task_ids or parent in run.newest or without_attempt(parent) in run.visits:
        return True
    return any(is_it(run, place, said, parent) for is_it in _IS.values())


def _names(parent: str, name: str | None) -> bool:
    return name is not None and parent in (name, f"step:{name}")


def _is_elsewhere(runs: dict[str, Execution], parent: str) -> bool:
    """A playbook within a playbook may belong to a step or task of the other one."""
    return any(
        parent == other.execution_id or parent in other.visits or parent in other.task_ids for other in runs.values()
    )


# Entities


def check_entity(findings: Findings, run: Execution, place: Place, said: Said) -> None:
    """A run of a step is always of the same step, a run of a task of the same task, and the workflow is one."""
    if said.workflow_run_id is not None:
        if run.workflow_run_id not in (None, said.workflow_run_id):
            findings.tell("ENTITY", f"The workflow is {run.workflow_run_id!r}, and not {said.workflow_run_id!r}.")
        elif run.workflow_run_id is None:
            run.workflow_run_id = said.workflow_run_id
            run.workflow_ids.add(said.workflow_run_id)
    if said.entity_id is None or said.name not in _ROLES:
        return
    if said.family in ("playbook", "workflow"):
        known = run.entities.setdefault(said.family, said.entity_id)
        if known != said.entity_id:
            findings.tell("ENTITY", f"The {said.family} is {known!r}, and not {said.entity_id!r}.")
    visit, task = place.visit, place.task
    if visit is not None and visit.name is not None and _is_about_step(said) and step_name(said) != visit.name:
        findings.tell("ENTITY", f"{visit.step_run_id} is a run of {visit.name}, and not of {said.entity_id}.")
    label = task_label(said)
    if task is not None and task.label is not None and label not in (None, task.label):
        findings.tell("ENTITY", f"{task.task_run_id} is a run of {task.label}, and not of {said.entity_id}.")


def _is_about_step(said: Said) -> bool:
    if said.family == "step":
        return not is_within_step(said) or said.iteration_id is None
    return said.name in ("next.evaluated", "policy.admit.evaluated") and (said.entity_id or "").startswith("step:")


# Who said it


def check_source(findings: Findings, place: Place, said: Said) -> None:
    """Workers never decide; the server speaks for them only where no live worker can."""
    role = _ROLES.get(said.name)
    if said.source == "worker" and role is Role.SERVER and said.family != "loop":
        findings.tell("EMISSION_RIGHT", f"A worker may not emit {said.name}.")
    elif said.source == "server" and said.name in _OF_WORKERS and not _may_server(place, said):
        findings.tell("EMISSION_RIGHT", f"The server may not emit {said.name} of what a worker carries out.")


def _may_server(place: Place, said: Said) -> bool:
    if said.verb == "failed" and _WITHOUT_WORKER & said.trouble:
        return True
    visit = place.visit
    if said.family != "step" or visit is None:
        return said.family == "step"
    return said.name == "step.started" or visit.loop is not None or not visit.pipeline.tasks
