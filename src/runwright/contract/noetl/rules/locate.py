"""Find the step visit, iteration and task that an event belongs to.

Ids are optional in the model. If they are missing, the parent, the iteration number and the entity identify the
location. An event that only names a step belongs to the oldest visit of it whose state allows such an event.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

import msgspec

from .event import CheckedEvent
from .history import CheckedExecution, CheckedIteration, CheckedLoop, CheckedPipeline, CheckedTask, CheckedVisit

_STEP_RUN = re.compile(
    r"(?P<run>step:(?P<step>.+):run:\d{1,18})(?::attempt:\d{1,18})?(?P<iteration>:iteration:(?:\d{1,18}\.)*(?P<at>\d{1,18}))?"
)
_ATTEMPT = re.compile(r"(:run:\d{1,18}):attempt:\d{1,18}$")
_TASK_RUN = re.compile(r"task:(?P<label>.+):run:\d{1,18}")
_STEP_FAMILIES = frozenset({"step", "task", "loop", "next", "policy"})
_NESTED_FAMILIES = frozenset({"task", "policy", "result", "loop"})
_STEP_STATE_EVENTS = frozenset({"step.scheduled", "step.started", "step.done", "step.failed", "step.skipped"})


class EventLocation(msgspec.Struct):
    visit: CheckedVisit | None = None
    iteration: CheckedIteration | None = None
    task: CheckedTask | None = None
    is_ambiguous: bool = False  # in a loop, and neither the task run nor the iteration is specified

    @property
    def lacks_iteration(self) -> bool:
        """Whether the event is in a loop without an iteration, so that the preceding task is unknown."""
        return self.iteration is None and self.visit is not None and self.visit.loop is not None

    @property
    def pipeline(self) -> CheckedPipeline | None:
        if self.iteration is not None:
            return self.iteration.pipeline
        return None if self.visit is None else self.visit.pipeline


def locate_event(execution: CheckedExecution, event: CheckedEvent) -> EventLocation:
    """Return the location of an event. Unknown visits are added, except for results, which are never the first."""
    if event.family in _STEP_FAMILIES:
        visit = _find_visit(execution, event)
        if visit is None and event.name == "policy.task.evaluated":
            return _locate_by_task(execution, event)
        location = EventLocation(visit)
        if visit is not None and (event.family in _NESTED_FAMILIES or is_within_step(event)):
            location.iteration = _find_iteration(execution, visit, event)
            location.task = _find_task(location, event)
            is_unspecified = location.lacks_iteration and event.task_run_id is None
            location.is_ambiguous = is_unspecified and event.family in ("task", "policy")
        return location
    return _locate_result(execution, event) if event.family == "result" else EventLocation()


def is_within_step(event: CheckedEvent) -> bool:
    """Whether it is a step event outside of the model, such as `step.checkpoint.written`.

    Iterations and tasks emit such events too.
    """
    return event.family == "step" and event.name not in _STEP_STATE_EVENTS


def step_name(event: CheckedEvent) -> str | None:
    """Return the step that the event names, if its entity is a step."""
    name = event.entity_id
    return name[5:] if name is not None and event.family != "step" and name.startswith("step:") else name


def task_label(event: CheckedEvent) -> str | None:
    """Return `fetch` for the entities `fetch` and `task:fetch`; of a result also for `task:fetch:attempt:3`."""
    label = event.entity_id
    if label is None or event.family == "task":
        return label
    if not label.startswith("task:"):
        return None
    return re.sub(r":attempt:\d{1,18}$", "", label[5:]) if event.family == "result" else label[5:]


def without_attempt(step_run_id: str) -> str:
    """Return the id without an attempt: all attempts of a plan's step are one visit here."""
    return _ATTEMPT.sub(r"\1", step_run_id) if ":attempt:" in step_run_id else step_run_id


# Steps


def _find_visit(execution: CheckedExecution, event: CheckedEvent) -> CheckedVisit | None:
    if event.step_run_id is not None:
        key = without_attempt(event.step_run_id)
        return execution.ensure_visit(key, _name_for(key, event))
    if event.family != "step" and event.parent_id is not None:
        found = _visit_of_parent(execution, event, event.parent_id)
        if found is not None:
            return found
    if event.iteration_id is not None and (match := _STEP_RUN.fullmatch(event.iteration_id)) is not None:
        return execution.ensure_visit(match["run"], match["step"])
    if event.family == "task" or event.name == "policy.task.evaluated" or event.entity_id is None:
        return None
    if (match := _STEP_RUN.fullmatch(event.entity_id)) is not None:
        return execution.ensure_visit(match["run"], match["step"])
    return _visit_by_name(execution, event, step_name(event) or "")


def _name_for(step_run_id: str, event: CheckedEvent) -> str | None:
    match = _STEP_RUN.fullmatch(step_run_id)
    if match is not None:
        return match["step"]
    return event.entity_id if event.family == "step" else None


def _visit_of_parent(execution: CheckedExecution, event: CheckedEvent, parent: str) -> CheckedVisit | None:
    if parent in execution.iterations:
        return execution.iterations[parent].visit
    key = without_attempt(parent)
    if key in execution.visits:
        return execution.visits[key]
    if (match := _STEP_RUN.fullmatch(parent)) is not None:
        return execution.ensure_visit(match["run"], match["step"])
    if event.name == "policy.admit.evaluated" and parent not in execution.workflow_ids and parent != event.execution_id:
        return execution.ensure_visit(parent, step_name(event))
    name = parent.removeprefix("step:")
    return execution.newest_visits.get(name) if event.family in ("task", "loop") else None


_ACCEPTS: dict[str, Callable[[CheckedVisit], bool]] = {
    "policy.admit.evaluated": lambda visit: not visit.is_scheduled,
    "step.scheduled": lambda visit: not visit.is_scheduled,
    "step.started": lambda visit: visit.is_scheduled and not visit.is_started,
    "step.done": lambda visit: visit.may_end,
    "step.failed": lambda visit: visit.may_end,
    "next.evaluated": lambda visit: not visit.is_routed and visit.may_route,
    "loop.started": lambda visit: visit.is_running and visit.loop is None,
}
_VISIT_CREATING = frozenset({"policy.admit.evaluated", "step.scheduled"})


def _visit_by_name(execution: CheckedExecution, event: CheckedEvent, name: str) -> CheckedVisit:
    candidates = execution.unfinished_visits(name)
    accepts = _ACCEPTS.get(event.name, _is_running)
    found = _first_matching(candidates, accepts)
    if found is None and event.name not in _VISIT_CREATING:
        found = _first_matching(candidates, _is_running) or execution.newest_visits.get(name)
    return execution.add_visit(name) if found is None else found


def _is_running(visit: CheckedVisit) -> bool:
    return visit.is_running


def _first_matching(
    candidates: Iterable[CheckedVisit], is_match: Callable[[CheckedVisit], bool]
) -> CheckedVisit | None:
    return next((visit for visit in candidates if is_match(visit)), None)


# Iterations


def _find_iteration(execution: CheckedExecution, visit: CheckedVisit, event: CheckedEvent) -> CheckedIteration | None:
    iteration_id, index = _iteration_id(execution, visit, event), event.iteration
    if iteration_id is None and index is None:
        return None
    loop = visit.loop
    if loop is None:
        if not event.name.startswith("loop.iteration."):
            return CheckedIteration(iteration_id or "", index, visit)
        loop = visit.loop = CheckedLoop()
    found = None if iteration_id is None else loop.iterations.get(iteration_id)
    if found is None and index is not None:
        found = loop.by_index.get(index)
        if found is not None and iteration_id is not None:
            found = _assign_id(execution, loop, found, iteration_id)
    if found is None:
        if iteration_id is None:
            found = CheckedIteration(f"{visit.step_run_id}:iteration:{index}", index, visit, has_id=False)
        else:
            index = iteration_index(iteration_id) if index is None else index
            found = CheckedIteration(iteration_id, index, visit)
        if event.name.startswith("loop.iteration."):
            _add_iteration(execution, loop, found)
    return found


def _iteration_id(execution: CheckedExecution, visit: CheckedVisit, event: CheckedEvent) -> str | None:
    if event.iteration_id is not None:
        return event.iteration_id
    parent = event.parent_id
    if parent is not None and (parent in execution.iterations or _is_iteration_id(parent)):
        return parent
    entity = event.entity_id
    if entity is None or not event.name.startswith("loop.iteration."):
        return None
    loop = None if visit.loop is None else visit.loop.entity_id
    is_own = event.iteration is None and entity not in (loop, visit.name, f"loop:{visit.name}", visit.step_run_id)
    return entity if is_own or _is_iteration_id(entity) else None


def _is_iteration_id(text: str) -> bool:
    """Whether a text is the id of an iteration; `step:load:iteration:3:run:1` is a visit of a step of that name."""
    if ":iteration:" not in text:
        return False
    match = _STEP_RUN.fullmatch(text)
    return match is None or match["at"] is not None


def _assign_id(
    execution: CheckedExecution, loop: CheckedLoop, iteration: CheckedIteration, iteration_id: str
) -> CheckedIteration | None:
    """Assign its id to an iteration known by its index only; None if it has another id, so that it is another one."""
    if iteration.has_id:
        return None
    iteration.iteration_id, iteration.has_id = iteration_id, True
    loop.iterations[iteration_id] = execution.iterations[iteration_id] = iteration
    return iteration


def _add_iteration(execution: CheckedExecution, loop: CheckedLoop, iteration: CheckedIteration) -> None:
    loop.iterations[iteration.iteration_id] = execution.iterations[iteration.iteration_id] = iteration
    loop.state_counts[None] += 1
    if iteration.index is not None:
        loop.by_index.setdefault(iteration.index, iteration)


def iteration_index(iteration_id: str) -> int | None:
    """Return the index at the end of an iteration's id, if there is one."""
    match = _STEP_RUN.fullmatch(iteration_id)
    return None if match is None or match["at"] is None else int(match["at"])


# Tasks


def _find_task(location: EventLocation, event: CheckedEvent) -> CheckedTask | None:
    pipeline = location.pipeline
    if pipeline is None or event.family == "loop" or event.name == "policy.admit.evaluated":
        return None
    key = event.task_run_id or (event.parent_id if event.family != "task" else None)
    if key in pipeline.tasks:
        return pipeline.tasks[key]
    if event.task_run_id is not None:
        return None  # the specified run of the task is unknown
    label = task_label(event)
    found = None if label is None else pipeline.by_label.get(label)
    return None if found is not None and event.name == "task.started" and found.end is not None else found


def _locate_by_task(execution: CheckedExecution, event: CheckedEvent) -> EventLocation:
    """Locate an event that names a task without its step, as the model's own examples do."""
    found = next((task for task in _named_tasks(execution, event) if task.is_awaiting_policy), None)
    return EventLocation(task=found or next(iter(_named_tasks(execution, event)), None))


def _named_tasks(execution: CheckedExecution, event: CheckedEvent) -> Iterable[CheckedTask]:
    key = event.task_run_id or event.parent_id or ""
    names = (key, label_of_run(key), task_label(event))
    found = (execution.open_tasks.get(name) for name in names if name is not None)
    tasks = next(filter(None, found), None) or ()
    return (task for task in tasks if event.iteration is None or task.index == event.iteration)


def label_of_run(task_run_id: str) -> str | None:
    """Return `fetch` for `task:fetch:run:2`."""
    match = _TASK_RUN.fullmatch(task_run_id)
    return None if match is None else match["label"]


def _locate_result(execution: CheckedExecution, event: CheckedEvent) -> EventLocation:
    location = EventLocation()
    if event.step_run_id is not None:
        location.visit = execution.visits.get(without_attempt(event.step_run_id))
    elif event.parent_id is not None:
        location.visit = _visit_of_parent(execution, event, event.parent_id)
    if location.visit is not None:
        location.iteration = _find_iteration(execution, location.visit, event)
        location.task = _find_task(location, event)
        return location
    return _locate_by_task(execution, event)
