"""Resolve the ids of a NoETL event to an entity path.

Some ids contain the path (`step:fetch:run:2`). Others can only be resolved with the earlier events of the run: opaque
ids (`sr-4711`), and task runs without their step. Ids that cannot be resolved remain text, which is not a path.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import msgspec

from runwright.contract.envelope import MAX_ID_CHARS
from runwright.contract.paths import RESERVED, EntityPath

from .view import SIGNAL_PREFIX, task_run_id

_STEP_RUN = re.compile(
    r"step:(?P<step>.+?):run:(?P<visit>\d{1,18})(?::attempt:(?P<attempt>\d{1,18}))?(?::iteration:(?P<at>[\d.]{1,80}))?",
    re.ASCII,
)
_TASK_RUN = re.compile(r"task:(?P<task>.+?):run:(?P<visit>\d{1,18})", re.ASCII)
_TASK_ATTEMPT = re.compile(r"task:(?P<task>.+?)(?::attempt:(?P<attempt>\d{1,18}))?", re.ASCII)
_STEP_ID_FIELDS = ("iteration_id", "step_run_id", "parent_id")
_TASK_ID_FIELDS = ("task_run_id", "parent_id")
_TASK_ENTITIES = ("task", "policy", "result")

_TaskKey = tuple[str, int | None]
"""The id of a task run, and the index of its iteration; None for the latest in any iteration."""


class _TaskVisit(NamedTuple):
    label: str
    visit: int


class EntityResolver:
    """Maps the ids of steps and tasks of one run to entity paths."""

    def __init__(self) -> None:
        self._steps: dict[str, EntityPath] = {}
        self._tasks: dict[_TaskKey, EntityPath] = {}  # from this stream
        self._stored_tasks: dict[_TaskKey, EntityPath] = {}  # from events that the log had before
        self._latest_visits: dict[str, int] = {}  # by step: its latest visit with an opaque id

    def learn(self, path: EntityPath, ids: dict[str, Any], *, is_stored: bool = False) -> None:
        """Record that an event with these ids has this path. `is_stored`: the log had it before this stream."""
        step = msgspec.structs.replace(path, task=None, task_visit=1)
        visit = msgspec.structs.replace(step, indexes=())
        for field, owner in (("step_run_id", visit), ("iteration_id", step)):
            value = ids.get(field)
            if isinstance(value, str) and _STEP_RUN.fullmatch(value) is None and value not in self._steps:
                self._steps[value] = owner
                self._latest_visits[path.step] = max(self._latest_visits.get(path.step, 0), path.visit)
        if path.task is None:
            return
        tasks = self._stored_tasks if is_stored else self._tasks
        for value in (ids.get("task_run_id"), task_run_id(path)):
            if isinstance(value, str):
                tasks[value, None] = path
                tasks[value, path.indexes[-1] if path.indexes else None] = path

    def has_unknown_ids(self, entity: str, document: dict[str, Any]) -> bool:
        """Whether the event has ids that were not learned yet. Stored events of the run may resolve them."""
        if entity in ("playbook", "workflow"):
            return False
        if any(not self._find_step(value) for value in _texts(document, _STEP_ID_FIELDS[:2])):
            return True
        return entity in _TASK_ENTITIES and self._is_unknown_task(document)

    def resolve(self, entity: str, document: dict[str, Any]) -> EntityPath | str | None:
        """Return the path; the identifying text if it cannot be resolved; None if the event is about the whole run."""
        name = document.get("entity_id")
        name = name if isinstance(name, str) and name else None
        if name is not None and name.startswith(SIGNAL_PREFIX):
            return name
        own_id = name or document.get("step_run_id")
        if entity in ("playbook", "workflow") or (entity == "step" and not own_id):
            return None
        path, task = self._resolve_owner(document), _task_visit(entity, name, document)
        own_id = own_id or document.get("task_run_id")
        if path is None and task is None and not own_id:
            return None
        if path is None and task is None and name is not None:
            path = self._path_by_name(name.removeprefix("step:"), document)
        if task is not None and path is not None and path.task is None:
            path = msgspec.structs.replace(path, task=task.label, task_visit=task.visit)
        if path is not None and _is_valid(path):
            return path
        parent_id = None if entity == "step" else document.get("parent_id") or document.get("step_run_id")
        text = "/".join(str(part) for part in (parent_id, own_id) if part).replace("|", "¦")[:MAX_ID_CHARS]
        return f"/{text}" if task is not None else text or None

    def _resolve_owner(self, document: dict[str, Any]) -> EntityPath | None:
        """Return the path of the step visit, iteration or task run that the event belongs to."""
        index = _iteration(document)
        ids = _texts(document, _STEP_ID_FIELDS)
        own_id = str(document.get("entity_id"))
        # Ids that contain the path come first, then ids that were learned.
        for find, candidates in ((_parse_step_run, [*ids, own_id]), (self._steps.get, ids)):
            found = next((path for value in candidates if (path := find(value)) is not None), None)
            if found is not None:
                has_iteration = found.indexes or index is None
                return found if has_iteration else msgspec.structs.replace(found, indexes=(index,))
        for value in _texts(document, _TASK_ID_FIELDS):
            if (known := self._find_task(value, index)) is not None:
                return known
        return None

    def _is_unknown_task(self, document: dict[str, Any]) -> bool:
        """Whether the event has only the id of a task run, and this stream has not had it in that iteration."""
        if any(self._find_step(value) for value in _texts(document, _STEP_ID_FIELDS)):
            return False
        task_ids = _texts(document, _TASK_ID_FIELDS)
        return bool(task_ids) and (task_ids[0], _iteration(document)) not in self._tasks

    def _find_step(self, step_run_id: str) -> EntityPath | None:
        return _parse_step_run(step_run_id) or self._steps.get(step_run_id)

    def _find_task(self, run_id: str, index: int | None) -> EntityPath | None:
        candidates = [(tasks, at) for at in (index, None) for tasks in (self._tasks, self._stored_tasks)]
        found = next((tasks[run_id, at] for tasks, at in candidates if (run_id, at) in tasks), None)
        if found is None or index is None or found.indexes[-1:] == (index,):
            return found
        return msgspec.structs.replace(found, indexes=(*found.indexes[:-1], index))

    def _path_by_name(self, name: str, document: dict[str, Any]) -> EntityPath:
        """Return the path of a step known by name only: a further visit if the event has a new id, else the first."""
        has_id = isinstance(document.get("step_run_id"), str)
        return EntityPath(name, self._latest_visits.get(name, 0) + 1 if has_id else 1)


def attempt_of_entity(document: dict[str, Any]) -> int | None:
    """Return the attempt in the entity id of a result, if there is one."""
    match = _TASK_ATTEMPT.fullmatch(str(document.get("entity_id")))
    return None if match is None or match["attempt"] is None else int(match["attempt"])


def _texts(document: dict[str, Any], fields: tuple[str, ...]) -> list[str]:
    return [value for field in fields if isinstance(value := document.get(field), str)]


def _iteration(document: dict[str, Any]) -> int | None:
    index: Any = document.get("iteration")
    return index if isinstance(index, int) and not isinstance(index, bool) and index >= 0 else None


def _parse_step_run(text: str) -> EntityPath | None:
    match = _STEP_RUN.fullmatch(text)
    if match is None:
        return None
    indexes = tuple(int(part) for part in (match["at"] or "").split(".") if part)
    return EntityPath(match["step"], int(match["visit"]), int(match["attempt"] or 1), indexes)


def _task_visit(entity: str, name: str | None, document: dict[str, Any]) -> _TaskVisit | None:
    """Return the task that the event is about; None if it is about none."""
    if entity not in _TASK_ENTITIES:
        return None
    for field in _TASK_ID_FIELDS:
        match = _TASK_RUN.fullmatch(str(document.get(field)))
        if match is not None:
            return _TaskVisit(match["task"], int(match["visit"]))
    if entity == "task" and name is not None:
        return _TaskVisit(name.removeprefix("task:"), 1)
    match = _TASK_ATTEMPT.fullmatch(name or "")
    return None if match is None else _TaskVisit(match["task"], 1)


def _is_valid(path: EntityPath) -> bool:
    names = (path.step, path.task or "x")
    return all(name and not RESERVED & set(name) for name in names) and min(path.visit, path.task_visit) > 0
