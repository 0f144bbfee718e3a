"""EventIdRegistry: an event keeps its id over repeated attempts to append it."""

from __future__ import annotations

from functools import cache

from runwright.contract.catalog import CATALOG
from runwright.contract.clock import Ids
from runwright.contract.events import Receipt, RunIdentity
from runwright.core.scheduling.drafts import Draft
from runwright.log.append.prepare import PreparedEvent, prepare_own

_EventKey = tuple[str, str | None, int]
"""Event type, step id, logical attempt id."""


class EventIdRegistry:
    """Ids of events whose append has not been confirmed. Confirmed events are in the log and found there by key."""

    def __init__(self, ids: Ids, run: RunIdentity, runtime: str) -> None:
        self._ids = ids
        self._context = run.context
        self._emitters = _emitters(runtime)
        self._unconfirmed: dict[_EventKey, str] = {}

    def prepare(self, draft: Draft) -> PreparedEvent:
        """Prepare a draft for the append, with the id of an earlier attempt to append it if there was one."""
        event_id = None
        if self._unconfirmed:
            event_id = self._unconfirmed.get((draft.event_type, draft.step_id, draft.logical_attempt_id))
        if event_id is None:
            event_id = self._ids.event_id()
        return prepare_own(
            self._context,
            event_id,
            draft.event_type,
            draft.step_id,
            (draft.engine_attempt_id, draft.logical_attempt_id),
            draft.emitted_at,
            self._emitters[draft.event_type],
            draft.raw_payload,
        )

    def remember(self, events: list[PreparedEvent]) -> None:
        """Store the ids of events whose append is not confirmed: if they are drafted again, they get the same ids."""
        for event in events:
            self._unconfirmed[_key(event)] = event.event_id

    def on_appended(self, events: list[PreparedEvent], receipts: list[Receipt]) -> list[str]:
        """Forget the ids of appended events. Returns the types of those that the log already had under another id."""
        foreign: list[str] = []
        for event, receipt in zip(events, receipts, strict=True):
            if self._unconfirmed:
                self._unconfirmed.pop(_key(event), None)
            if receipt.event_id != event.event_id:
                foreign.append(event.stored.event_type)
        return foreign


@cache
def _emitters(runtime: str) -> dict[str, str]:
    """Map each event type to the emitter of its events."""
    return {name: f"{runtime}/{kind.role}" for name, kind in CATALOG.items()}


def _key(event: PreparedEvent) -> _EventKey:
    stored = event.stored
    return (stored.event_type, stored.step_id, stored.logical_attempt_id)
