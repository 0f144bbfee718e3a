"""Verify the hash chain of a run: a streaming check that finds every edit of an acknowledged event."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from runwright.contract.events import RunIdentity
from runwright.contract.keys import key_bytes

from .chain import GENESIS, StoredEvent, encode_run_fields, link


class Finding(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A deviation of the log from its hash chain, or, of kind REDACTED, a payload that was erased legitimately."""

    run_id: str
    kind: str
    detail: str
    run_seq: int | None = None

    @property
    def is_damage(self) -> bool:
        return self.kind != "REDACTED"


class RunVerifier:
    """Check the events of a run as they are read, in order.

    After a broken link the check continues from the stored hash, so that one edit yields one finding and not one for
    each event that follows it.
    """

    def __init__(self, run: RunIdentity, enforcement: str) -> None:
        self.seq = 0
        self._run = run
        self._run_fields = encode_run_fields(run, enforcement)
        self._previous: bytes | None = GENESIS
        self._first_at = self._last_at = 0

    def check(self, event: StoredEvent) -> Iterator[Finding]:
        seq, run_id = self.seq, self._run.run_id
        if event.run_seq > seq + 1:
            last = event.run_seq - 1
            missing = f"event {last} was" if last == seq + 1 else f"events {seq + 1} to {last} were"
            yield Finding(run_id, "MISSING", f"{missing} removed from the history", seq + 1)
            self._previous = None  # the event that this one is linked to is missing
        elif event.run_seq < 1:
            yield Finding(run_id, "INSERTED", "an event was inserted before the first one", event.run_seq)
            return
        yield from _check_event(self._run, self._run_fields, self._previous, event)
        self._previous, self.seq = event.hash, event.run_seq
        self._last_at = event.persisted_at
        self._first_at = self._first_at or event.persisted_at

    def finish(self, last_seq: int, head: bytes, created_at: int, persisted_at: int) -> Iterator[Finding]:
        """Compare the end of the history with the row of the run."""
        findings = list(self._compare_end(last_seq, head))
        if not findings and last_seq and (created_at > self._first_at or persisted_at != self._last_at):
            detail = "the times in the run's row differ from those of its events"
            findings = [Finding(self._run.run_id, "CHANGED", detail)]
        yield from findings

    def _compare_end(self, last_seq: int, head: bytes) -> Iterator[Finding]:
        seq, run_id = self.seq, self._run.run_id
        if seq < last_seq:
            yield Finding(
                run_id, "MISSING", f"the run's row counts {last_seq} events; the history ends at event {seq}", seq + 1
            )
        elif seq > last_seq:
            yield Finding(
                run_id, "INSERTED", f"the run's row ends at event {last_seq}; the history continues", last_seq + 1
            )
        elif self._previous != head:
            yield Finding(
                run_id, "CHANGED", "the head hash in the run's row differs from the hash of its last event", last_seq
            )


def _check_event(run: RunIdentity, run_fields: bytes, previous: bytes | None, event: StoredEvent) -> Iterator[Finding]:
    if not _has_valid_key(run, event):
        yield Finding(run.run_id, "CHANGED", "the idempotency key does not belong to this event", event.run_seq)
    elif previous is not None and not _is_linked(previous, run_fields, event):
        yield Finding(
            run.run_id,
            "CHANGED",
            "the event or its position in the history was changed after the append",
            event.run_seq,
        )
    elif event.payload_digest is not None and event.raw_payload is not None:
        yield Finding(run.run_id, "CHANGED", "an erased payload was filled in afterwards", event.run_seq)
    elif event.payload_digest is not None:
        yield Finding(run.run_id, "REDACTED", "the payload was erased; its digest matches the chain", event.run_seq)


def _is_linked(previous: bytes, run_fields: bytes, event: StoredEvent) -> bool:
    try:
        return link(previous, run_fields, event) == event.hash
    except (TypeError, AttributeError, ValueError):
        return False  # a column holds a value that was never written: another type, or text that cannot be encoded


def _has_valid_key(run: RunIdentity, event: StoredEvent) -> bool:
    plan = (run.plan_id, run.plan_version)
    try:
        key = key_bytes(run.run_id, event.step_id, event.logical_attempt_id, event.event_type, *plan)
    except ValueError:
        return False
    return key == event.idempotency_key
