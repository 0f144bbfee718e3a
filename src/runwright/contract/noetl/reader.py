"""Convert NoETL events to events of the catalogue; the inverse of `view.noetl_event`.

Events of older executors get their current name. A name that no model has is kept; such an event changes no state.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, NamedTuple, cast

import msgspec

from runwright.contract.catalog import CATALOG
from runwright.contract.envelope import MAX_ATTEMPT, MAX_ID_CHARS, validation_error
from runwright.contract.events import RunEventRecord
from runwright.contract.paths import EntityPath, parse_path
from runwright.contract.timestamps import from_micros, is_utc

from .entity_ids import EntityResolver, attempt_of_entity
from .extras import ENTITIES, EXTRAS, SOURCES, extra_fields, is_duration
from .names import NAMES_IMPLYING_START, canonical_name, catalog_type
from .view import ORDINAL_TYPES, TASK_START_TYPES, has_model_payload

_END_TYPES = (
    ("StepCompleted", "StepFailed", "StepSkipped"),
    ("TaskDone", "TaskFailed"),
    ("TaskAttemptDone", "TaskAttemptFailed"),
    ("LoopIterationDone", "LoopIterationFailed"),
)
_ATTEMPT_TYPES = frozenset(
    {
        *("TaskAttemptStarted", "TaskAttemptDone", "TaskAttemptFailed", "PolicyTaskEvaluated"),
        *("ResultStored", "ResultManifestUpdated"),
    }
)
_FIELDS = {
    name: frozenset(field.encode_name for field in msgspec.structs.fields(kind.payload))
    for name, kind in CATALOG.items()
}
_STEP_OR_TASK_EVENTS = frozenset(CATALOG[name].dotted for name in ("CheckpointWritten", "ChildRunInitiated"))
"""Events of a step or of one of its tasks."""
_replace = msgspec.structs.replace
IDENTIFYING_TYPES = frozenset(name for name in CATALOG if name.startswith(("Step", "Task", "LoopIteration")))
"""Event types from which the ids of steps and tasks are learned."""

EventKey = tuple[str, str | None, int]
"""Event type, step id and attempt: they identify an event within its run, as in the idempotency key."""


class ImportedEvent(msgspec.Struct, frozen=True):
    """A NoETL event as an event of the catalogue."""

    event_type: str
    run_id: str
    event_id: str
    emitted_at: str
    emitted_by: str | None
    path: EntityPath | str | None
    attempt: int
    payload: dict[str, Any]
    document: dict[str, Any] = {}  # as it was received
    has_visit_id: bool = False  # it specifies its step run or task run, so the visit is known
    is_renamed: bool = False
    implies_start: bool = False  # the run has started, even if the log has no start event

    @property
    def step_id(self) -> str | None:
        return None if self.path is None else str(self.path)

    @property
    def key(self) -> EventKey:
        """The key of the event. Two NoETL events may have the same one; the second then moves to the next candidate."""
        return (self.event_type, self.step_id, self.attempt)

    @property
    def conflicting_keys(self) -> list[EventKey]:
        """Keys of the other ends of the same entity, which must be unused as well.

        An entity ends only once, so a second end in a log without visit ids belongs to the next visit.
        """
        others = () if self.has_visit_id else next((ends for ends in _END_TYPES if self.event_type in ends), ())
        return [(other, self.step_id, self.attempt) for other in others if other != self.event_type]

    def next_candidate(self) -> ImportedEvent:
        """Return the event with the next key: the next visit of its step or task, or the next attempt."""
        path = self.path
        has_attempts = self.event_type in _ATTEMPT_TYPES or (self.has_visit_id and self.event_type in ORDINAL_TYPES)
        if not isinstance(path, EntityPath) or has_attempts or (path.indexes and not path.task):
            return _replace(self, attempt=self.attempt + 1)
        if path.task is not None:
            path = _replace(path, task_visit=path.task_visit + 1)
        else:
            path = _replace(path, visit=path.visit + 1)
        return _replace(self, path=path)

    def moved_to(self, path: EntityPath | str | None, attempt: int) -> ImportedEvent:
        return self if attempt == self.attempt and path == self.path else _replace(self, path=path, attempt=attempt)

    def implied_event(self, event_type: str, event_id: str) -> ImportedEvent:
        """Return a run event that must have happened before this one."""
        return ImportedEvent(
            event_type, self.run_id, event_id, self.emitted_at, None, None, 1, {"impliedBy": self.event_id}
        )

    def extra_fields(self, rendered: dict[str, Any]) -> dict[str, Any]:
        """Return the fields of the received event that the rendered one lacks."""
        document = self.document
        if self.is_renamed:
            document = {name: value for name, value in document.items() if name != "event_alias"}
        moved = frozenset[str]()
        if not has_model_payload(self.event_type):
            known = _FIELDS[self.event_type] & self.payload.keys() - {"error"}
            outer, _ = _split_payload(document)
            moved = frozenset(name for name in known if outer.get(name, self.payload[name]) == self.payload[name])
        return extra_fields(document, rendered, moved)


class NoetlReader:
    """Reads one stream of events, and remembers the ids of the steps and tasks of each run."""

    def __init__(self) -> None:
        self._resolvers: dict[str, EntityResolver] = {}

    def read(self, document: dict[str, Any]) -> ImportedEvent:
        document = _with_entity_id(document)
        run_id, event_id = _required_text(document, "execution_id"), _required_text(document, "event_id")
        original, status = _required_text(document, "event_type"), str(document.get("status"))
        payload, extras = _split_payload(document)
        dotted = canonical_name(original, status, payload)
        name = catalog_type(original, dotted, status, payload)
        path = self._resolver(run_id).resolve(_entity_type(dotted, document), document)
        kind = CATALOG.get(name)
        if kind is not None and kind.level == "step" and path is None:
            raise validation_error(f"{original} must name its step in entity_id or step_run_id.")
        converted = _valid_or_empty(name, _catalog_payload(name, payload, document.get("duration_ms")))
        source = document.get("source")
        return ImportedEvent(
            event_type=name,
            run_id=run_id,
            event_id=event_id,
            emitted_at=_utc_time(_required_text(document, "timestamp")),
            emitted_by=f"noetl/{source}" if source in SOURCES else None,
            path=path,
            attempt=_attempt(name, document),
            payload=converted if dotted == original else {**converted, "legacyType": original},
            document={**document, **extras},
            has_visit_id=any(isinstance(document.get(field), str) for field in ("step_run_id", "task_run_id")),
            is_renamed=dotted != original,
            implies_start=original in NAMES_IMPLYING_START,
        )

    def has_unknown_ids(self, document: dict[str, Any]) -> bool:
        """Whether stored events of the run should be learned first, because the event has unknown ids."""
        run_id, name = document.get("execution_id"), document.get("event_type")
        if run_id is None or not isinstance(name, str):
            return False
        payload, _ = _split_payload(document)
        dotted = canonical_name(name, str(document.get("status")), payload)
        return self._resolver(str(run_id)).has_unknown_ids(_entity_type(dotted, document), _with_entity_id(document))

    def learn(self, event: ImportedEvent) -> None:
        """Learn the ids of an event whose path is final."""
        if isinstance(event.path, EntityPath) and event.event_type in IDENTIFYING_TYPES:
            self._resolver(event.run_id).learn(event.path, event.document)

    def learn_stored(self, record: RunEventRecord) -> None:
        """Learn the ids of an event that the log had before this stream."""
        path = None if record.step_id is None else parse_path(record.step_id)
        if path is not None:
            extras: Any = (record.payload or {}).get(EXTRAS)
            ids = cast("dict[str, Any]", extras) if isinstance(extras, dict) else {}
            self._resolver(record.run_id).learn(path, ids, is_stored=True)

    def _resolver(self, run_id: str) -> EntityResolver:
        return self._resolvers.setdefault(run_id, EntityResolver())


class NoetlPlan(NamedTuple):
    plan_id: str
    version: str | None


def plan_of(document: dict[str, Any]) -> NoetlPlan | None:
    """Return the playbook that an event names, with its version if specified; None if it names none."""
    name, event_type = document.get("entity_id"), document.get("event_type")
    if not isinstance(event_type, str) or not event_type.startswith("playbook."):
        return None
    if not isinstance(name, str) or not name:
        return None
    version: Any = document
    for field in ("payload", "meta", "planVersion"):
        version = cast("dict[str, Any]", version).get(field) if isinstance(version, dict) else None
    plan_id = name.replace("|", "¦")[:MAX_ID_CHARS]
    return NoetlPlan(plan_id, version if isinstance(version, str) and version else None)


def _entity_type(dotted: str, document: dict[str, Any]) -> str:
    """Return the entity type. One of an earlier model is replaced by the family of the event's current name."""
    declared = document.get("entity_type")
    entity = declared if declared in ENTITIES else dotted.partition(".")[0]
    return "task" if dotted in _STEP_OR_TASK_EVENTS and isinstance(document.get("task_run_id"), str) else entity


def _with_entity_id(document: dict[str, Any]) -> dict[str, Any]:
    """Return the event with `entity_id`; servers that follow no model have `node_name` instead."""
    name = document.get("node_name")
    return {**document, "entity_id": name} if name and "entity_id" not in document else document


def _attempt(name: str, document: dict[str, Any]) -> int:
    attempt: Any = document.get("attempt")
    if not isinstance(attempt, int) or isinstance(attempt, bool) or attempt < 1:
        attempt = attempt_of_entity(document) if name in _ATTEMPT_TYPES else None
    if attempt is not None and attempt > MAX_ATTEMPT:
        raise validation_error(f"attempt must be an integer from 1 to {MAX_ATTEMPT:,}.")
    return attempt or 1


# Payloads


def _split_payload(document: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the payload, and the fields that our view moved into it because the model does not allow their values."""
    value: Any = document.get("payload")
    payload = dict(cast("dict[str, Any]", value)) if isinstance(value, dict) else {}
    if not isinstance(payload.get(EXTRAS), dict):
        return payload, {}
    extras: dict[str, Any] = payload.pop(EXTRAS)
    return payload, {"payload": payload, **extras}


def _catalog_payload(name: str, payload: dict[str, Any], duration_ms: Any) -> dict[str, Any]:
    """Return the payload as the catalogue has it, with the fields of `meta` and `outcome` in their own places."""
    duration = {"durationMs": duration_ms} if is_duration(duration_ms) else {}
    if has_model_payload(name):
        payload = _with_worker(payload) if name in TASK_START_TYPES else payload
        error = {"error": _error(payload["error"])} if payload.get("error") is not None else {}
        return {**payload, **error, **({} if _has_duration(payload) else duration)}
    fields = {key: value for key, value in payload.items() if key in _FIELDS[name] and key != "error"}
    meta, outcome, error = payload.get("meta"), payload.get("outcome"), payload.get("error")
    if isinstance(meta, dict):
        excluded = _excluded_meta(name)
        fields |= {key: value for key, value in cast("dict[str, Any]", meta).items() if key not in excluded}
    if payload.get("result_ref") is not None:
        fields["resultRef"] = payload["result_ref"]
    elif isinstance(outcome, dict) and "result" in outcome:
        fields["result"] = outcome["result"]
    if error is None and isinstance(outcome, dict):
        error = cast("dict[str, Any]", outcome).get("error")
    if error is not None and name != "RunCancelled":
        fields["error"] = _error(error)
    return {**fields, **duration}


def _with_worker(payload: dict[str, Any]) -> dict[str, Any]:
    """Move the worker of a task from `meta` to the top level, where the catalogue has it."""
    meta: Any = payload.get("meta")
    if not isinstance(meta, dict) or not isinstance(worker := cast("dict[str, Any]", meta).get("worker"), str):
        return payload
    other_meta = {key: value for key, value in cast("dict[str, Any]", meta).items() if key != "worker"}
    others = {key: value for key, value in payload.items() if key != "meta"}
    return {**others, **({"meta": other_meta} if other_meta else {}), "worker": worker}


def _excluded_meta(name: str) -> tuple[str, ...]:
    """Fields of `meta` that are not part of our payload: the view adds them."""
    return (EXTRAS, "planVersion") if name == "WorkflowFinished" else (EXTRAS, "planVersion", "runStatus")


def _has_duration(payload: dict[str, Any]) -> bool:
    outcome: Any = payload.get("outcome")
    meta: Any = cast("dict[str, Any]", outcome).get("meta") if isinstance(outcome, dict) else None
    return isinstance(meta, dict) and is_duration(cast("dict[str, Any]", meta).get("duration_ms"))


def _error(error: Any) -> dict[str, Any]:
    return cast("dict[str, Any]", error) if isinstance(error, dict) else {"message": str(error)}


def _valid_or_empty(name: str, payload: dict[str, Any]) -> dict[str, Any]:
    """Return the payload if it is valid for its type; otherwise nothing, and it is stored with the extra fields."""
    kind = CATALOG.get(name)
    if kind is None:
        return payload
    try:
        msgspec.convert(payload, kind.payload)
    except msgspec.ValidationError:
        return {}
    return payload


def _utc_time(text: str) -> str:
    if is_utc(text):
        return text
    try:
        moment = datetime.fromisoformat(text)
        if moment.tzinfo is not None:
            return from_micros(int(moment.astimezone(UTC).timestamp() * 1e6))
    except OverflowError:
        raise validation_error(f"timestamp {text[:40]!r} must be within the years 1 to 9999 in UTC.") from None
    except ValueError:
        pass
    raise validation_error(
        f"timestamp {text[:40]!r} must be an RFC 3339 time with a zone, such as 2026-02-05T23:11:22Z."
    )


def _required_text(document: dict[str, Any], name: str) -> str:
    value = document.get(name)
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)  # some servers number their executions and events
    if not isinstance(value, str) or not value:
        raise validation_error(f"{name} must be a non-empty text.")
    return value
