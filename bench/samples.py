"""Events as an engine sends them: start and end of every step, with a payload of about 300 bytes on each end."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import msgspec

import runwright as rw

EMITTED_AT = "2026-01-31T08:00:00.123456Z"


def identity(run_id: str) -> rw.RunIdentity:
    return rw.new_run(run_id, "orders", "7", tenant_id="acme", project_id="shop", environment_id="production")


def result(number: int) -> dict[str, Any]:
    """Return the payload of a StepCompleted event."""
    return {
        "result": {"rows": 12840 + number, "table": "analytics.orders_daily", "partition": "2026-01-31"},
        "artifactRefs": [
            {
                "uri": f"s3://lake/orders_daily/2026-01-31/part-{number:06d}.parquet",
                "kind": "parquet",
                "sha256": f"{number:064x}",
                "sizeBytes": 9318123,
            }
        ],
        "durationMs": 1834.25,
    }


def events(run_id: str, count: int, first: int = 1) -> Iterator[rw.RunEventWrite]:
    """Yield `count` events of a run from number `first`: RunStarted, then StepStarted and StepCompleted alternately."""
    run = identity(run_id)
    for number in range(first, first + count):
        if number == 1:
            yield rw.new_event("RunStarted", run, emitted_at=EMITTED_AT)
            continue
        step, ends = number // 2, number % 2 == 1
        yield rw.new_event(
            "StepCompleted" if ends else "StepStarted",
            run,
            step_id=f"load_orders_{step}",
            payload=result(step) if ends else None,
            emitted_at=EMITTED_AT,
            emitted_by="worker-3",
        )


def lines(run_id: str, count: int) -> list[bytes]:
    """Return the same events as JSON."""
    return [msgspec.json.encode(event) for event in events(run_id, count)]


class Sample(msgspec.Struct, frozen=True):
    """One load, as JSON events and as finished rows."""

    lines: list[list[bytes]]  # For each caller, the events of its run as JSON.
    rows: list[tuple[Any, ...]]  # The same events as finished rows, in the order of COLUMNS of raw.py.

    @classmethod
    def of(cls, callers: int, events_each: int) -> Sample:
        runs = [list(events(f"orders-2026-01-31-{caller:04d}", events_each)) for caller in range(callers)]
        rows = [
            _row(caller + 1, number + 1, run[number])
            for number in range(events_each)
            for caller, run in enumerate(runs)
        ]
        return cls([[msgspec.json.encode(event) for event in run] for run in runs], rows)

    @property
    def count(self) -> int:
        return len(self.rows)


def _row(run_key: int, run_seq: int, event: rw.RunEventWrite) -> tuple[Any, ...]:
    return (
        run_key,
        run_seq,
        bytes.fromhex(event.event_id.replace("-", "")),
        event.event_type,
        1,
        event.step_id,
        event.engine_attempt_id,
        event.logical_attempt_id,
        bytes.fromhex(event.idempotency_key),
        event.emitted_at,
        1769846400000000 + run_seq,
        event.emitted_by,
        event.foreign_event_id,
        event.traceparent,
        bytes(event.raw_payload) or None,
        None,
        os.urandom(32),
    )
