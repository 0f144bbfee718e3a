"""Convert events before v2 to the current form on import.

A v1 stream has the fields of the payload at the root, specifies tenant and plan only at the start of a run, may use the
event names of RFC-002 (RUN_STARTED), may have attempts as text, ids that are not UUID v4, and keys of another formula.
Ids are stored as `foreignEventId`; keys are recomputed. They are the same each time, so a second import adds nothing.
"""

from __future__ import annotations

import re
from typing import Any

from .catalog import CATALOG
from .clock import Ids
from .errors import ErrorCode, RunwrightError
from .events import RunEventRecord, RunIdentity, wire_name
from .keys import idempotency_key

RFC_002_NAMES = {"RETRY_SCHEDULED": "StepRetryScheduled"}
"""Old names that are not the current name in capitals."""

RECURRING = frozenset({"RunPaused", "RunResumed", "RunDrainTimedOut", "RunParamsUpdated"})
"""Run events that occur more than once; `logicalAttemptId` is their ordinal."""

_ENVELOPE = frozenset(wire_name(name) for name in RunEventRecord.__struct_fields__)
_CONSTANTS = ("tenantId", "projectId", "environmentId", "planId", "planVersion")
_UUID4 = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}", re.IGNORECASE)


def current_name(event_type: str) -> str:
    """Return the current name of an event type."""
    if event_type in RFC_002_NAMES:
        return RFC_002_NAMES[event_type]
    if event_type.isupper():
        name = "".join(word.capitalize() for word in event_type.split("_"))
        return name if name in CATALOG else event_type
    return event_type


class V1Normaliser:
    """Normalises one stream. It remembers the constants of each run, which v1 specifies only once."""

    def __init__(self, ids: Ids) -> None:
        self._ids = ids
        self._runs: dict[str, dict[str, str]] = {}
        self._ordinals: dict[tuple[str, str], dict[str, int]] = {}

    def normalise(self, document: dict[str, Any], known: RunIdentity | None = None) -> dict[str, Any]:
        """Return an event before v2 as a RunEventWrite. `known`: the constants of the run, if the store has it."""
        run_id = _text(document, "runId")
        constants = self._constants(run_id, document, known)
        event_type = current_name(_text(document, "eventType"))
        step_id = document.get("stepId")
        attempt = _number(document.get("logicalAttemptId") or self._ordinal(run_id, event_type, document))
        plan = (constants["planId"], constants["planVersion"])
        event = {
            "eventType": event_type,
            "runId": run_id,
            **constants,
            "logicalAttemptId": attempt,
            "engineAttemptId": _number(document.get("engineAttemptId", 1)),
            "emittedAt": _text(document, "emittedAt"),
            "idempotencyKey": idempotency_key(run_id, step_id, attempt, event_type, *plan),
            "schemaVersion": document.get("schemaVersion", 1),
            **self._event_ids(document.get("eventId")),
        }
        for name in ("stepId", "emittedBy", "traceparent"):
            if document.get(name) is not None:
                event[name] = document[name]
        payload = _payload(document)
        return {**event, "payload": payload} if payload else event

    def _ordinal(self, run_id: str, event_type: str, document: dict[str, Any]) -> int:
        """Return the ordinal of a recurring event within its run, which v1 does not specify."""
        if event_type not in RECURRING:
            return 1
        seen = self._ordinals.setdefault((run_id, event_type), {})
        return seen.setdefault(str(document.get("eventId")), len(seen) + 1)

    def _constants(self, run_id: str, document: dict[str, Any], known: RunIdentity | None) -> dict[str, str]:
        constants = self._runs.setdefault(run_id, {} if known is None else _constants_of(known))
        for source in (document.get("planRef"), document.get("context"), document):
            if isinstance(source, dict):
                for name in _CONSTANTS:
                    if isinstance(source.get(name), str):  # pyright: ignore[reportUnknownMemberType]
                        constants[name] = source[name]
        missing = [name for name in _CONSTANTS if name not in constants]
        if missing:
            raise RunwrightError(
                ErrorCode.SCHEMA_VALIDATION_FAILED,
                f"Missing {', '.join(missing)} of the run. Import the run from its RunStarted on.",
            )
        return constants

    def _event_ids(self, event_id: Any) -> dict[str, str]:
        if isinstance(event_id, str) and _UUID4.fullmatch(event_id):
            return {"eventId": event_id}
        ids = {"eventId": self._ids.event_id()}
        return {**ids, "foreignEventId": event_id} if isinstance(event_id, str) and event_id else ids


def is_before_v2(document: dict[str, Any]) -> bool:
    """Whether an event has the old form: an old name, or neither tenant nor plan."""
    event_type = document.get("eventType")
    if isinstance(event_type, str) and current_name(event_type) != event_type:
        return True
    return "tenantId" not in document and "planId" not in document


def _payload(document: dict[str, Any]) -> dict[str, Any]:
    """Return the fields that v1 has at the root, merged with those that are in a payload already."""
    payload = {name: value for name, value in document.items() if name not in _ENVELOPE}
    inner = document.get("payload")
    return {**payload, **inner} if isinstance(inner, dict) else payload


def _constants_of(run: RunIdentity) -> dict[str, str]:
    return {wire_name(name): getattr(run, name) for name in run.__struct_fields__ if name != "run_id"}


def _text(document: dict[str, Any], name: str) -> str:
    value = document.get(name)
    if not isinstance(value, str):
        raise RunwrightError(ErrorCode.SCHEMA_VALIDATION_FAILED, f"{name} must be a text.", field=name)
    return value


def _number(value: Any) -> int:
    if isinstance(value, str) and value.isascii() and value.isdecimal() and len(value) < 10:
        return int(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    raise RunwrightError(ErrorCode.SCHEMA_VALIDATION_FAILED, "Attempts must be integers.")
