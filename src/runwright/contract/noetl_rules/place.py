"""Which run of a step, which iteration and which task an event is about.

Their ids are optional. Where they are missing, the parent, the number of the iteration and the entity tell; where a
step is only named, it is the first run of it that such an event can be about.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

import msgspec

from .said import Said
from .story import Execution, Loop, Pipeline, Round, TaskRun, Visit

_STEP_RUN = re.compile(
    r"(?P<run>step:(?P<step>.+):run:\d{1,18})(?::attempt:\d{1,18})?(?P<iteration>:iteration:(?:\d{1,18}\.)*(?P<at>\d{1,18}))?"
)
_ATTEMPT = re.compile(r"(:run:\d{1,18}):attempt:\d{1,18}$")
_TASK_RUN = re.compile(r"task:(?P<label>.+):run:\d{1,18}")
_OF_STEPS = frozenset({"step", "task", "loop", "next", "policy"})
_INSIDE = frozenset({"task", "policy", "result", "loop"})
_STEP_ITSELF = frozenset({"step.scheduled", "step.started", "step.done", "step.failed", "step.skipped"})


class Place(msgspec.Struct):
    visit: Visit | None = None
    round: Round | None = None
    task: TaskRun | None = None
    is_vague: bool = False  # a task in a loop, and neither it nor its iteration can be told from others

    @property
    def is_loose(self) -> bool:
        """A task in a loop that does not say in which iteration: nobody knows which task comes before it."""
        return self.round is None and self.visit is not None and self.visit.loop is not None

    @property
    def pipeline(self) -> Pipeline | None:
        if self.round is not None:
            return self.round.pipeline
        return None if self.visit is None else self.visit.pipeline


def place_of(run: Execution, said: Said) -> Place:
    """What of it was not heard of before is made up here, unless it is about a result: that is never the first."""
    if said.family in _OF_STEPS:
        visit = _visit(run, said)
        if visit is None and said.name == "policy.task.evaluated":
            return _by_task(run, said)
        place = Place(visit)
        if visit is not None and (said.family in _INSIDE or is_within_step(said)):
            place.round = _round(run, visit, said)
            place.task = _task(place, said)
            place.is_vague = place.is_loose and said.task_run_id is None and said.family in ("task", "policy")
        return place
    return _of_result(run, said) if said.family == "result" else Place()


def is_within_step(said: Said) -> bool:
    """`step.checkpoint.written` and the like, which are not in the model: iterations and tasks have them too."""
    return said.family == "step" and said.name not in _STEP_ITSELF


def step_name(said: Said) -> str | None:
    """The step that it names, if it is about a step."""
    name = said.entity_id
    return name[5:] if name is not None and said.family != "step" and name.startswith("step:") else name


def task_label(said: Said) -> str | None:
    """`fetch`, of `fetch` and `task:fetch`; of a result also `task:fetch:attempt:3`."""
    label = said.entity_id
    if label is None or said.family == "task":
        return label
    if not label.startswith("task:"):
        return None
    return re.sub(r":attempt:\d{1,18}$", "", label[5:]) if said.family == "result" else label[5:]


def without_attempt(step_run_id: str) -> str:
    """Steps of plans have attempts, which are one run to us."""
    return _ATTEMPT.sub(r"\1", step_run_id) if ":attempt:" in step_run_id else step_run_id


# Steps


def _visit(run: Execution, said: Said) -> Visit | None:
    if said.step_run_id is not None:
        key = without_attempt(said.step_run_id)
        return run.visit(key, _name_for(key, said))
    if said.family != "step" and said.parent_id is not None:
        found = _visit_of_parent(run, said, said.parent_id)
        if found is not None:
            return found
    if said.iteration_id is not None and (match := _STEP_RUN.fullmatch(said.iteration_id)) is not None:
        return run.visit(match["run"], match["step"])
    if said.family == "task" or said.name == "policy.task.evaluated" or said.entity_id is None:
        return None
    if (match := _STEP_RUN.fullmatch(said.entity_id)) is not None:
        return run.visit(match["run"], match["step"])
    return _visit_by_name(run, said, step_name(said) or "")


def _name_for(step_run_id: str, said: Said) -> str | None:
    match = _STEP_RUN.fullmatch(step_run_id)
    if match is not None:
        return match["step"]
    return said.entity_id if said.family == "step" else None


def _visit_of_parent(run: Execution, said: Said, parent: str) -> Visit | None:
    if parent in run.rounds:
        return run.rounds[parent].visit
    key = without_attempt(parent)
    if key in run.visits:
        return run.visits[key]
    if (match := _STEP_RUN.fullmatch(parent)) is not None:
        return run.visit(match["run"], match["step"])
    if said.name == "policy.admit.evaluated" and parent not in run.workflow_ids and parent != said.execution_id:
        return run.visit(parent, step_name(said))
    name = parent.removeprefix("step:")
    return run.newest.get(name) if said.family in ("task", "loop") else None


_FITTING: dict[str, Callable[[Visit], bool]] = {
    "policy.admit.evaluated": lambda visit: not visit.scheduled,
    "step.scheduled": lambda visit: not visit.scheduled,
    "step.started": lambda visit: visit.scheduled and not visit.started,
    "step.done": lambda visit: visit.may_end,
    "step.failed": lambda visit: visit.may_end,
    "next.evaluated": lambda visit: not visit.routed and visit.may_route,
    "loop.started": lambda visit: visit.is_running and visit.loop is None,
}
_MAKING = frozenset({"policy.admit.evaluated", "step.scheduled"})


def _visit_by_name(run: Execution, said: Said, name: str) -> Visit:
    candidates = run.under_way(name)
    fits = _FITTING.get(said.name, _is_running)
    found = _first(candidates, fits)
    if found is None and said.name not in _MAKING:
        found = _first(candidates, _is_running) or run.newest.get(name)
    return run.next_visit(name) if found is None else found


def _is_running(visit: Visit) -> bool:
    return visit.is_running


def _first(candidates: Iterable[Visit], fits: Callable[[Visit], bool]) -> Visit | None:
    return next((visit for visit in candidates if fits(visit)), None)


# Iterations


def _round(run: Execution, visit: Visit, said: Said) -> Round | None:
    given, index = _iteration_id(run, visit, said), said.iteration
    if given is None and index is None:
        return None
    loop = visit.loop
    if loop is None:
        if not said.name.startswith("loop.iteration."):
            return Round(given or "", index, visit)
        loop = visit.loop = Loop()
    found = None if given is None else loop.rounds.get(given)
    if found is None and index is not None:
        found = loop.by_index.get(index)
        if found is not None and given is not None:
            found = _with_name(run, loop, found, given)
    if found is None:
        found = Round(
            given or f"{visit.step_run_id}:iteration:{index}", _index(given, index), visit, is_named=bool(given)
        )
        if said.name.startswith("loop.iteration."):
            _add(run, loop, found)
    return found


def _iteration_id(run: Execution, visit: Visit, said: Said) -> str | None:
    if said.iteration_id is not None:
        return said.iteration_id
    parent = said.parent_id
    if parent is not None and (parent in run.rounds or _names_iteration(parent)):
        return parent
    entity = said.entity_id
    if entity is None or not said.name.startswith("loop.iteration."):
        return None
    loop = None if visit.loop is None else visit.loop.entity_id
    is_own = said.iteration is None and entity not in (loop, visit.name, f"loop:{visit.name}", visit.step_run_id)
    return entity if is_own or _names_iteration(entity) else None


def _names_iteration(given: str) -> bool:
    """Not `step:load:iteration:3:run:1`, which is a run of a step of that name."""
    if ":iteration:" not in given:
        return False
    match = _STEP_RUN.fullmatch(given)
    return match is None or match["at"] is not None


def _with_name(run: Execution, loop: Loop, found: Round, given: str) -> Round | None:
    """One that was known by its number only is given its id; one that has another id is not meant."""
    if found.is_named:
        return None
    found.iteration_id, found.is_named = given, True
    loop.rounds[given] = run.rounds[given] = found
    return found


def _index(given: str | None, index: int | None) -> int | None:
    match = None if given is None or index is not None else _STEP_RUN.fullmatch(given)
    return index if match is None or match["at"] is None else int(match["at"])


def _add(run: Execution, loop: Loop, each: Round) -> None:
    loop.rounds[each.iteration_id] = run.rounds[each.iteration_id] = each
    loop.states[None] += 1
    if each.index is not None:
        loop.by_index.setdefault(each.index, each)


def index_in(iteration_id: str) -> int | None:
    """The number of an iteration that its id ends with."""
    match = _STEP_RUN.fullmatch(iteration_id)
    return None if match is None or match["at"] is None else int(match["at"])


# Tasks


def _task(place: Place, said: Said) -> TaskRun | None:
    pipeline = place.pipeline
    if pipeline is None or said.family == "loop" or said.name == "policy.admit.evaluated":
        return None
    key = said.task_run_id or (said.parent_id if said.family != "task" else None)
    if key in pipeline.tasks:
        return pipeline.tasks[key]
    if said.task_run_id is not None:
        return None  # it says which, and there is none such
    label = task_label(said)
    found = None if label is None else pipeline.by_label.get(label)
    return None if found is not None and said.name == "task.started" and found.ended is not None else found


def _by_task(run: Execution, said: Said) -> Place:
    """It names the task alone, as the model's own examples do."""
    found = next((task for task in _named_tasks(run, said) if task.is_awaiting), None)
    return Place(task=found or next(iter(_named_tasks(run, said)), None))


def _named_tasks(run: Execution, said: Said) -> Iterable[TaskRun]:
    key = said.task_run_id or said.parent_id or ""
    names = (key, label_in(key), task_label(said))
    tasks = next((run.open_tasks[name] for name in names if name is not None and run.open_tasks.get(name)), None)
    return (task for task in tasks or () if said.iteration is None or task.index == said.iteration)


def label_in(task_run_id: str) -> str | None:
    """`fetch`, of `task:fetch:run:2`."""
    match = _TASK_RUN.fullmatch(task_run_id)
    return None if match is None else match["label"]


def _of_result(run: Execution, said: Said) -> Place:
    place = Place()
    if said.step_run_id is not None:
        place.visit = run.visits.get(without_attempt(said.step_run_id))
    elif said.parent_id is not None:
        place.visit = _visit_of_parent(run, said, said.parent_id)
    if place.visit is not None:
        place.round = _round(run, place.visit, said)
        place.task = _task(place, said)
        return place
    return _by_task(run, said)
