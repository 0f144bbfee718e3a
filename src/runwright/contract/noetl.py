"""The same records in the words of the NoETL event model. Rendered when somebody asks, never stored."""

from __future__ import annotations

import re
from typing import Any, Literal

import msgspec

from .catalog import CATALOG, Role
from .events import RunEventRecord
from .paths import EntityPath, parse_path, signal_path

NAME = re.compile(r"[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*)+")
"""What a type may be called."""

ENTITIES = ("playbook", "workflow", "step", "task", "loop", "next", "policy", "result")
STATUSES = ("in_progress", "success", "error", "skipped", "paused")

_ENDS = {"RunCompleted": "COMPLETED", "RunFailed": "FAILED", "RunCancelled": "CANCELLED"}
_STATUS = {
    "requested": "in_progress",
    "scheduled": "in_progress",
    "started": "in_progress",
    "done": "success",
    "finished": "success",
    "processed": "success",
    "evaluated": "success",
    "failed": "error",
    "skipped": "skipped",
    "paused": "paused",
}
_OUTCOME = frozenset({"outcome", "result_ref"})
_AS_THEY_ARE = frozenset({"policy", "next", "result"})
"""Entities whose payloads the model spells out."""


class NoetlEvent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An event as `noetl_event` renders it: what its JSON Schema is made from."""

    event_id: str
    event_type: str
    event_alias: str
    timestamp: str
    execution_id: str
    source: Literal["server", "worker"]
    entity_type: str
    entity_id: str
    parent_id: str | None
    seq: int
    workflow_run_id: str
    step_run_id: str | None = None
    task_run_id: str | None = None
    iteration: int | None = None
    iteration_id: str | None = None
    attempt: int | None = None
    status: Literal["in_progress", "success", "error", "skipped", "paused"]
    duration_ms: int | None = None
    payload: dict[str, Any] = {}


SIGNAL = signal_path("")
"""How the paths of signals begin: they are about the whole run, and no step of it."""


def dotted_name(event_type: str) -> str:
    """The name of a type in the model; one from elsewhere keeps its own."""
    known = CATALOG.get(event_type)
    return event_type if known is None else known.dotted


def types_in(text: str) -> list[str]:
    """Our types that a list of names means; `playbook.finished` means three."""
    names = [name for part in text.split(",") if (name := part.strip())]
    return [kind for name in names for kind in _TYPES.get(name, [name])]


_TYPES: dict[str, list[str]] = {}
for _kind in CATALOG.values():
    _TYPES.setdefault(_kind.dotted, []).append(_kind.name)


def alias_of(dotted: str) -> str:
    """`task.attempt.failed` is shown as TaskAttemptFailed."""
    return "".join(part[:1].upper() + part[1:] for part in dotted.split("."))


def noetl_event(record: RunEventRecord) -> dict[str, Any]:
    """One record, as the model has it."""
    name = dotted_name(record.event_type)
    entity = name.partition(".")[0]
    is_of_step = record.step_id is not None and not record.step_id.startswith(SIGNAL)
    entity = entity if entity in ENTITIES else "step" if is_of_step else "playbook"
    place = parse_path(record.step_id) if is_of_step and record.step_id is not None else None
    payload: dict[str, Any] = dict(record.payload or {})
    event: dict[str, Any] = {
        "event_id": record.foreign_event_id or record.event_id,
        "event_type": name,
        "event_alias": alias_of(name),
        "timestamp": record.emitted_at,
        "execution_id": record.run_id,
        "source": _source(record),
        "entity_type": entity,
        "entity_id": _entity_id(entity, record, place),
        "parent_id": _parent_id(entity, record, place),
        "seq": record.run_seq,
        "workflow_run_id": workflow_id(record.run_id),
    }
    if place is not None:
        event["step_run_id"] = step_run_id(place)
        if place.indexes:
            event["iteration"] = place.indexes[-1]
            event["iteration_id"] = iteration_id(place)
        if place.task is not None:
            event["task_run_id"] = task_run_id(place)
    if record.logical_attempt_id > 1 or (place is not None and place.task is not None):
        event["attempt"] = record.logical_attempt_id
    event["status"] = "error" if record.event_type in ("RunFailed", "RunCancelled") else _status(name, payload)
    if isinstance(took := payload.pop("durationMs", None), int | float):
        event["duration_ms"] = round(took)
    event["payload"] = _payload(entity, record, payload)
    return event


def workflow_id(run_id: str) -> str:
    return f"workflow:{run_id}"


def step_run_id(place: EntityPath) -> str:
    """What is beneath a step that is on its second attempt says so: playbooks have no such attempts."""
    attempt = "" if place.attempt == 1 else f":attempt:{place.attempt}"
    return f"step:{place.step}:run:{place.visit}{attempt}"


def iteration_id(place: EntityPath) -> str:
    return f"{step_run_id(place)}:iteration:{'.'.join(map(str, place.indexes))}"


def task_run_id(place: EntityPath) -> str:
    """Unique within its parent: the run of a step, or an iteration of it."""
    return f"task:{place.task}:run:{place.task_visit}"


def _source(record: RunEventRecord) -> str:
    """Who said it, by its own word (`embedded/worker`), or as the catalogue has it."""
    said = (record.emitted_by or "").rpartition("/")[2]
    known = CATALOG.get(record.event_type)
    return said if said in tuple(Role) else str(Role.SERVER if known is None else known.role)


def _status(name: str, payload: dict[str, Any]) -> str:
    if payload.get("error") is not None and name.endswith(".evaluated"):
        return "error"
    return _STATUS.get(name.rpartition(".")[2], "success")


def _entity_id(entity: str, record: RunEventRecord, place: EntityPath | None) -> str:
    if place is None:
        return record.step_id or (record.run_id if entity == "workflow" else record.plan_id)
    if entity in ("next", "policy", "result"):
        owner = f"step:{place.step}" if place.task is None else f"task:{place.task}"
        return f"{owner}:attempt:{record.logical_attempt_id}" if entity == "result" and place.task else owner
    if entity == "task":
        return place.task or place.step
    return iteration_id(place) if entity == "loop" and place.indexes else place.step


def _parent_id(entity: str, record: RunEventRecord, place: EntityPath | None) -> str | None:
    """Who it belongs to: execution, workflow, step, iteration, task, in this order."""
    if place is None:
        return None if entity == "playbook" and record.step_id is None else record.run_id
    if place.task is not None and entity in ("policy", "result"):
        return task_run_id(place)
    if place.task is not None and place.indexes:
        return iteration_id(place)
    if place.task is not None or entity in ("next", "policy", "loop"):
        return step_run_id(place)
    return workflow_id(record.run_id)


def _payload(entity: str, record: RunEventRecord, payload: dict[str, Any]) -> dict[str, Any]:
    if entity in _AS_THEY_ARE or _OUTCOME & payload.keys():
        return payload
    shown: dict[str, Any] = {}
    if record.event_type in ("StepCompleted", "LoopIterationDone"):
        shown["outcome"] = {"status": "ok", "result": payload.pop("result", None)}
        if (ref := payload.pop("resultRef", None)) is not None:
            shown["result_ref"] = ref
    if (error := payload.pop("error", None)) is not None:
        shown["error"] = error
    if record.event_type == "RunCancelled":
        shown["error"] = {"kind": "cancelled", "message": payload.get("reason")}
    if record.event_type in _ENDS:
        payload["runStatus"] = _ENDS[record.event_type]
    if record.event_type == "RunQueued":
        payload["planVersion"] = record.plan_version
    if payload:
        shown["meta"] = payload
    return shown
