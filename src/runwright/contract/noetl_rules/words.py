"""The envelope of a NoETL event, and whether its own words fit each other. Each event is looked at for itself."""

from __future__ import annotations

from typing import Any

from runwright.contract.catalog import CATALOG
from runwright.contract.envelope import LEGACY
from runwright.contract.noetl import ENTITIES, NAME, STATUSES, alias_of
from runwright.contract.timestamps import is_utc

from .findings import Findings
from .said import LARGEST, Said, number

CANONICAL = frozenset(kind.dotted for kind in CATALOG.values())

_MUST = ("event_id", "event_type", "timestamp", "execution_id")
_TEXTS = ("entity_id", "parent_id", "workflow_run_id", "step_run_id", "task_run_id", "iteration_id", "event_alias")
_NUMBERS = (("attempt", 1), ("iteration", 0), ("duration_ms", 0), ("seq", 0))
_CHOICES = (("source", ("server", "worker")), ("entity_type", ENTITIES), ("status", STATUSES))
_MOST_SEGMENTS = 3

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


def check_fields(findings: Findings, event: dict[str, Any]) -> None:
    """Whether each field is of its kind. One that need not be there may be null."""
    for field in _MUST:
        value = event.get(field)
        if not isinstance(value, str) or not value:
            findings.tell("ENVELOPE", f"`{field}` is missing, or no text.")
        elif field == "timestamp" and not is_utc(value):
            findings.tell("ENVELOPE", "`timestamp` is no time in UTC, as 2026-02-05T23:11:22Z.")
    for field in _TEXTS:
        value = event.get(field)
        if value is not None and (not isinstance(value, str) or not value.strip()):
            findings.tell("ENVELOPE", f"`{field}` is blank, or no text.")
    for field, allowed in _CHOICES:
        value = event.get(field)
        if value is not None and value not in allowed:
            findings.tell("ENVELOPE", f"`{field}` is one of {', '.join(allowed)}.")
    for field, least in _NUMBERS:
        if event.get(field) is not None and number(event, field, least) is None:
            findings.tell("ENVELOPE", f"`{field}` is a whole number from {least} to {LARGEST}.")
    payload = event.get("payload")
    if payload is not None and not isinstance(payload, dict):
        findings.tell("ENVELOPE", "`payload` is an object.")


def check_words(findings: Findings, said: Said, event: dict[str, Any]) -> None:
    """Whether its name is one of the model, and what else it says of itself fits it."""
    name = said.name
    if LEGACY.fullmatch(name):
        findings.tell("LEGACY_NAME", f"{name} is a name of an earlier model.")
    elif NAME.fullmatch(name) is None or name.count(".") >= _MOST_SEGMENTS:
        findings.tell("NAME", f"{name!r} is no name: two or three lowercase words with dots between them.")
    elif name not in CANONICAL:
        findings.tell("UNKNOWN_NAME", f"{name} is not in the catalogue.", warning=True)
    else:
        _check_canonical(findings, said, event)


def _check_canonical(findings: Findings, said: Said, event: dict[str, Any]) -> None:
    alias, entity = event.get("event_alias"), event.get("entity_type")
    if isinstance(alias, str) and alias != alias_of(said.name):
        findings.tell("ENVELOPE", f"The alias of {said.name} is {alias_of(said.name)}, and not {alias!r}.")
    if said.family not in _FAMILIES:
        return
    if entity in ENTITIES and entity != said.family:
        findings.tell("ENTITY", f"{said.name} is about a {said.family}, and not about a {entity}.")
    _check_status(findings, said)
    _check_outcome(findings, said)


def _check_status(findings: Findings, said: Said) -> None:
    allowed = _STATUS_OF_VERB.get(said.verb, STATUSES)
    if said.name == "loop.done":
        allowed = ("success", "error", "skipped")  # there is no loop.failed
    elif said.name == "playbook.params.updated":
        allowed = STATUSES
    if said.status in STATUSES and said.status not in allowed:
        findings.tell("STATUS", f"The status of {said.name} is {' or '.join(allowed)}, and not {said.status}.")
    if said.verb not in ("finished", "evaluated"):
        return
    end = said.meta.get("runStatus")
    if said.status == "success" and (said.payload.get("error") is not None or end in ("FAILED", "CANCELLED")):
        findings.tell("STATUS", f"{said.name} is said to be a success, and its payload says otherwise.")
    elif said.status == "error" and end == "COMPLETED":
        findings.tell("STATUS", f"{said.name} is said to be an error, and its payload says otherwise.")


def _check_outcome(findings: Findings, said: Said) -> None:
    """Of the ends of tasks, policies have the last word: see the rules for tasks."""
    given = said.payload.get("outcome")
    if given is not None and not isinstance(given, dict):
        findings.tell("PAYLOAD", "`payload.outcome` is an object.")
    elif said.part("outcome").get("status") is not None and said.outcome is None:
        findings.tell("PAYLOAD", "The status of an outcome is ok or error.")
    elif said.name in ("task.done", "task.failed"):
        return
    elif said.verb == "done" and said.outcome is False:
        findings.tell("OUTCOME", f"{said.name} has an outcome that is an error.")
    elif said.verb == "failed" and said.outcome is True:
        findings.tell("OUTCOME", f"{said.name} has an outcome that is good.")
