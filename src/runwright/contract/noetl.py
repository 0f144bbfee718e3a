"""The same records in the words of the NoETL event model. Rendered when somebody asks, never stored."""

from __future__ import annotations

import re
from typing import Any, Literal, cast

import msgspec

from .catalog import CATALOG, Role
from .events import RunEventRecord, RunEventWrite
from .noetl_rest import BAD, REST, is_duration, with_rest
from .noetl_rest import ENTITIES as ENTITIES
from .noetl_rest import STATUSES as STATUSES
from .paths import EntityPath, parse_path, signal_path

NAME = re.compile(r"[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*)+")
"""What a type may be called."""

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
_TRIED = ("step", "loop", "task", "result")
"""What there are attempts of. A second decision is none."""

ORDINALS = frozenset({"CheckpointWritten", "PolicyAdmitEvaluated"})
"""Types of which there may be several for one entity: their ordinal is no attempt."""

_AS_THEY_ARE = ("Task", "Policy", "Next", "Result")
"""Types whose payloads the model spells out."""

BEGINNINGS = ("TaskStarted", "TaskAttemptStarted")
"""Of these, who took the task up goes to `meta`."""


class NoetlEvent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An event as `noetl_event` renders it: what its JSON Schema is made from."""

    event_id: str
    event_type: str
    event_alias: str
    timestamp: str
    execution_id: str
    source: Literal["server", "worker"]
    entity_type: str
    entity_id: str | None
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
    """One record, as the model has it; one that came from elsewhere, as it came."""
    payload = dict(record.payload or {})
    rest = payload.pop(REST, None)
    return with_rest(rendered(record, payload, record.run_seq), rest)


def rendered(record: RunEventWrite, payload: dict[str, Any], seq: int) -> dict[str, Any]:
    """What our own fields say. The payload is used up."""
    name = dotted_name(record.event_type)
    entity = name.partition(".")[0]
    is_of_step = record.step_id is not None and not record.step_id.startswith(SIGNAL)
    entity = entity if entity in ENTITIES else "step" if is_of_step else "playbook"
    place = parse_path(record.step_id) if is_of_step and record.step_id is not None else None
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
        "seq": seq,
        "workflow_run_id": workflow_id(record.run_id),
    }
    if place is not None:
        event["step_run_id"] = step_run_id(place)
        if place.indexes:
            event["iteration"] = place.indexes[-1]
            event["iteration_id"] = iteration_id(place)
        if place.task is not None:
            event["task_run_id"] = task_run_id(place)
    is_tried = record.logical_attempt_id > 1 and entity in _TRIED
    if record.event_type not in ORDINALS and (is_tried or (place is not None and place.task is not None)):
        event["attempt"] = record.logical_attempt_id
    event["status"] = _status(record.event_type, name, payload)
    if is_duration(took := payload.pop("durationMs", _duration_within(payload))):
        event["duration_ms"] = round(took)
    event["payload"] = _payload(record, payload)
    return event


def is_as_it_is(event_type: str) -> bool:
    """Whether ours have the payload in the model's own shape; so do types from elsewhere."""
    return event_type.startswith(_AS_THEY_ARE) or event_type not in CATALOG


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


def _source(record: RunEventWrite) -> str:
    """Who said it, by its own word (`embedded/worker`), or as the catalogue has it."""
    said = (record.emitted_by or "").rpartition("/")[2]
    known = CATALOG.get(record.event_type)
    return said if said in tuple(Role) else str(Role.SERVER if known is None else known.role)


def _status(event_type: str, name: str, payload: dict[str, Any]) -> str:
    if event_type in ("RunFailed", "RunCancelled"):
        return "error"
    if event_type == "WorkflowFinished" and payload.get("runStatus") in ("FAILED", "CANCELLED"):
        return "error"
    if event_type == "LoopDone" and payload.get("stepFailed") is True:
        return "error"
    if payload.get("error") is not None and name.endswith(".evaluated"):
        return "error"
    if str(payload.get("legacyType")).rpartition(".")[2] in BAD:
        return "error"
    return _STATUS.get(name.rpartition(".")[2], "success")


def _duration_within(payload: dict[str, Any]) -> Any:
    """How long a task took stands in its outcome."""
    found: Any = payload
    for name in ("outcome", "meta", "duration_ms"):
        found = cast("dict[str, Any]", found).get(name) if isinstance(found, dict) else None
    return found


def _entity_id(entity: str, record: RunEventWrite, place: EntityPath | None) -> str | None:
    if place is None:
        return record.step_id or {"workflow": record.run_id, "playbook": record.plan_id}.get(entity)
    if entity in ("next", "policy", "result"):
        owner = f"step:{place.step}" if place.task is None else f"task:{place.task}"
        return f"{owner}:attempt:{record.logical_attempt_id}" if entity == "result" and place.task else owner
    if entity == "task":
        return place.task or place.step
    return iteration_id(place) if place.indexes and place.task is None else place.step


def _parent_id(entity: str, record: RunEventWrite, place: EntityPath | None) -> str | None:
    """Who it belongs to: execution, workflow, step, iteration, task, in this order."""
    if place is None:
        return None if entity == "playbook" and record.step_id is None else record.run_id
    if place.task is not None and entity in ("policy", "result"):
        return task_run_id(place)
    if place.task is not None and place.indexes:
        return iteration_id(place)
    if place.task is not None or place.indexes or entity in ("next", "policy", "loop", "result"):
        return step_run_id(place)
    return workflow_id(record.run_id)


def _payload(record: RunEventWrite, payload: dict[str, Any]) -> dict[str, Any]:
    if is_as_it_is(record.event_type):
        if payload.get("error") is not None:
            payload["error"] = _with_kind(payload["error"])
        return _with_worker(payload) if record.event_type in BEGINNINGS else payload
    shown: dict[str, Any] = {}
    if record.event_type in ("StepCompleted", "LoopIterationDone"):
        shown["outcome"] = {"status": "ok"}
        if (ref := payload.pop("resultRef", None)) is not None:
            shown["result_ref"] = ref
        else:
            shown["outcome"]["result"] = payload.pop("result", None)
    if (error := payload.pop("error", None)) is not None:
        shown["error"] = _with_kind(error)
    if record.event_type == "RunCancelled":
        shown["error"] = {"kind": "cancelled", "message": payload.get("reason")}
    if record.event_type in _ENDS:
        payload["runStatus"] = _ENDS[record.event_type]
    if record.event_type == "RunQueued":
        payload["planVersion"] = record.plan_version
    if payload:
        shown["meta"] = payload
    return shown


def _with_worker(payload: dict[str, Any]) -> dict[str, Any]:
    meta: Any = payload.get("meta", {})
    if "worker" not in payload or not isinstance(meta, dict):
        return payload
    others = {name: value for name, value in payload.items() if name != "worker"}
    return {**others, "meta": {**cast("dict[str, Any]", meta), "worker": payload["worker"]}}


def _with_kind(error: Any) -> Any:
    """The model tells errors apart by kind; ours of a step call it a category."""
    if not isinstance(error, dict):
        return error
    facts = cast("dict[str, Any]", error)
    return facts if "kind" in facts or not facts.get("category") else {"kind": facts["category"], **facts}
