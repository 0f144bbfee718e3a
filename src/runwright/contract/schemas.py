"""JSON Schemas (draft 2020-12) of the events, generated from the catalogue.

`make schemas` writes them to `json_schemas/`, with that of `noetl.schema`.
"""

from __future__ import annotations

from typing import Any

import msgspec

from .catalog import CATALOG, EventType, Level
from .envelope import MAX_ATTEMPT, MAX_ID_CHARS, MAX_STEP_CHARS

DIALECT = "https://json-schema.org/draft/2020-12/schema"
_UUID4 = "^[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-4[0-9a-fA-F]{3}-[89abAB][0-9a-fA-F]{3}-[0-9a-fA-F]{12}$"
_NO_PIPE = "^[^|\\u0000]+$"


def _text(max_chars: int = MAX_ID_CHARS, *, forbid_pipe: bool = False) -> dict[str, Any]:
    limits: dict[str, Any] = {"type": "string", "minLength": 1, "maxLength": max_chars}
    return {**limits, "pattern": _NO_PIPE} if forbid_pipe else limits


def nullable(schema: dict[str, Any]) -> dict[str, Any]:
    """Allow null, which in an optional field means the same as a missing field."""
    return {"anyOf": [schema, {"type": "null"}]}


def _envelope() -> dict[str, Any]:
    attempt = {"type": "integer", "minimum": 1, "maximum": MAX_ATTEMPT}
    return {
        "eventId": {"type": "string", "pattern": _UUID4},
        "eventType": _text(forbid_pipe=True),
        "runId": _text(forbid_pipe=True),
        "tenantId": _text(),
        "projectId": _text(),
        "environmentId": _text(),
        "planId": _text(forbid_pipe=True),
        "planVersion": _text(forbid_pipe=True),
        "engineAttemptId": attempt,
        "logicalAttemptId": attempt,
        "idempotencyKey": {"type": "string", "pattern": "^[0-9a-f]{64}$"},
        "emittedAt": {"type": "string", "format": "date-time"},
        "stepId": nullable(_text(MAX_STEP_CHARS, forbid_pipe=True)),
        "schemaVersion": nullable({"type": "integer", "minimum": 1}),
        "emittedBy": nullable(_text()),
        "foreignEventId": nullable(_text()),
        "traceparent": nullable(_text()),
        "payload": nullable({"type": "object"}),
    }


_OPTIONAL = ("stepId", "schemaVersion", "emittedBy", "foreignEventId", "traceparent", "payload")


def event_schema(name: str, properties: dict[str, Any], required: list[str], **more: Any) -> dict[str, Any]:
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
    return event_schema("RunEventWrite", properties, [name for name in properties if name not in _OPTIONAL])


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
    return event_schema("RunEventRecord", properties, required)


def type_schema(kind: EventType) -> dict[str, Any]:
    """Return the schema of one event type as a producer writes it, with its payload."""
    written = write_schema()
    properties, required = written["properties"], written["required"]
    properties["eventType"] = {"const": kind.name}
    properties["schemaVersion"] = nullable({"type": "integer", "minimum": 1, "maximum": kind.schema_version})
    if kind.level is Level.STEP:
        required = [*required, "stepId"]
        properties["stepId"] = _text(MAX_STEP_CHARS, forbid_pipe=True)
    if kind.level is Level.RUN:
        properties["stepId"] = {"type": "null"}
    (reference,), definitions = msgspec.json.schema_components([kind.payload], ref_template="#/$defs/{name}")
    properties["payload"] = nullable(reference)
    return event_schema(kind.name, properties, required, description=kind.summary, **{"$defs": definitions})


def all_schemas() -> dict[str, dict[str, Any]]:
    """Return the schemas by file name."""
    documents = [write_schema(), record_schema(), *(type_schema(kind) for kind in CATALOG.values())]
    return {file_name(document): document for document in documents}


def file_name(document: dict[str, Any]) -> str:
    return f"{document['title']}.schema.json"


def render(document: dict[str, Any]) -> str:
    return msgspec.json.format(msgspec.json.encode(document), indent=2).decode() + "\n"
