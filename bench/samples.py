"""Events as an engine would send them: a start and an end for every step, about 300 bytes of payload on each end."""

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
    """The payload of a step's end."""
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
    """A run's events number `first` and on, `count` of them: RunStarted, then StepStarted and StepCompleted in turn."""
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
    """The same as JSON: what a caller holds before it appends."""
    return [msgspec.json.encode(event) for event in events(run_id, count)]


class Sample(msgspec.Struct, frozen=True):
    """One load, in the two shapes in which it is written."""

    lines: list[list[bytes]]  # for each caller, its run's events as JSON
    rows: list[tuple[Any, ...]]  # the same events as finished rows, in the order of COLUMNS of raw.py

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
