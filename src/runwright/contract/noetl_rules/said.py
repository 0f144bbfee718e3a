"""One event of a log in the words of the NoETL event model, with only what can be relied on.

A field that is missing, null or of the wrong type is None here: whoever applies a rule need not look twice.
"""

from __future__ import annotations

from typing import Any, cast

import msgspec

LARGEST = 2**53
"""Whole numbers beyond it are not the same in every reader of JSON."""

STOPS = frozenset({"cancelled", "canceled", "killed", "timeout", "run_timeout", "operator"})
"""What errors are called of whatever was stopped before it could end by itself."""

_GOOD, _BAD = frozenset({"ok", "success"}), frozenset({"error", "failed", "failure"})


class Said(msgspec.Struct, frozen=True, eq=False):
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
    family: str  # the first word of its name
    verb: str  # the last one
    is_orphan: bool  # its parent was said to be null

    def part(self, *names: str) -> dict[str, Any]:
        """A mapping inside the payload; an empty one where there is none."""
        found = self.payload
        for name in names:
            found = mapping(found.get(name))
        return found

    @property
    def meta(self) -> dict[str, Any]:
        return self.part("meta")

    @property
    def outcome(self) -> bool | None:
        """Whether the outcome is said to be good; None if it does not say."""
        status = self.part("outcome").get("status")
        if not isinstance(status, str):
            return None
        return True if status in _GOOD else False if status in _BAD else None

    @property
    def trouble(self) -> frozenset[str]:
        """By which words the error in it can be told, in lower case."""
        errors = (self.part("error"), self.part("outcome", "error"))
        words = [error.get(field) for error in errors for field in ("code", "kind", "category")]
        return frozenset(word.lower() for word in words if isinstance(word, str))


def read_said(event: dict[str, Any]) -> Said | None:
    """None if it cannot be told what it is, or which execution it belongs to."""
    event_id, name, execution = text(event, "event_id"), text(event, "event_type"), text(event, "execution_id")
    if event_id is None or name is None or execution is None:
        return None
    return Said(
        event_id,
        name,
        execution,
        text(event, "source"),
        text(event, "entity_id"),
        text(event, "parent_id"),
        text(event, "workflow_run_id"),
        text(event, "step_run_id"),
        text(event, "task_run_id"),
        number(event, "iteration", 0),
        text(event, "iteration_id"),
        number(event, "attempt", 1),
        text(event, "status"),
        number(event, "seq", 0),
        mapping(event.get("payload")),
        name.partition(".")[0],
        name.rpartition(".")[2],
        "parent_id" in event and event["parent_id"] is None,
    )


def mapping(value: Any) -> dict[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def text(event: dict[str, Any], field: str) -> str | None:
    value = event.get(field)
    return value if isinstance(value, str) and value else None


def number(event: dict[str, Any], field: str, least: int) -> int | None:
    value = event.get(field)
    return value if type(value) is int and least <= value <= LARGEST else None
