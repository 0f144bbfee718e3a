"""Render records as events of the NoETL event model. They are rendered on request and never stored."""

from __future__ import annotations

import re
from typing import Any, Literal, cast

import msgspec

from runwright.contract.catalog import CATALOG, Role
from runwright.contract.events import RunEventRecord, RunEventWrite
from runwright.contract.paths import EntityPath, parse_path, signal_path

from .extras import ENTITIES, EXTRAS, FAILURE_STATUSES, is_duration, with_extra_fields

NAME_PATTERN = re.compile(r"[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*)+")
"""Names of event types in the model."""

_RUN_STATUSES = {"RunCompleted": "COMPLETED", "RunFailed": "FAILED", "RunCancelled": "CANCELLED"}
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
_ENTITIES_WITH_ATTEMPTS = ("step", "loop", "task", "result")
"""Entities that have attempts. A repeated decision is not an attempt."""

ORDINAL_TYPES = frozenset({"CheckpointWritten", "ChildRunInitiated", "PolicyAdmitEvaluated"})
"""Types that occur several times for one entity: `logicalAttemptId` is their ordinal, not an attempt."""

_MODEL_PAYLOAD_PREFIXES = ("Task", "Policy", "Next", "Result")
"""Prefixes of types whose payloads the model specifies."""

TASK_START_TYPES = ("TaskStarted", "TaskAttemptStarted")
"""Types whose `worker` is rendered in `meta`."""


class NoetlEvent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An event as `noetl_event` renders it; source of its schema in the OpenAPI document."""

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


SIGNAL_PREFIX = signal_path("")
"""Prefix of the paths of signals, which are about the whole run and not about a step."""


def dotted_name(event_type: str) -> str:
    """Return the model's name of a type; a type that is not in the catalogue keeps its own."""
    known = CATALOG.get(event_type)
    return event_type if known is None else known.dotted


def parse_event_types(text: str) -> list[str]:
    """Parse a comma-separated list of names into event types; `playbook.finished` stands for three."""
    names = [name for part in text.split(",") if (name := part.strip())]
    return [kind for name in names for kind in _TYPES.get(name, [name])]


_TYPES: dict[str, list[str]] = {}
for _kind in CATALOG.values():
    _TYPES.setdefault(_kind.dotted, []).append(_kind.name)


def alias_of(dotted: str) -> str:
    """Return the alias of a name: TaskAttemptFailed for `task.attempt.failed`."""
    return "".join(part[:1].upper() + part[1:] for part in dotted.split("."))


def noetl_event(record: RunEventRecord) -> dict[str, Any]:
    """Render a record as an event of the model; an imported one as it was received."""
    payload = dict(record.payload or {})
    extras = payload.pop(EXTRAS, None)
    return with_extra_fields(render_event(record, payload, record.run_seq), extras)


def render_event(record: RunEventWrite, payload: dict[str, Any], seq: int) -> dict[str, Any]:
    """Render an event without the extra fields of an imported one. Consumes `payload`."""
    name = dotted_name(record.event_type)
    entity = name.partition(".")[0]
    is_step_event = record.step_id is not None and not record.step_id.startswith(SIGNAL_PREFIX)
    entity = entity if entity in ENTITIES else "step" if is_step_event else "playbook"
    path = parse_path(record.step_id) if is_step_event and record.step_id is not None else None
    event: dict[str, Any] = {
        "event_id": record.foreign_event_id or record.event_id,
        "event_type": name,
        "event_alias": alias_of(name),
        "timestamp": record.emitted_at,
        "execution_id": record.run_id,
        "source": _source(record),
        "entity_type": entity,
        "entity_id": _entity_id(entity, record, path),
        "parent_id": _parent_id(entity, record, path),
        "seq": seq,
        "workflow_run_id": workflow_id(record.run_id),
    }
    if path is not None:
        event["step_run_id"] = step_run_id(path)
        if path.indexes:
            event["iteration"] = path.indexes[-1]
            event["iteration_id"] = iteration_id(path)
        if path.task is not None:
            event["task_run_id"] = task_run_id(path)
    is_retry = record.logical_attempt_id > 1 and entity in _ENTITIES_WITH_ATTEMPTS
    if record.event_type not in ORDINAL_TYPES and (is_retry or (path is not None and path.task is not None)):
        event["attempt"] = record.logical_attempt_id
    event["status"] = _status(record.event_type, name, payload)
    if is_duration(duration_ms := payload.pop("durationMs", _outcome_duration(payload))):
        event["duration_ms"] = round(duration_ms)
    event["payload"] = _payload(record, payload)
    return event


def has_model_payload(event_type: str) -> bool:
    """Whether payloads of a type have the shape of the model; those of types outside of the catalogue do."""
    return event_type.startswith(_MODEL_PAYLOAD_PREFIXES) or event_type not in CATALOG


def workflow_id(run_id: str) -> str:
    return f"workflow:{run_id}"


def step_run_id(path: EntityPath) -> str:
    """Return the id of a visit. The step's attempt is part of it from the second on; only plans have such attempts."""
    attempt = "" if path.attempt == 1 else f":attempt:{path.attempt}"
    return f"step:{path.step}:run:{path.visit}{attempt}"


def iteration_id(path: EntityPath) -> str:
    return f"{step_run_id(path)}:iteration:{'.'.join(map(str, path.indexes))}"


def task_run_id(path: EntityPath) -> str:
    """Return the id of a task run, which is unique within its parent: a step run or an iteration."""
    return f"task:{path.task}:run:{path.task_visit}"


def _source(record: RunEventWrite) -> str:
    """Return the emitter's role as it specified it (`embedded/worker`), otherwise that of the catalogue."""
    role = (record.emitted_by or "").rpartition("/")[2]
    known = CATALOG.get(record.event_type)
    return role if role in tuple(Role) else str(Role.SERVER if known is None else known.role)


def _status(event_type: str, name: str, payload: dict[str, Any]) -> str:
    if event_type in ("RunFailed", "RunCancelled"):
        return "error"
    if event_type == "WorkflowFinished" and payload.get("runStatus") in ("FAILED", "CANCELLED"):
        return "error"
    if event_type == "LoopDone" and payload.get("stepFailed") is True:
        return "error"
    if payload.get("error") is not None and name.endswith(".evaluated"):
        return "error"
    if str(payload.get("legacyType")).rpartition(".")[2] in FAILURE_STATUSES:
        return "error"
    return _STATUS.get(name.rpartition(".")[2], "success")


def _outcome_duration(payload: dict[str, Any]) -> Any:
    """Return the duration of a task, which is part of its outcome."""
    found: Any = payload
    for name in ("outcome", "meta", "duration_ms"):
        found = cast("dict[str, Any]", found).get(name) if isinstance(found, dict) else None
    return found


def _entity_id(entity: str, record: RunEventWrite, path: EntityPath | None) -> str | None:
    if path is None:
        return record.step_id or {"workflow": record.run_id, "playbook": record.plan_id}.get(entity)
    if entity in ("next", "policy", "result"):
        owner = f"step:{path.step}" if path.task is None else f"task:{path.task}"
        return f"{owner}:attempt:{record.logical_attempt_id}" if entity == "result" and path.task else owner
    if entity == "task":
        return path.task or path.step
    return iteration_id(path) if path.indexes and path.task is None else path.step


def _parent_id(entity: str, record: RunEventWrite, path: EntityPath | None) -> str | None:
    """Return the parent: execution, workflow, step, iteration or task, from the outermost to the innermost."""
    if path is None:
        return None if entity == "playbook" and record.step_id is None else record.run_id
    if path.task is not None and entity in ("policy", "result"):
        return task_run_id(path)
    if path.task is not None and path.indexes:
        return iteration_id(path)
    if path.task is not None or path.indexes or entity in ("next", "policy", "loop", "result"):
        return step_run_id(path)
    return workflow_id(record.run_id)


def _payload(record: RunEventWrite, payload: dict[str, Any]) -> dict[str, Any]:
    if has_model_payload(record.event_type):
        if payload.get("error") is not None:
            payload["error"] = _with_kind(payload["error"])
        return _with_worker(payload) if record.event_type in TASK_START_TYPES else payload
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
    if record.event_type in _RUN_STATUSES:
        payload["runStatus"] = _RUN_STATUSES[record.event_type]
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
    """Return an error with the `kind` that the model requires; errors of our steps have a `category` instead."""
    if not isinstance(error, dict):
        return error
    facts = cast("dict[str, Any]", error)
    return facts if "kind" in facts or not facts.get("category") else {"kind": facts["category"], **facts}
