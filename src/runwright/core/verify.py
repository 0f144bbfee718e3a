"""Is this run's history what was once acknowledged? Read it from the start, and every edit shows."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from runwright.contract.events import RunIdentity
from runwright.contract.keys import key_bytes

from .chain import GENESIS, StoredEvent, link, run_part


class Finding(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """One thing that is not as it should be (or, for REDACTED, that a reader should know)."""

    run_id: str
    kind: str
    detail: str
    run_seq: int | None = None

    @property
    def is_damage(self) -> bool:
        return self.kind != "REDACTED"


class RunVerifier:
    """Checks a run's events as they are read, in order.

    After a break the check goes on from the hash that is stored, so that one edit is one finding and
    not one for each event that follows it.
    """

    def __init__(self, run: RunIdentity, enforcement: str) -> None:
        self.seq = 0
        self._run = run
        self._part = run_part(run, enforcement)
        self._previous: bytes | None = GENESIS
        self._first_at = self._last_at = 0

    def check(self, event: StoredEvent) -> Iterator[Finding]:
        seq, run_id = self.seq, self._run.run_id
        if event.run_seq > seq + 1:
            last = event.run_seq - 1
            gone = f"event {last} was" if last == seq + 1 else f"events {seq + 1} to {last} were"
            yield Finding(run_id, "MISSING", f"{gone} removed from the history", seq + 1)
            self._previous = None  # what this event was chained to is gone
        elif event.run_seq < 1:
            yield Finding(run_id, "INSERTED", "an event stands before the first one", event.run_seq)
            return
        yield from _check_event(self._run, self._part, self._previous, event)
        self._previous, self.seq = event.hash, event.run_seq
        self._last_at = event.persisted_at
        self._first_at = self._first_at or event.persisted_at

    def finish(self, last_seq: int, head: bytes, created_at: int, persisted_at: int) -> Iterator[Finding]:
        """Compare the end of the history with what the run's row says of it."""
        wrong = list(self._compare_end(last_seq, head))
        if not wrong and last_seq and (created_at > self._first_at or persisted_at != self._last_at):
            wrong = [Finding(self._run.run_id, "CHANGED", "the times on the run's row are not those of its events")]
        yield from wrong

    def _compare_end(self, last_seq: int, head: bytes) -> Iterator[Finding]:
        seq, run_id = self.seq, self._run.run_id
        if seq < last_seq:
            yield Finding(
                run_id, "MISSING", f"the run's row counts {last_seq} events; the history ends at {seq}", seq + 1
            )
        elif seq > last_seq:
            yield Finding(
                run_id, "INSERTED", f"the run's row ends at event {last_seq}; the history goes on", last_seq + 1
            )
        elif self._previous != head:
            yield Finding(run_id, "CHANGED", "the run's row names another last hash than its last event", last_seq)


def _check_event(run: RunIdentity, part: bytes, previous: bytes | None, event: StoredEvent) -> Iterator[Finding]:
    if not _has_its_key(run, event):
        yield Finding(run.run_id, "CHANGED", "the idempotency key does not belong to this event", event.run_seq)
    elif previous is not None and not _is_linked(previous, part, event):
        yield Finding(
            run.run_id, "CHANGED", "the event, or its place in the history, is not as appended", event.run_seq
        )
    elif event.payload_digest is not None and event.raw_payload is not None:
        yield Finding(run.run_id, "CHANGED", "an erased payload was filled in again", event.run_seq)
    elif event.payload_digest is not None:
        yield Finding(run.run_id, "REDACTED", "the payload was erased; its digest still fits the chain", event.run_seq)


def _is_linked(previous: bytes, part: bytes, event: StoredEvent) -> bool:
    try:
        return link(previous, part, event) == event.hash
    except (TypeError, AttributeError, ValueError):
        return False  # a column holds something that was never written: another type, or broken text


def _has_its_key(run: RunIdentity, event: StoredEvent) -> bool:
    plan = (run.plan_id, run.plan_version)
    try:
        key = key_bytes(run.run_id, event.step_id, event.logical_attempt_id, event.event_type, *plan)
    except ValueError:
        return False
    return key == event.idempotency_key
