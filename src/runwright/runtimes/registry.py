"""EventIdRegistry: an event keeps the id it was given, however often it has to be offered to the log."""

from __future__ import annotations

from functools import cache

from runwright.contract.catalog import CATALOG
from runwright.contract.clock import Ids
from runwright.contract.events import Receipt, RunIdentity
from runwright.core.draft import Draft
from runwright.log.prepare import Prepared, prepare_own

_Key = tuple[str, str | None, int]


class EventIdRegistry:
    """The ids of events that were offered in vain. Those that arrived are in the log, and found there by their key."""

    def __init__(self, ids: Ids, run: RunIdentity, runtime: str) -> None:
        self._ids = ids
        self._context = run.context
        self._emitters = _emitters(runtime)
        self._drawn: dict[_Key, str] = {}

    def event(self, made: Draft) -> Prepared:
        event_id = None
        if self._drawn:
            event_id = self._drawn.get((made.event_type, made.step_id, made.logical_attempt_id))
        if event_id is None:
            event_id = self._ids.event_id()
        return prepare_own(
            self._context,
            event_id,
            made.event_type,
            made.step_id,
            (made.engine_attempt_id, made.logical_attempt_id),
            made.emitted_at,
            self._emitters[made.event_type],
            made.raw_payload,
        )

    def keep(self, events: list[Prepared]) -> None:
        """They were offered, and may be drafted anew: then under the same ids."""
        for event in events:
            self._drawn[_key(event)] = event.event_id

    def settled(self, events: list[Prepared], receipts: list[Receipt]) -> list[str]:
        """They are in the log. Gives back the types of those that were there before under another id: not ours."""
        foreign: list[str] = []
        for event, receipt in zip(events, receipts, strict=True):
            if self._drawn:
                self._drawn.pop(_key(event), None)
            if receipt.event_id != event.event_id:
                foreign.append(event.stored.event_type)
        return foreign


@cache
def _emitters(runtime: str) -> dict[str, str]:
    """Who says what, by the type of the event."""
    return {name: f"{runtime}/{kind.role}" for name, kind in CATALOG.items()}


def _key(event: Prepared) -> _Key:
    stored = event.stored
    return (stored.event_type, stored.step_id, stored.logical_attempt_id)
