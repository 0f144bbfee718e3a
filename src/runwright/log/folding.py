"""Folding stored events, and holding a run's row against the fold."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from runwright.contract.errors import ErrorCode, RunwrightError
from runwright.contract.snapshot import RunSummary
from runwright.contract.transitions import RunStatus
from runwright.core.chain import StoredEvent, payload_digest
from runwright.core.evolve import evolve
from runwright.core.state import RunState

from .model import RunRow
from .openrun import encode_summary

_PROMOTED = ("status", "provider", "workflow_id", "provider_run_id")
"""Fields of the summary that have a column of their own, to be looked up by."""


class FoldRow(msgspec.Struct, gc=False):
    """As much of a stored event as a fold looks at: reading less of it makes replay faster."""

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
    """Fold events up to a point; False once the point is passed."""
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


def erase(events: list[StoredEvent], run_seq: int) -> RunState:
    """Take an event's payload out; gives the state without it. Refused where that would be another state."""
    with_it, without = RunState(), RunState()
    fold_rows(with_it, events, None, None)
    event = events[run_seq - 1]
    event.payload_digest = event.payload_digest or payload_digest(event.raw_payload)
    event.raw_payload = None
    fold_rows(without, events, None, None)
    if _meaning(with_it) != _meaning(without):
        raise RunwrightError(
            ErrorCode.INVALID_ARGUMENT,
            f"Without the payload of event {run_seq} the run would be in another state. Let the run end first, "
            "or keep this payload: it decides what the run may do.",
        )
    return without


def _meaning(state: RunState) -> object:
    """What must stay the same of a run when words are taken out of its history."""
    summary = state.summary
    waits = summary.approval_required and summary.status is RunStatus.PENDING
    steps = {step_id: (cell.attempt, cell.status, cell.past) for step_id, cell in state.steps.items()}
    return (summary.status, summary.inconsistent, waits, steps)


def summary_differs(row: RunRow, summary: RunSummary) -> bool:
    """Whether a run's row says anything else than the fold of its events."""
    return row.summary_text != encode_summary(summary) or any(
        getattr(row, column) != getattr(summary, column) for column in _PROMOTED
    )
