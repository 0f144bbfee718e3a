"""EventIdRegistry: an event keeps the id it was given, however often it has to be offered to the log."""

from __future__ import annotations

import msgspec

from runwright.contract.clock import Ids
from runwright.contract.events import NO_PAYLOAD, Receipt, RunEventWrite, RunIdentity
from runwright.contract.keys import idempotency_key
from runwright.core.draft import Draft


class EventIdRegistry:
    """The ids of events on their way. Those that arrived are in the log, and found there by their key."""

    def __init__(self, ids: Ids, run: RunIdentity, runtime: str) -> None:
        self._ids = ids
        self._run = run
        self._runtime = runtime
        self._drawn: dict[str, str] = {}

    def event(self, made: Draft) -> RunEventWrite:
        run = self._run
        key = idempotency_key(
            run.run_id, made.step_id, made.logical_attempt_id, made.event_type, run.plan_id, run.plan_version
        )
        event_id = self._drawn.get(key)
        if event_id is None:
            event_id = self._drawn[key] = self._ids.event_id()
        return RunEventWrite(
            event_id=event_id,
            event_type=made.event_type,
            run_id=run.run_id,
            tenant_id=run.tenant_id,
            project_id=run.project_id,
            environment_id=run.environment_id,
            plan_id=run.plan_id,
            plan_version=run.plan_version,
            engine_attempt_id=made.engine_attempt_id,
            logical_attempt_id=made.logical_attempt_id,
            idempotency_key=key,
            emitted_at=made.emitted_at,
            step_id=made.step_id,
            emitted_by=f"{self._runtime}/{made.role}",
            raw_payload=NO_PAYLOAD if made.raw_payload is None else msgspec.Raw(made.raw_payload),
        )

    def settled(self, events: list[RunEventWrite], receipts: list[Receipt]) -> list[RunEventWrite]:
        """They are in the log. Gives back those that were there before, under another id: not ours."""
        foreign: list[RunEventWrite] = []
        for event, receipt in zip(events, receipts, strict=True):
            self._drawn.pop(event.idempotency_key, None)
            if receipt.event_id != event.event_id:
                foreign.append(event)
        return foreign
