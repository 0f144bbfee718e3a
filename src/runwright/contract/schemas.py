"""JSON Schemas (2020-12) of the events, made from the catalogue; the files beside this one are their copy."""

from __future__ import annotations

from typing import Any

import msgspec

from .catalog import CATALOG, EventType, Level
from .envelope import MAX_ID_CHARS, MAX_STEP_CHARS
from .noetl import ENTITIES, NAME, STATUSES

DIALECT = "https://json-schema.org/draft/2020-12/schema"
_UUID4 = "^[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-4[0-9a-fA-F]{3}-[89abAB][0-9a-fA-F]{3}-[0-9a-fA-F]{12}$"
_NO_PIPE = "^[^|\\u0000]+$"


def _text(longest: int = MAX_ID_CHARS, *, piped: bool = False) -> dict[str, Any]:
    limits: dict[str, Any] = {"type": "string", "minLength": 1, "maxLength": longest}
    return {**limits, "pattern": _NO_PIPE} if piped else limits


def _or_null(schema: dict[str, Any]) -> dict[str, Any]:
    """In a field that may be left out, null says the same."""
    return {"anyOf": [schema, {"type": "null"}]}


def _envelope() -> dict[str, Any]:
    attempt = {"type": "integer", "minimum": 1, "maximum": 2**31 - 1}
    return {
        "eventId": {"type": "string", "pattern": _UUID4},
        "eventType": _text(piped=True),
        "runId": _text(piped=True),
        "tenantId": _text(),
        "projectId": _text(),
        "environmentId": _text(),
        "planId": _text(piped=True),
        "planVersion": _text(piped=True),
        "engineAttemptId": attempt,
        "logicalAttemptId": attempt,
        "idempotencyKey": {"type": "string", "pattern": "^[0-9a-f]{64}$"},
        "emittedAt": {"type": "string", "format": "date-time"},
        "stepId": _or_null(_text(MAX_STEP_CHARS, piped=True)),
        "schemaVersion": _or_null({"type": "integer", "minimum": 1}),
        "emittedBy": _or_null(_text()),
        "foreignEventId": _or_null(_text()),
        "traceparent": _or_null(_text()),
        "payload": _or_null({"type": "object"}),
    }


_OPTIONAL = ("stepId", "schemaVersion", "emittedBy", "foreignEventId", "traceparent", "payload")


def _event_schema(name: str, properties: dict[str, Any], required: list[str], **more: Any) -> dict[str, Any]:
    return {
        "$schema": DIALECT,
        "$id": f"urn:runwright:{name}",
        "title": name,
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
        **more,
    }


def write_schema() -> dict[str, Any]:
    properties = _envelope()
    return _event_schema("RunEventWrite", properties, [name for name in properties if name not in _OPTIONAL])


def record_schema() -> dict[str, Any]:
    written = write_schema()
    properties = {
        **written["properties"],
        "schemaVersion": {"type": "integer", "minimum": 1},
        "runSeq": {"type": "integer", "minimum": 1},
        "persistedAt": {"type": "string", "format": "date-time"},
        "hash": {"type": "string", "pattern": "^[0-9a-f]{64}$"},
        "redacted": {"type": "boolean"},
    }
    required = [*written["required"], "schemaVersion", "runSeq", "persistedAt", "hash"]
    return _event_schema("RunEventRecord", properties, required)


def type_schema(kind: EventType) -> dict[str, Any]:
    """One event type as a producer writes it, with its payload."""
    written = write_schema()
    properties, required = written["properties"], written["required"]
    properties["eventType"] = {"const": kind.name}
    properties["schemaVersion"] = _or_null({"type": "integer", "minimum": 1, "maximum": kind.schema_version})
    if kind.level is Level.STEP:
        required = [*required, "stepId"]
        properties["stepId"] = _text(MAX_STEP_CHARS, piped=True)
    if kind.level is Level.RUN:
        properties["stepId"] = {"type": "null"}
    (reference,), definitions = msgspec.json.schema_components([kind.payload], ref_template="#/$defs/{name}")
    properties["payload"] = _or_null(reference)
    return _event_schema(kind.name, properties, required, description=kind.summary, **{"$defs": definitions})


def noetl_schema() -> dict[str, Any]:
    """An event in the words of the NoETL event model: what must be there, and what the rest must be if it is."""
    text, whole = {"type": "string", "minLength": 1}, {"type": "integer", "minimum": 0}
    properties: dict[str, Any] = {
        "event_id": text,
        "event_type": {"type": "string", "pattern": f"^{NAME.pattern}$"},
        "event_alias": {"type": "string", "pattern": "^[A-Z][A-Za-z0-9]*$"},
        "timestamp": {"type": "string", "format": "date-time"},
        "execution_id": text,
        "source": {"enum": ["server", "worker"]},
        "entity_type": {"enum": list(ENTITIES)},
        "entity_id": {**text, "type": ["string", "null"]},
        "parent_id": _or_null(text),
        "seq": {"type": "integer", "minimum": 1},
        "workflow_run_id": text,
        "step_run_id": _or_null(text),
        "task_run_id": _or_null(text),
        "iteration": _or_null(whole),
        "iteration_id": _or_null(text),
        "attempt": _or_null({"type": "integer", "minimum": 1}),
        "status": {"enum": list(STATUSES)},
        "duration_ms": _or_null(whole),
        "payload": {"type": "object"},
    }
    required = ["event_id", "event_type", "timestamp", "execution_id"]
    return _event_schema("NoetlEvent", properties, required, additionalProperties=True)


def all_schemas() -> dict[str, dict[str, Any]]:
    """Every schema by its file's name."""
    documents = [write_schema(), record_schema(), noetl_schema(), *(type_schema(kind) for kind in CATALOG.values())]
    return {f"{document['title']}.schema.json": document for document in documents}


def render(document: dict[str, Any]) -> str:
    return msgspec.json.format(msgspec.json.encode(document), indent=2).decode() + "\n"
