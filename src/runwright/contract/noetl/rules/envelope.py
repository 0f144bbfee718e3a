"""Rules for a single NoETL event: field types, name, status and outcome."""

from __future__ import annotations

from typing import Any

from runwright.contract.catalog import CATALOG
from runwright.contract.envelope import LEGACY_NAME
from runwright.contract.noetl.extras import ENTITIES, SOURCES, STATUSES
from runwright.contract.noetl.view import NAME_PATTERN, alias_of
from runwright.contract.timestamps import is_utc

from .event import MAX_INTEGER, CheckedEvent, FindingCollector, number

CANONICAL = frozenset(kind.dotted for kind in CATALOG.values())

_REQUIRED = ("event_id", "event_type", "timestamp", "execution_id")
_TEXT_FIELDS = (
    "entity_id",
    "parent_id",
    "workflow_run_id",
    "step_run_id",
    "task_run_id",
    "iteration_id",
    "event_alias",
)
_NUMBER_FIELDS = (("attempt", 1), ("iteration", 0), ("duration_ms", 0), ("seq", 0))
_ENUM_FIELDS = (("source", SOURCES), ("entity_type", ENTITIES), ("status", STATUSES))
_MAX_SEGMENTS = 3

_STATUS_OF_VERB: dict[str, tuple[str, ...]] = {
    "requested": ("in_progress", "success"),
    "scheduled": ("in_progress", "success"),
    "started": ("in_progress",),
    "done": ("success", "skipped"),
    "failed": ("error",),
    "skipped": ("skipped",),
    "finished": ("success", "error"),
    "processed": ("success", "error"),
    "evaluated": ("success", "error", "skipped"),
    "paused": ("paused",),
    "stored": ("success",),
    "updated": ("success", "in_progress"),
}
_FAMILIES = frozenset(ENTITIES)


def check_fields(findings: FindingCollector, document: dict[str, Any]) -> None:
    """Check the type of each field. Optional fields may be null."""
    for field in _REQUIRED:
        value = document.get(field)
        if not isinstance(value, str) or not value:
            findings.add("ENVELOPE", f"`{field}` is missing or not a text.")
        elif field == "timestamp" and not is_utc(value):
            findings.add("ENVELOPE", "`timestamp` must be an RFC 3339 time in UTC, such as 2026-02-05T23:11:22Z.")
    for field in _TEXT_FIELDS:
        value = document.get(field)
        if value is not None and (not isinstance(value, str) or not value.strip()):
            findings.add("ENVELOPE", f"`{field}` is blank or not a text.")
    for field, allowed in _ENUM_FIELDS:
        value = document.get(field)
        if value is not None and value not in allowed:
            findings.add("ENVELOPE", f"`{field}` must be one of {', '.join(allowed)}.")
    for field, minimum in _NUMBER_FIELDS:
        if document.get(field) is not None and number(document, field, minimum) is None:
            findings.add("ENVELOPE", f"`{field}` must be an integer from {minimum} to {MAX_INTEGER}.")
    payload = document.get("payload")
    if payload is not None and not isinstance(payload, dict):
        findings.add("ENVELOPE", "`payload` must be an object.")


def check_semantics(findings: FindingCollector, event: CheckedEvent, document: dict[str, Any]) -> None:
    """Check the name, and that alias, entity, status and outcome agree with it."""
    name = event.name
    if LEGACY_NAME.fullmatch(name):
        findings.add("LEGACY_NAME", f"{name} is a name of an earlier model.")
    elif NAME_PATTERN.fullmatch(name) is None or name.count(".") >= _MAX_SEGMENTS:
        findings.add("NAME", f"Invalid event name {name!r}: use two or three lowercase words separated by dots.")
    elif name not in CANONICAL:
        findings.add("UNKNOWN_NAME", f"Event name {name} is not in the catalogue.", warning=True)
    else:
        _check_canonical(findings, event, document)


def _check_canonical(findings: FindingCollector, event: CheckedEvent, document: dict[str, Any]) -> None:
    alias, entity = document.get("event_alias"), document.get("entity_type")
    if isinstance(alias, str) and alias != alias_of(event.name):
        findings.add("ENVELOPE", f"The alias of {event.name} must be {alias_of(event.name)}, not {alias!r}.")
    if event.family not in _FAMILIES:
        return
    if entity in ENTITIES and entity != event.family:
        findings.add("ENTITY", f"The entity of {event.name} must be a {event.family}, not a {entity}.")
    _check_status(findings, event)
    _check_outcome(findings, event)


def _check_status(findings: FindingCollector, event: CheckedEvent) -> None:
    allowed = _STATUS_OF_VERB.get(event.verb, STATUSES)
    if event.name == "loop.done":
        allowed = ("success", "error", "skipped")  # there is no loop.failed
    elif event.name == "playbook.params.updated":
        allowed = STATUSES
    if event.status in STATUSES and event.status not in allowed:
        findings.add("STATUS", f"The status of {event.name} must be {' or '.join(allowed)}, not {event.status}.")
    if event.verb not in ("finished", "evaluated"):
        return
    run_status = event.meta.get("runStatus")
    is_failure = event.payload.get("error") is not None or run_status in ("FAILED", "CANCELLED")
    if event.status == "success" and is_failure:
        findings.add("STATUS", f"The status of {event.name} is success, but its payload reports a failure.")
    elif event.status == "error" and run_status == "COMPLETED":
        findings.add("STATUS", f"The status of {event.name} is error, but its payload reports COMPLETED.")


def _check_outcome(findings: FindingCollector, event: CheckedEvent) -> None:
    """Check the outcome. That of a task depends on its policy, so `tasks` checks it."""
    outcome = event.payload.get("outcome")
    if outcome is not None and not isinstance(outcome, dict):
        findings.add("PAYLOAD", "`payload.outcome` must be an object.")
    elif event.part("outcome").get("status") is not None and event.outcome is None:
        findings.add("PAYLOAD", "The status of an outcome must be ok or error.")
    elif event.name in ("task.done", "task.failed"):
        return
    elif event.verb == "done" and event.outcome is False:
        findings.add("OUTCOME", f"The outcome of {event.name} is an error.")
    elif event.verb == "failed" and event.outcome is True:
        findings.add("OUTCOME", f"The outcome of {event.name} is a success.")
