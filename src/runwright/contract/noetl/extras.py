"""Fields of a NoETL event that ours has no place for.

They are stored under the key `noetl` of the payload and rendered with the event again. The extra fields have the
shape of the event itself, and contain only those fields that the view would not render as they were received.
"""

from __future__ import annotations

import re
from typing import Any, cast

EXTRAS = "noetl"
"""Payload key of the extra fields."""

ENTITIES = ("playbook", "workflow", "step", "task", "loop", "next", "policy", "result")
STATUSES = ("in_progress", "success", "error", "skipped", "paused")
SOURCES = ("server", "worker")
FAILURE_STATUSES = frozenset({"error", "failed", "failure", "fail", "cancelled"})
"""Statuses of other models that mean `error`, in lower case."""
MAX_DURATION_MS = 10**15
"""About thirty thousand years; a larger value is not a duration."""

_FIXED = frozenset({"event_id", "event_type", "timestamp", "execution_id", "seq"})
_MERGE_DEPTH = 3  # nesting of a payload that is compared field by field, as in `outcome.meta.http_status`
_ALIAS = re.compile(r"[A-Z][A-Za-z0-9]*")
_ALLOWED_VALUES = {"source": SOURCES, "entity_type": ENTITIES, "status": STATUSES}
_MINIMUMS = {"iteration": 0, "attempt": 1, "duration_ms": 0}
_TEXT_FIELDS = frozenset({"entity_id", "parent_id", "workflow_run_id", "step_run_id", "task_run_id", "iteration_id"})


def extra_fields(document: dict[str, Any], rendered: dict[str, Any], moved: frozenset[str]) -> dict[str, Any]:
    """Return the fields of a received event that the rendered one lacks, except payload fields moved within it."""
    extras = {
        name: value
        for name, value in document.items()
        if value is not None and name not in _FIXED and name != "payload" and rendered.get(name) != value
    }
    payload = document.get("payload")
    if isinstance(payload, dict):
        inner = {name: value for name, value in cast("dict[str, Any]", payload).items() if name not in moved}
        payload = _difference(inner, rendered["payload"], _MERGE_DEPTH)
    return {**extras, "payload": payload} if payload else extras


def with_extra_fields(event: dict[str, Any], extras: Any) -> dict[str, Any]:
    """Return a rendered event as it was received. Fields with values the model does not allow go to the payload."""
    if not isinstance(extras, dict):
        return event
    disallowed: dict[str, Any] = {}
    for name, value in cast("dict[str, Any]", extras).items():
        if name == "payload" and isinstance(value, dict):
            event["payload"] = _merge(event["payload"], cast("dict[str, Any]", value), _MERGE_DEPTH)
        elif name not in _FIXED and _is_allowed(name, value):
            event[name] = value
        else:
            disallowed[name] = value
            if name == "status" and str(value).lower() in FAILURE_STATUSES:
                event["status"] = "error"
    return {**event, "payload": {**event["payload"], EXTRAS: disallowed}} if disallowed else event


def is_duration(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= MAX_DURATION_MS


def _is_allowed(name: str, value: Any) -> bool:
    if name in _ALLOWED_VALUES:
        return value in _ALLOWED_VALUES[name]
    if name in _MINIMUMS:
        return isinstance(value, int) and not isinstance(value, bool) and _MINIMUMS[name] <= value <= MAX_DURATION_MS
    if name in _TEXT_FIELDS:
        return isinstance(value, str) and bool(value)
    if name == "event_alias":
        return isinstance(value, str) and _ALIAS.fullmatch(value) is not None
    return name != "payload"


def _difference(document: dict[str, Any], rendered: dict[str, Any], depth: int) -> dict[str, Any]:
    difference: dict[str, Any] = {}
    for name, value in document.items():
        shown = rendered.get(name)
        if depth and isinstance(value, dict) and isinstance(shown, dict):
            inner = _difference(cast("dict[str, Any]", value), cast("dict[str, Any]", shown), depth - 1)
            if inner:
                difference[name] = inner
        elif shown != value:
            difference[name] = value
    return difference


def _merge(rendered: dict[str, Any], extras: dict[str, Any], depth: int) -> dict[str, Any]:
    merged = dict(rendered)
    for name, value in extras.items():
        shown = merged.get(name)
        if depth and isinstance(value, dict) and isinstance(shown, dict):
            value = _merge(cast("dict[str, Any]", shown), cast("dict[str, Any]", value), depth - 1)
        merged[name] = value
    return merged
