"""Events in the words of the NoETL event model, brought to ours. The way back from `noetl_event`.

What older executors emit is given its name of today; what no model knows keeps its own name, and changes nothing.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, cast

import msgspec

from .catalog import CATALOG
from .errors import ErrorCode, RunwrightError
from .events import RunEventRecord
from .noetl import BEGINNINGS, ORDINALS, is_as_it_is
from .noetl_names import UNDER_WAY, canonical, our_type
from .noetl_places import MOST, Whereabouts, attempt_in
from .noetl_rest import ENTITIES, REST, is_duration, rest_of
from .paths import EntityPath, parse_path
from .timestamps import from_micros, is_utc

_ENDS = (
    ("StepCompleted", "StepFailed", "StepSkipped"),
    ("TaskDone", "TaskFailed"),
    ("TaskAttemptDone", "TaskAttemptFailed"),
    ("LoopIterationDone", "LoopIterationFailed"),
)
_OF_ATTEMPTS = frozenset(
    {
        *("TaskAttemptStarted", "TaskAttemptDone", "TaskAttemptFailed", "PolicyTaskEvaluated"),
        *("ResultStored", "ResultManifestUpdated"),
    }
)
_FIELDS = {
    name: frozenset(field.encode_name for field in msgspec.structs.fields(kind.payload))
    for name, kind in CATALOG.items()
}
_CHECKPOINT = CATALOG["CheckpointWritten"].dotted  # of a step, or of one of its tasks
_replace = msgspec.structs.replace
_MOST_ATTEMPTS = 2**31 - 1
TELLING = frozenset(name for name in CATALOG if name.startswith(("Step", "Task", "LoopIteration")))
"""Types from which one learns what the ids of steps and tasks stand for."""


class Incoming(msgspec.Struct, frozen=True):
    """One event of theirs, in our words."""

    event_type: str
    run_id: str
    event_id: str
    emitted_at: str
    emitted_by: str | None
    place: EntityPath | str | None
    attempt: int
    payload: dict[str, Any]
    given: dict[str, Any] = {}  # as it came
    says_visit: bool = False  # which visit it belongs to is not for us to find out
    is_renamed: bool = False
    is_under_way: bool = False  # it says that the run has started

    @property
    def step_id(self) -> str | None:
        return None if self.place is None else str(self.place)

    @property
    def spot(self) -> tuple[str, str | None, int]:
        """What an event is told by in a run; two of theirs may want the same."""
        return (self.event_type, self.step_id, self.attempt)

    @property
    def rivals(self) -> list[tuple[str, str | None, int]]:
        """Spots that must be free as well: what has ended one way cannot end another. A log that does not count visits
        means the next one."""
        others = () if self.says_visit else next((ends for ends in _ENDS if self.event_type in ends), ())
        return [(other, self.step_id, self.attempt) for other in others if other != self.event_type]

    def further(self) -> Incoming:
        """The same at the next spot: a further visit of its step or task, or a further attempt."""
        place = self.place
        is_counted = self.event_type in _OF_ATTEMPTS or (self.says_visit and self.event_type in ORDINALS)
        if not isinstance(place, EntityPath) or is_counted or (place.indexes and not place.task):
            return _replace(self, attempt=self.attempt + 1)
        if place.task is not None:
            place = _replace(place, task_visit=place.task_visit + 1)
        else:
            place = _replace(place, visit=place.visit + 1)
        return _replace(self, place=place)

    def at(self, place: EntityPath | str | None, attempt: int) -> Incoming:
        return self if attempt == self.attempt and place == self.place else _replace(self, place=place, attempt=attempt)

    def implied(self, event_type: str, event_id: str) -> Incoming:
        """An event of the whole run that must have happened before this one."""
        return Incoming(event_type, self.run_id, event_id, self.emitted_at, None, None, 1, {"impliedBy": self.event_id})

    def rest(self, shown: dict[str, Any]) -> dict[str, Any]:
        """What it says beyond what ours would show of it."""
        given = self.given
        if self.is_renamed:
            given = {name: value for name, value in given.items() if name != "event_alias"}
        moved = frozenset[str]()
        if not is_as_it_is(self.event_type):
            known = _FIELDS[self.event_type] & self.payload.keys() - {"error"}
            outer, _ = _payload_of(given)
            moved = frozenset(name for name in known if outer.get(name, self.payload[name]) == self.payload[name])
        return rest_of(given, shown, moved)


class NoetlReader:
    """Reads one stream, and remembers of its runs which step or task an id stands for."""

    def __init__(self) -> None:
        self._runs: dict[str, Whereabouts] = {}

    def read(self, document: dict[str, Any]) -> Incoming:
        document = _named(document)
        run_id, event_id = _text(document, "execution_id"), _text(document, "event_id")
        given, status = _text(document, "event_type"), str(document.get("status"))
        payload, carried = _payload_of(document)
        dotted = canonical(given, status, payload)
        name = our_type(given, dotted, status, payload)
        place = self._of(run_id).place(_entity(dotted, document), document)
        kind = CATALOG.get(name)
        if kind is not None and kind.level == "step" and place is None:
            raise _refused(f"{given} is about a step, and does not say which: give entity_id or step_run_id.")
        ours = _fitting(name, _payload(name, payload, document.get("duration_ms")))
        source = document.get("source")
        return Incoming(
            event_type=name,
            run_id=run_id,
            event_id=event_id,
            emitted_at=_time(_text(document, "timestamp")),
            emitted_by=f"noetl/{source}" if source in ("server", "worker") else None,
            place=place,
            attempt=_attempt(name, document),
            payload=ours if dotted == given else {**ours, "legacyType": given},
            given={**document, **carried},
            says_visit=any(isinstance(document.get(field), str) for field in ("step_run_id", "task_run_id")),
            is_renamed=dotted != given,
            is_under_way=given in UNDER_WAY,
        )

    def is_lost(self, document: dict[str, Any]) -> bool:
        """Whether the log should be asked first what the ids in it stand for."""
        run_id, name = document.get("execution_id"), document.get("event_type")
        if run_id is None or not isinstance(name, str):
            return False
        payload, _ = _payload_of(document)
        dotted = canonical(name, str(document.get("status")), payload)
        return self._of(str(run_id)).is_lost(_entity(dotted, document), _named(document))

    def learn(self, event: Incoming) -> None:
        """The event is where it says."""
        if isinstance(event.place, EntityPath) and event.event_type in TELLING:
            self._of(event.run_id).learn(event.place, event.given)

    def recall(self, record: RunEventRecord) -> None:
        """What was learnt when this came."""
        place = None if record.step_id is None else parse_path(record.step_id)
        if place is not None:
            rest: Any = (record.payload or {}).get(REST)
            ids = cast("dict[str, Any]", rest) if isinstance(rest, dict) else {}
            self._of(record.run_id).learn(place, ids, is_old=True)

    def _of(self, run_id: str) -> Whereabouts:
        return self._runs.setdefault(run_id, Whereabouts())


def plan_of(document: dict[str, Any]) -> tuple[str, str | None] | None:
    """The playbook that an event names, and its version if it says."""
    name, given = document.get("entity_id"), document.get("event_type")
    if not isinstance(given, str) or not given.startswith("playbook.") or not isinstance(name, str) or not name:
        return None
    found: Any = document
    for field in ("payload", "meta", "planVersion"):
        found = cast("dict[str, Any]", found).get(field) if isinstance(found, dict) else None
    return name.replace("|", "¦")[:MOST], found if isinstance(found, str) and found else None


def _entity(dotted: str, document: dict[str, Any]) -> str:
    """What it is about; an entity of an earlier model is what its event is called today."""
    given = document.get("entity_type")
    entity = given if given in ENTITIES else dotted.partition(".")[0]
    return "task" if dotted == _CHECKPOINT and isinstance(document.get("task_run_id"), str) else entity


def _named(document: dict[str, Any]) -> dict[str, Any]:
    """Servers that speak no model call an entity a node."""
    name = document.get("node_name")
    return {**document, "entity_id": name} if name and "entity_id" not in document else document


def _attempt(name: str, document: dict[str, Any]) -> int:
    given: Any = document.get("attempt")
    if not isinstance(given, int) or isinstance(given, bool) or given < 1:
        given = attempt_in(document) if name in _OF_ATTEMPTS else None
    if given is not None and given > _MOST_ATTEMPTS:
        raise _refused(f"attempt is a whole number from 1 to {_MOST_ATTEMPTS:,}.")
    return given or 1


# Payloads


def _payload_of(document: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The payload, and what our view put into it because the model has no place for it."""
    given: Any = document.get("payload")
    payload = dict(cast("dict[str, Any]", given)) if isinstance(given, dict) else {}
    if not isinstance(payload.get(REST), dict):
        return payload, {}
    carried: dict[str, Any] = payload.pop(REST)
    return payload, {"payload": payload, **carried}


def _payload(name: str, payload: dict[str, Any], took: Any) -> dict[str, Any]:
    """As ours of this type has it: what the model puts into `meta` and `outcome` goes back to its place."""
    duration = {"durationMs": took} if is_duration(took) else {}
    if is_as_it_is(name):
        payload = _with_worker(payload) if name in BEGINNINGS else payload
        error = {"error": _error(payload["error"])} if payload.get("error") is not None else {}
        return {**payload, **error, **({} if _has_duration(payload) else duration)}
    ours = {key: value for key, value in payload.items() if key in _FIELDS[name] and key != "error"}
    meta, outcome, error = payload.get("meta"), payload.get("outcome"), payload.get("error")
    if isinstance(meta, dict):
        ours |= {key: value for key, value in cast("dict[str, Any]", meta).items() if key not in _hidden(name)}
    if payload.get("result_ref") is not None:
        ours["resultRef"] = payload["result_ref"]
    elif isinstance(outcome, dict) and "result" in outcome:
        ours["result"] = outcome["result"]
    if error is None and isinstance(outcome, dict):
        error = cast("dict[str, Any]", outcome).get("error")
    if error is not None and name != "RunCancelled":
        ours["error"] = _error(error)
    return {**ours, **duration}


def _with_worker(payload: dict[str, Any]) -> dict[str, Any]:
    """Who took a task up goes from `meta` to where ours have it."""
    meta: Any = payload.get("meta")
    if not isinstance(meta, dict) or not isinstance(worker := cast("dict[str, Any]", meta).get("worker"), str):
        return payload
    others = {key: value for key, value in cast("dict[str, Any]", meta).items() if key != "worker"}
    rest = {key: value for key, value in payload.items() if key != "meta"}
    return {**rest, **({"meta": others} if others else {}), "worker": worker}


def _hidden(name: str) -> tuple[str, ...]:
    """What the view adds to `meta`, and what is ours to say."""
    return (REST, "planVersion") if name == "WorkflowFinished" else (REST, "planVersion", "runStatus")


def _has_duration(payload: dict[str, Any]) -> bool:
    outcome: Any = payload.get("outcome")
    meta: Any = cast("dict[str, Any]", outcome).get("meta") if isinstance(outcome, dict) else None
    return isinstance(meta, dict) and is_duration(cast("dict[str, Any]", meta).get("duration_ms"))


def _error(error: Any) -> dict[str, Any]:
    return cast("dict[str, Any]", error) if isinstance(error, dict) else {"message": str(error)}


def _fitting(name: str, payload: dict[str, Any]) -> dict[str, Any]:
    """What does not fit our type is no part of it: it is kept with the rest."""
    kind = CATALOG.get(name)
    if kind is None:
        return payload
    try:
        msgspec.convert(payload, kind.payload)
    except msgspec.ValidationError:
        return {}
    return payload


def _time(text: str) -> str:
    if is_utc(text):
        return text
    try:
        moment = datetime.fromisoformat(text)
        if moment.tzinfo is not None:
            return from_micros(int(moment.astimezone(UTC).timestamp() * 1e6))
    except OverflowError:
        raise _refused(f"timestamp {text[:40]!r} is outside of the years 1 to 9999 in UTC.") from None
    except ValueError:
        pass
    raise _refused(f"timestamp {text[:40]!r} is no RFC 3339 time with its zone, such as 2026-02-05T23:11:22Z.")


def _text(document: dict[str, Any], name: str) -> str:
    value = document.get(name)
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)  # some servers count their executions and events
    if not isinstance(value, str) or not value:
        raise _refused(f"{name} must be there, and be text.")
    return value


def _refused(sentence: str) -> RunwrightError:
    return RunwrightError(ErrorCode.SCHEMA_VALIDATION_FAILED, sentence)
