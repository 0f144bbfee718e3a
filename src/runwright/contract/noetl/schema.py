"""JSON Schema (draft 2020-12) of a NoETL event."""

from __future__ import annotations

from typing import Any

from runwright.contract.schemas import event_schema, nullable

from .extras import ENTITIES, SOURCES, STATUSES
from .view import NAME_PATTERN


def noetl_schema() -> dict[str, Any]:
    """Return the schema of a NoETL event: the required fields, and the types of the optional ones."""
    text, count = {"type": "string", "minLength": 1}, {"type": "integer", "minimum": 0}
    properties: dict[str, Any] = {
        "event_id": text,
        "event_type": {"type": "string", "pattern": f"^{NAME_PATTERN.pattern}$"},
        "event_alias": {"type": "string", "pattern": "^[A-Z][A-Za-z0-9]*$"},
        "timestamp": {"type": "string", "format": "date-time"},
        "execution_id": text,
        "source": {"enum": list(SOURCES)},
        "entity_type": {"enum": list(ENTITIES)},
        "entity_id": {**text, "type": ["string", "null"]},
        "parent_id": nullable(text),
        "seq": {"type": "integer", "minimum": 1},
        "workflow_run_id": text,
        "step_run_id": nullable(text),
        "task_run_id": nullable(text),
        "iteration": nullable(count),
        "iteration_id": nullable(text),
        "attempt": nullable({"type": "integer", "minimum": 1}),
        "status": {"enum": list(STATUSES)},
        "duration_ms": nullable(count),
        "payload": {"type": "object"},
    }
    required = ["event_id", "event_type", "timestamp", "execution_id"]
    return event_schema("NoetlEvent", properties, required, additionalProperties=True)
