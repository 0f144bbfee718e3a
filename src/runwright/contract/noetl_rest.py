"""What of an event of NoETL ours has no place for: it is kept beside the payload, and given back with the event.

The rest of an event has the event's own shape, with only those fields that ours would not show as they came.
"""

from __future__ import annotations

import re
from typing import Any, cast

REST = "noetl"
"""The key of a payload under which the rest is kept."""

ENTITIES = ("playbook", "workflow", "step", "task", "loop", "next", "policy", "result")
STATUSES = ("in_progress", "success", "error", "skipped", "paused")
SOURCES = ("server", "worker")
BAD = frozenset({"error", "failed", "failure", "fail", "cancelled"})
"""Words of other models for a status that is an error, in lower case."""
LONGEST_MS = 10**15
"""Thirty thousand years: no work takes longer."""

_FIXED = frozenset({"event_id", "event_type", "timestamp", "execution_id", "seq"})
_LEVELS = 3  # of a payload that are told apart: `outcome.meta.http_status`
_ALIAS = re.compile(r"[A-Z][A-Za-z0-9]*")
_ONE_OF = {"source": SOURCES, "entity_type": ENTITIES, "status": STATUSES}
_LEAST = {"iteration": 0, "attempt": 1, "duration_ms": 0}
_TEXTS = frozenset({"entity_id", "parent_id", "workflow_run_id", "step_run_id", "task_run_id", "iteration_id"})


def rest_of(given: dict[str, Any], shown: dict[str, Any], moved: frozenset[str]) -> dict[str, Any]:
    """What was given and is not shown, but for fields of the payload that were moved within it."""
    rest = {
        name: value
        for name, value in given.items()
        if value is not None and name not in _FIXED and name != "payload" and shown.get(name) != value
    }
    payload = given.get("payload")
    if isinstance(payload, dict):
        inner = {name: value for name, value in cast("dict[str, Any]", payload).items() if name not in moved}
        payload = _difference(inner, shown["payload"], _LEVELS)
    return {**rest, "payload": payload} if payload else rest


def with_rest(event: dict[str, Any], rest: Any) -> dict[str, Any]:
    """The event as it came. What the model does not allow where it was is shown in the payload."""
    if not isinstance(rest, dict):
        return event
    left: dict[str, Any] = {}
    for name, value in cast("dict[str, Any]", rest).items():
        if name == "payload" and isinstance(value, dict):
            event["payload"] = _merged(event["payload"], cast("dict[str, Any]", value), _LEVELS)
        elif name not in _FIXED and _is_allowed(name, value):
            event[name] = value
        else:
            left[name] = value
            if name == "status" and str(value).lower() in BAD:
                event["status"] = "error"  # by another word
    return {**event, "payload": {**event["payload"], REST: left}} if left else event


def is_duration(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= LONGEST_MS


def _is_allowed(name: str, value: Any) -> bool:
    if name in _ONE_OF:
        return value in _ONE_OF[name]
    if name in _LEAST:
        return isinstance(value, int) and not isinstance(value, bool) and _LEAST[name] <= value <= LONGEST_MS
    if name in _TEXTS:
        return isinstance(value, str) and bool(value)
    if name == "event_alias":
        return isinstance(value, str) and _ALIAS.fullmatch(value) is not None
    return name != "payload"


def _difference(given: dict[str, Any], shown: dict[str, Any], levels: int) -> dict[str, Any]:
    rest: dict[str, Any] = {}
    for name, value in given.items():
        known = shown.get(name)
        if levels and isinstance(value, dict) and isinstance(known, dict):
            mine, theirs = cast("dict[str, Any]", value), cast("dict[str, Any]", known)
            if inner := _difference(mine, theirs, levels - 1):
                rest[name] = inner
        elif known != value:
            rest[name] = value
    return rest


def _merged(shown: dict[str, Any], rest: dict[str, Any], levels: int) -> dict[str, Any]:
    both = dict(shown)
    for name, value in rest.items():
        known = both.get(name)
        if levels and isinstance(value, dict) and isinstance(known, dict):
            value = _merged(cast("dict[str, Any]", known), cast("dict[str, Any]", value), levels - 1)
        both[name] = value
    return both
