"""Fold stored events, check that a redaction changes no state, and compare a run's row with the fold."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from runwright.contract.errors import ErrorCode, RunwrightError
from runwright.contract.snapshot import RunSummary
from runwright.contract.transitions import RunStatus
from runwright.core.fold.evolve import evolve
from runwright.core.fold.run_state import RunState
from runwright.core.integrity.chain import StoredEvent, payload_digest
from runwright.log.append.aggregate import encode_summary

from .model import RunRow

_PROMOTED = ("status", "provider", "workflow_id", "provider_run_id")
"""Fields of the summary that also have their own column, for lookups."""


class FoldRow(msgspec.Struct, gc=False):
    """The columns of a stored event that a fold needs: reading fewer columns makes replay faster."""

    run_seq: int
    event_type: str
    schema_version: int
    step_id: str | None
    engine_attempt_id: int
    logical_attempt_id: int
    emitted_at: str
    persisted_at: int
    raw_payload: bytes | None


def fold_rows(
    state: RunState, rows: Iterable[StoredEvent | FoldRow], until_seq: int | None, until_time: int | None
) -> bool:
    """Fold events up to a sequence number or time; False once that point is passed."""
    if until_seq is None and until_time is None:
        for event in rows:
            evolve(state, event)
        return True
    for event in rows:
        if until_seq is not None and event.run_seq > until_seq:
            return False
        if until_time is not None and event.persisted_at > until_time:
            return False
        evolve(state, event)
    return True


def erase_payload(events: list[StoredEvent], run_seq: int) -> RunState:
    """Erase the payload of an event; return the state without it. Refused if the state would differ."""
    before, after = RunState(), RunState()
    fold_rows(before, events, None, None)
    event = events[run_seq - 1]
    event.payload_digest = event.payload_digest or payload_digest(event.raw_payload)
    event.raw_payload = None
    fold_rows(after, events, None, None)
    if _control_state(before) != _control_state(after):
        raise RunwrightError(
            ErrorCode.INVALID_ARGUMENT,
            f"Cannot erase the payload of event {run_seq}: the state of the run depends on it. Wait until the run "
            "has ended, or leave this payload.",
        )
    return after


def _control_state(state: RunState) -> object:
    """Return the part of the state that a redaction must not change."""
    summary = state.summary
    waits = summary.approval_required and summary.status is RunStatus.PENDING
    steps = {
        step_id: (step_state.attempt, step_state.status, step_state.past) for step_id, step_state in state.steps.items()
    }
    return (summary.status, summary.inconsistent, waits, steps)


def summary_differs(row: RunRow, summary: RunSummary) -> bool:
    """Whether a run's row differs from the fold of its events."""
    return row.summary_text != encode_summary(summary) or any(
        getattr(row, column) != getattr(summary, column) for column in _PROMOTED
    )
