"""Events in the words of the NoETL event model, brought to ours. The way back from `noetl_event`.

What older executors emit is given its name of today; what no model knows keeps its own name, and changes nothing.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any, cast

import msgspec

from .catalog import CATALOG
from .envelope import LEGACY
from .errors import ErrorCode, RunwrightError
from .noetl import SIGNAL
from .paths import RESERVED, EntityPath
from .timestamps import from_micros, is_utc

_TODAY = {
    "playbook.initialized": "playbook.execution.requested",
    "playbook.completed": "playbook.finished",
    "playbook.failed": "playbook.finished",
    "playbook.cancelled": "playbook.finished",
    "workflow.initialized": "workflow.started",
    "workflow.completed": "workflow.finished",
    "workflow.failed": "workflow.finished",
    "command.issued": "step.scheduled",
    "step.enter": "step.started",
    "call.done": "task.done",
    "call.error": "task.failed",
    "call.failed": "task.failed",
}
"""What servers say that speak no model, and what it is in this one."""

_ENDING = {
    "step.exit": "step",
    "tool.processed": "task",
    "tool.completed": "task",
    "retry.processed": "task.attempt",
    "sink.processed": "task",
    "sink.done": "task",
    "sink.completed": "task",
}
"""Ends of which only the status says whether they were good."""

_STEP_RUN = re.compile(
    r"step:(?P<step>.+?):run:(?P<visit>\d{1,18})(?::attempt:(?P<attempt>\d{1,18}))?(?::iteration:(?P<at>[\d.]{1,80}))?"
)
_TASK_RUN = re.compile(r"task:(?P<task>.+?):run:(?P<visit>\d{1,18})")
_BAD = frozenset({"error", "failed", "failure", "fail", "cancelled"})
_OURS = {kind.dotted: name for name, kind in CATALOG.items() if not name.startswith(("RunFailed", "RunCancelled"))}
_AS_THEY_ARE = ("Task", "Policy", "Next", "Result")
_ENDS = (
    ("StepCompleted", "StepFailed", "StepSkipped"),
    ("TaskDone", "TaskFailed"),
    ("TaskAttemptDone", "TaskAttemptFailed"),
    ("LoopIterationDone", "LoopIterationFailed"),
)
_ATTEMPTED = frozenset({"TaskAttemptStarted", "TaskAttemptDone", "TaskAttemptFailed", "PolicyTaskEvaluated"})
MOST = 512  # characters of a text that names something


class Incoming(msgspec.Struct, frozen=True):
    """One event of theirs, in our words."""

    event_type: str
    run_id: str
    event_id: str
    emitted_at: str
    emitted_by: str | None
    place: EntityPath | str | None
    attempt: int
    payload: dict[str, Any]
    plan: tuple[str, str] | None = None  # id and version, where it says
    says_visit: bool = False  # which visit it belongs to is not for us to find out

    @property
    def step_id(self) -> str | None:
        return None if self.place is None else str(self.place)

    @property
    def spot(self) -> tuple[str, str | None, int]:
        """What an event is told by in a run; two of theirs may want the same."""
        return (self.event_type, self.step_id, self.attempt)

    @property
    def rivals(self) -> list[tuple[str, str | None, int]]:
        """Spots that must be free as well: what has ended one way cannot end another. A log that does not count visits
        means the next one."""
        others = () if self.says_visit else next((ends for ends in _ENDS if self.event_type in ends), ())
        return [(other, self.step_id, self.attempt) for other in others if other != self.event_type]

    def further(self) -> Incoming:
        """The same at the next spot: a further visit of its step or task, or a further attempt."""
        place = self.place
        if not isinstance(place, EntityPath) or self.event_type in _ATTEMPTED or (place.indexes and not place.task):
            return msgspec.structs.replace(self, attempt=self.attempt + 1)
        if place.task is not None:
            place = msgspec.structs.replace(place, task_visit=place.task_visit + 1)
        else:
            place = msgspec.structs.replace(place, visit=place.visit + 1)
        return msgspec.structs.replace(self, place=place)


class NoetlReader:
    """Reads one stream. It remembers which step a task's run belongs to, for policies name the task alone."""

    def __init__(self) -> None:
        self._tasks: dict[tuple[str, str], EntityPath] = {}

    def read(self, document: dict[str, Any]) -> Incoming:
        run_id, event_id = _text(document, "execution_id"), _text(document, "event_id")
        given = _text(document, "event_type")
        payload: Any = document.get("payload")
        payload = dict(cast("dict[str, Any]", payload)) if isinstance(payload, dict) else {}
        dotted = _canonical(given, str(document.get("status")), payload)
        name = _name(dotted, str(document.get("status")), payload)
        source = document.get("source")
        attempt = document.get("attempt")
        place = self._place(run_id, dotted, document)
        kind = CATALOG.get(name)
        if kind is not None and kind.level == "step" and place is None:
            raise _refused(f"{given} is about a step, and does not say which: give entity_id or step_run_id.")
        ours = _payload(name, payload, document.get("duration_ms"))
        if dotted != given:
            ours["legacyType"] = given
        return Incoming(
            event_type=name,
            run_id=run_id,
            event_id=event_id,
            emitted_at=_time(_text(document, "timestamp")),
            emitted_by=f"noetl/{source}" if source in ("server", "worker") else None,
            place=place,
            attempt=attempt if isinstance(attempt, int) and not isinstance(attempt, bool) and attempt > 0 else 1,
            payload=_fitting(name, ours),
            plan=_plan(dotted, document, ours),
            says_visit=any(isinstance(document.get(name), str) for name in ("step_run_id", "task_run_id")),
        )

    def _place(self, run_id: str, dotted: str, document: dict[str, Any]) -> EntityPath | str | None:
        """Whom it is about, as a path; what is no path stays the text it is."""
        entity = str(document.get("entity_type") or dotted.partition(".")[0])
        name = document.get("entity_id")
        name = name if isinstance(name, str) and name else None
        if name is not None and name.startswith(SIGNAL):
            return name
        if entity in ("playbook", "workflow") or (name is None and not document.get("step_run_id")):
            return None
        step, task = self._step(run_id, document), _task(entity, name, document)
        if step is None and task is None and name is not None:
            step = EntityPath(name.removeprefix("step:"))
        if task is not None and step is not None:
            step = msgspec.structs.replace(step, task=task[0], task_visit=task[1])
            for known in (document.get("task_run_id"), f"task:{task[0]}:run:{task[1]}"):
                if isinstance(known, str):
                    self._tasks[run_id, known] = step
        if step is None or not _can_be_path(step):
            parts = (document.get("parent_id"), name)
            return "/".join(str(part) for part in parts if part).replace("|", "¦")[:MOST] or None
        return step

    def _step(self, run_id: str, document: dict[str, Any]) -> EntityPath | None:
        for field in ("iteration_id", "step_run_id", "parent_id"):
            match = _STEP_RUN.fullmatch(str(document.get(field)))
            if match is not None:
                indexes = tuple(int(part) for part in (match["at"] or "").split(".") if part)
                at: Any = document.get("iteration")
                if not indexes and isinstance(at, int) and not isinstance(at, bool) and at >= 0:
                    indexes = (at,)
                return EntityPath(match["step"], int(match["visit"]), int(match["attempt"] or 1), indexes)
        for field in ("task_run_id", "parent_id"):
            known = self._tasks.get((run_id, str(document.get(field))))
            if known is not None:
                return known
        return None


def _task(entity: str, name: str | None, document: dict[str, Any]) -> tuple[str, int] | None:
    """The task's label and which visit of it, where it is about one."""
    for field in ("task_run_id", "parent_id"):
        match = _TASK_RUN.fullmatch(str(document.get(field)))
        if match is not None and entity in ("task", "policy", "result"):
            return match["task"], int(match["visit"])
    if entity == "task" and name is not None:
        return name.removeprefix("task:"), 1
    if entity in ("policy", "result") and name is not None and name.startswith("task:"):
        return name.removeprefix("task:").partition(":attempt:")[0], 1
    return None


def _can_be_path(place: EntityPath) -> bool:
    names = (place.step, place.task or "x")
    return all(name and not RESERVED & set(name) for name in names) and min(place.visit, place.task_visit) > 0


# Names


def _canonical(name: str, status: str, payload: dict[str, Any]) -> str:
    """The name of today."""
    if name in _TODAY:
        return _TODAY[name]
    entity = _ENDING.get(name)
    if entity is not None:
        return f"{entity}.failed" if _is_bad(status, payload) else f"{entity}.done"
    if LEGACY.fullmatch(name) is None:
        return name
    family, _, verb = name.partition(".")
    if family == "case":
        routes = {"next", "selected", "matched", "arcs", "route"} & payload.keys()
        return "next.evaluated" if routes else "policy.task.evaluated"
    is_end = verb.rpartition(".")[2] in ("failed", "error")
    entity = "task.attempt" if family == "retry" else "task"
    return f"{entity}.failed" if is_end else f"{entity}.started" if "start" in verb else f"{entity}.done"


def _is_bad(status: str, payload: dict[str, Any]) -> bool:
    outcome: Any = payload.get("outcome")
    inner = cast("dict[str, Any]", outcome).get("status") if isinstance(outcome, dict) else None
    return str(status).lower() in _BAD or str(inner).lower() in _BAD or payload.get("error") not in (None, {}, "")


def _name(dotted: str, status: str, payload: dict[str, Any]) -> str:
    if dotted != "playbook.finished":
        return _OURS.get(dotted, dotted)
    meta: Any = payload.get("meta")
    said = cast("dict[str, Any]", meta).get("runStatus") if isinstance(meta, dict) else None
    error: Any = payload.get("error")
    kind = cast("dict[str, Any]", error).get("kind") if isinstance(error, dict) else None
    if said == "CANCELLED" or kind == "cancelled" or status == "cancelled":
        return "RunCancelled"
    return "RunFailed" if said == "FAILED" or _is_bad(status, payload) else "RunCompleted"


# Payloads


def _payload(name: str, payload: dict[str, Any], took: Any) -> dict[str, Any]:
    """As ours of this type has it: what the model puts into `meta` and `outcome` goes back to its place."""
    duration = {"durationMs": took} if isinstance(took, int | float) and not isinstance(took, bool) else {}
    if name.startswith(_AS_THEY_ARE) or name not in CATALOG:
        error = {"error": _error(payload["error"])} if payload.get("error") is not None else {}
        return {**payload, **error, **duration}
    ours = {key: value for key, value in payload.items() if key not in ("meta", "outcome", "result_ref", "error")}
    meta, outcome, error = payload.get("meta"), payload.get("outcome"), payload.get("error")
    if isinstance(meta, dict):
        ours |= {key: value for key, value in cast("dict[str, Any]", meta).items() if key != "runStatus"}
    if payload.get("result_ref") is not None:
        ours["resultRef"] = payload["result_ref"]
    elif isinstance(outcome, dict) and "result" in outcome:
        ours["result"] = outcome["result"]
    if error is None and isinstance(outcome, dict):
        error = cast("dict[str, Any]", outcome).get("error")
    if error is not None and name != "RunCancelled":
        ours["error"] = _error(error)
    return {**ours, **duration}


def _error(error: Any) -> dict[str, Any]:
    return cast("dict[str, Any]", error) if isinstance(error, dict) else {"message": str(error)}


def _fitting(name: str, payload: dict[str, Any]) -> dict[str, Any]:
    """What does not fit our type is kept whole, under a name of its own."""
    kind = CATALOG.get(name)
    if kind is None:
        return payload
    try:
        msgspec.convert(payload, kind.payload)
    except msgspec.ValidationError:
        return {"noetl": payload}
    return payload


def _plan(dotted: str, document: dict[str, Any], payload: dict[str, Any]) -> tuple[str, str] | None:
    if not dotted.startswith("playbook."):
        return None
    name, version = document.get("entity_id"), payload.pop("planVersion", None)
    if not isinstance(name, str) or not name:
        return None
    return name.replace("|", "¦")[:MOST], version if isinstance(version, str) and version else "noetl"


def _time(text: str) -> str:
    if is_utc(text):
        return text
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        raise _refused(f"timestamp {text[:40]!r} is no RFC 3339 time with its zone, such as 2026-02-05T23:11:22Z.")
    return from_micros(int(moment.astimezone(UTC).timestamp() * 1e6))


def _text(document: dict[str, Any], name: str) -> str:
    value = document.get(name)
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)  # some servers count their executions and events
    if not isinstance(value, str) or not value:
        raise _refused(f"{name} must be there, and be text.")
    return value


def _refused(sentence: str) -> RunwrightError:
    return RunwrightError(ErrorCode.SCHEMA_VALIDATION_FAILED, sentence)
