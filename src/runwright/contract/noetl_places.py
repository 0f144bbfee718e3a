"""Whom an event of NoETL is about, as one of our paths.

Some ids say it (`step:fetch:run:2`), others are known only to whoever has seen the run so far (`sr-4711`, or the run of
a task without its step). What cannot be found out stays the text that it is, and is no path.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from .noetl import SIGNAL, task_run_id
from .paths import RESERVED, EntityPath

MOST = 512  # characters of a text that names something

_STEP_RUN = re.compile(
    r"step:(?P<step>.+?):run:(?P<visit>\d{1,18})(?::attempt:(?P<attempt>\d{1,18}))?(?::iteration:(?P<at>[\d.]{1,80}))?",
    re.ASCII,
)
_TASK_RUN = re.compile(r"task:(?P<task>.+?):run:(?P<visit>\d{1,18})", re.ASCII)
_TASK_TRY = re.compile(r"task:(?P<task>.+?)(?::attempt:(?P<attempt>\d{1,18}))?", re.ASCII)
_OF_STEPS = ("iteration_id", "step_run_id", "parent_id")
_OF_TASKS = ("task_run_id", "parent_id")
_ABOUT_TASKS = ("task", "policy", "result")


class Whereabouts:
    """What is known of one run: which paths the ids of its steps and tasks stand for."""

    def __init__(self) -> None:
        self._steps: dict[str, EntityPath] = {}
        self._tasks: dict[tuple[str, int | None], EntityPath] = {}  # within an iteration, and the latest of all
        self._older: dict[tuple[str, int | None], EntityPath] = {}  # the same, as the log had it before
        self._named: dict[str, int] = {}  # of a step: its latest visit that has an id of its own

    def learn(self, place: EntityPath, ids: dict[str, Any], *, is_old: bool = False) -> None:
        """An event with these ids is there. `is_old`: it was so before any of this stream came."""
        step = msgspec.structs.replace(place, task=None, task_visit=1)
        visit = msgspec.structs.replace(step, indexes=())
        for field, path in (("step_run_id", visit), ("iteration_id", step)):
            given = ids.get(field)
            if isinstance(given, str) and _STEP_RUN.fullmatch(given) is None and given not in self._steps:
                self._steps[given] = path
                self._named[place.step] = max(self._named.get(place.step, 0), place.visit)
        if place.task is None:
            return
        tasks = self._older if is_old else self._tasks
        for given in (ids.get("task_run_id"), task_run_id(place)):
            if isinstance(given, str):
                tasks[given, None] = place
                tasks[given, place.indexes[-1] if place.indexes else None] = place

    def is_lost(self, entity: str, document: dict[str, Any]) -> bool:
        """Whether it names something by ids that mean nothing here. The log may know more."""
        if entity in ("playbook", "workflow"):
            return False
        if any(isinstance(given := document.get(field), str) and not self._find(given) for field in _OF_STEPS[:2]):
            return True
        return entity in _ABOUT_TASKS and self._is_guess(document)

    def place(self, entity: str, document: dict[str, Any]) -> EntityPath | str | None:
        """A path; where there is none, the text that names it; None for what is about the whole run."""
        name = document.get("entity_id")
        name = name if isinstance(name, str) and name else None
        if name is not None and name.startswith(SIGNAL):
            return name
        known = name or document.get("step_run_id")
        if entity in ("playbook", "workflow") or (entity == "step" and not known):
            return None
        step, task = self._step(document), _task(entity, name, document)
        known = known or document.get("task_run_id")
        if step is None and task is None and not known:
            return None
        if step is None and task is None and name is not None:
            step = self._by_name(name.removeprefix("step:"), document)
        if task is not None and step is not None and step.task is None:
            step = msgspec.structs.replace(step, task=task[0], task_visit=task[1])
        if step is not None and _can_be_path(step):
            return step
        owner = None if entity == "step" else document.get("parent_id") or document.get("step_run_id")
        parts = (owner, known)
        text = "/".join(str(part) for part in parts if part).replace("|", "¦")[:MOST]
        return f"/{text}" if task is not None else text or None

    def _step(self, document: dict[str, Any]) -> EntityPath | None:
        """The run of a step, the iteration or the run of a task that it belongs to."""
        index = _iteration(document)
        named = [given for field in _OF_STEPS if isinstance(given := document.get(field), str)]
        own = str(document.get("entity_id"))
        ways = (
            (_read, [*named, own]),
            (self._steps.get, named),
        )  # what ids say by themselves, then what they mean here
        for find, ids in ways:
            found = next((path for given in ids if (path := find(given)) is not None), None)
            if found is not None:
                is_whole = found.indexes or index is None
                return found if is_whole else msgspec.structs.replace(found, indexes=(index,))
        for field in _OF_TASKS:
            given = document.get(field)
            if isinstance(given, str) and (known := self._task_at(given, index)) is not None:
                return known
        return None

    def _is_guess(self, document: dict[str, Any]) -> bool:
        """Whether the run of a task is all that it names, and this stream has not had it in that iteration."""
        if any(isinstance(given := document.get(field), str) and self._find(given) for field in _OF_STEPS):
            return False
        given = next((given for field in _OF_TASKS if isinstance(given := document.get(field), str)), None)
        return given is not None and (given, _iteration(document)) not in self._tasks

    def _find(self, given: str) -> EntityPath | None:
        return _read(given) or self._steps.get(given)

    def _task_at(self, given: str, index: int | None) -> EntityPath | None:
        spots = [(known, at) for at in (index, None) for known in (self._tasks, self._older)]
        found = next((known[given, at] for known, at in spots if (given, at) in known), None)
        if found is None or index is None or found.indexes[-1:] == (index,):
            return found
        return msgspec.structs.replace(found, indexes=(*found.indexes[:-1], index))

    def _by_name(self, name: str, document: dict[str, Any]) -> EntityPath:
        """A step that has an id of its own, which nobody has seen before, is visited anew."""
        has_id = isinstance(document.get("step_run_id"), str)
        return EntityPath(name, self._named.get(name, 0) + 1 if has_id else 1)


def attempt_in(document: dict[str, Any]) -> int | None:
    """The attempt that a result is of, as its name has it."""
    match = _TASK_TRY.fullmatch(str(document.get("entity_id")))
    return None if match is None or match["attempt"] is None else int(match["attempt"])


def _iteration(document: dict[str, Any]) -> int | None:
    at: Any = document.get("iteration")
    return at if isinstance(at, int) and not isinstance(at, bool) and at >= 0 else None


def _read(given: str) -> EntityPath | None:
    match = _STEP_RUN.fullmatch(given)
    if match is None:
        return None
    indexes = tuple(int(part) for part in (match["at"] or "").split(".") if part)
    return EntityPath(match["step"], int(match["visit"]), int(match["attempt"] or 1), indexes)


def _task(entity: str, name: str | None, document: dict[str, Any]) -> tuple[str, int] | None:
    """The task's label and which visit of it, where it is about one."""
    if entity not in _ABOUT_TASKS:
        return None
    for field in _OF_TASKS:
        match = _TASK_RUN.fullmatch(str(document.get(field)))
        if match is not None:
            return match["task"], int(match["visit"])
    if entity == "task" and name is not None:
        return name.removeprefix("task:"), 1
    match = _TASK_TRY.fullmatch(name or "")
    return None if match is None else (match["task"], 1)


def _can_be_path(place: EntityPath) -> bool:
    names = (place.step, place.task or "x")
    return all(name and not RESERVED & set(name) for name in names) and min(place.visit, place.task_visit) > 0
