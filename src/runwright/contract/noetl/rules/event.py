"""One event of a NoETL log with validated fields, and the findings of the checker.

A field that is missing, null or of the wrong type is None here, so that the rules need not check types again.
"""

from __future__ import annotations

from typing import Any, cast

import msgspec

MAX_INTEGER = 2**53
"""JSON readers that use doubles lose precision on larger integers."""

STOP_CODES = frozenset({"cancelled", "canceled", "killed", "timeout", "run_timeout", "operator"})
"""Error codes of entities that were stopped before they could end by themselves."""

_SUCCESS, _FAILURE = frozenset({"ok", "success"}), frozenset({"error", "failed", "failure"})


class CheckedEvent(msgspec.Struct, frozen=True, eq=False):
    event_id: str
    name: str
    execution_id: str
    source: str | None
    entity_id: str | None
    parent_id: str | None
    workflow_run_id: str | None
    step_run_id: str | None
    task_run_id: str | None
    iteration: int | None
    iteration_id: str | None
    attempt: int | None
    status: str | None
    seq: int | None
    payload: dict[str, Any]
    family: str  # first segment of the name
    verb: str  # last segment of the name
    has_null_parent: bool  # `parent_id` is present and null

    def part(self, *names: str) -> dict[str, Any]:
        """Return a mapping inside the payload, or an empty one if there is none."""
        found = self.payload
        for name in names:
            found = mapping(found.get(name))
        return found

    @property
    def meta(self) -> dict[str, Any]:
        return self.part("meta")

    @property
    def outcome(self) -> bool | None:
        """Whether the outcome is a success; None if the event does not specify it."""
        status = self.part("outcome").get("status")
        if not isinstance(status, str):
            return None
        return True if status in _SUCCESS else False if status in _FAILURE else None

    @property
    def error_codes(self) -> frozenset[str]:
        """The code, kind and category of the event's errors, in lower case."""
        errors = (self.part("error"), self.part("outcome", "error"))
        codes = [error.get(field) for error in errors for field in ("code", "kind", "category")]
        return frozenset(code.lower() for code in codes if isinstance(code, str))


def parse_event(document: dict[str, Any]) -> CheckedEvent | None:
    """Return the event, or None if its id, name or execution is missing."""
    event_id, name = text(document, "event_id"), text(document, "event_type")
    execution_id = text(document, "execution_id")
    if event_id is None or name is None or execution_id is None:
        return None
    return CheckedEvent(
        event_id,
        name,
        execution_id,
        text(document, "source"),
        text(document, "entity_id"),
        text(document, "parent_id"),
        text(document, "workflow_run_id"),
        text(document, "step_run_id"),
        text(document, "task_run_id"),
        number(document, "iteration", 0),
        text(document, "iteration_id"),
        number(document, "attempt", 1),
        text(document, "status"),
        number(document, "seq", 0),
        mapping(document.get("payload")),
        name.partition(".")[0],
        name.rpartition(".")[2],
        "parent_id" in document and document["parent_id"] is None,
    )


def mapping(value: Any) -> dict[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def text(document: dict[str, Any], field: str) -> str | None:
    value = document.get(field)
    return value if isinstance(value, str) and value else None


def number(document: dict[str, Any], field: str, minimum: int) -> int | None:
    value = document.get(field)
    return value if type(value) is int and minimum <= value <= MAX_INTEGER else None


# Findings


class NoetlFinding(msgspec.Struct, frozen=True):
    """One violation of the event model, or a warning."""

    code: str
    sentence: str
    event_id: str | None = None
    seq: int | None = None
    is_warning: bool = False


class FindingCollector:
    """Collects findings. A finding is about the current event unless another event is passed."""

    def __init__(self) -> None:
        self.findings: list[NoetlFinding] = []
        self.event_id: str | None = None
        self.seq: int | None = None

    def set_event(self, event_id: str | None, seq: int | None) -> None:
        self.event_id, self.seq = event_id, seq

    def add(self, code: str, sentence: str, *, warning: bool = False, about: CheckedEvent | None = None) -> None:
        event_id, seq = (self.event_id, self.seq) if about is None else (about.event_id, about.seq)
        self.findings.append(NoetlFinding(code, sentence, event_id, seq, warning))
