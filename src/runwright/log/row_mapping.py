"""Conversion between rows and data types, with detection of corrupt values."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import msgspec

from runwright.contract.errors import ErrorCode, RunwrightError
from runwright.contract.events import RunConstants, RunIdentity
from runwright.contract.snapshot import Alert, RunSummary
from runwright.contract.timestamps import from_micros
from runwright.contract.transitions import Enforcement, RunStatus
from runwright.log.append.prepare import run_identity_of

from .model import Holder, LeaseRow, RunRow

CORRUPTION_ERRORS = (AttributeError, TypeError, ValueError, OverflowError, IndexError)
"""Exceptions raised by values that Runwright did not write. (Invalid UTF-8 and JSON are ValueErrors.)"""


def store_corrupt(subject: str) -> RunwrightError:
    return RunwrightError(
        ErrorCode.STORE_CORRUPT,
        f"{subject} contains values that Runwright did not write. Locate them with `runwright verify`.",
    )


@contextmanager
def detect_corruption(subject: str) -> Generator[None]:
    """Raise STORE_CORRUPT for exceptions caused by corrupt values."""
    try:
        yield
    except CORRUPTION_ERRORS as error:
        raise store_corrupt(subject) from error


def run_row(row: Any) -> RunRow:
    with detect_corruption("A run's row"):
        return _run_row(row)


def _run_row(row: Any) -> RunRow:
    run_key, run_id, tenant_id, project_id, environment_id, plan_id, plan_version, enforcement, *rest = row
    created_at, last_seq, head, persisted_at, status, *others = rest
    summary_text, *others = others
    texts = RunConstants(run_id, tenant_id, project_id, environment_id, plan_id, plan_version)
    numbers = (run_key, created_at, last_seq, persisted_at)
    if not (all(type(text) is str for text in texts) and all(type(number) is int for number in numbers)):
        raise TypeError("a column has an unexpected type")
    return RunRow(
        run_key,
        run_identity_of(texts),
        Enforcement(enforcement),
        created_at,
        last_seq,
        bytes(head),
        persisted_at,
        RunStatus(status),
        summary_text,
        _decode_summary(summary_text),
        *others,
    )


_decode_summary = msgspec.json.Decoder(RunSummary).decode


def run_identity(row: Any) -> RunIdentity:
    return run_identity_of(RunConstants(*row))


def alert_from_row(row: Any) -> Alert:
    with detect_corruption("An alert"):
        return _alert_from_row(row)


def _alert_from_row(row: Any) -> Alert:
    code, severity, run_id, subject, detail, facts, raised_at = row
    return Alert(
        code=code,
        severity=severity,
        run_id=run_id or None,
        subject=subject,
        detail=detail,
        facts=msgspec.json.decode(facts),
        raised_at=from_micros(raised_at),
    )


def alert_row(alert: Alert, now: int) -> tuple[Any, ...]:
    facts = msgspec.json.encode(alert.facts).decode()
    return (alert.code, alert.severity, alert.run_id or "", alert.subject, alert.detail, facts, now)


def lease_row(row: Any) -> LeaseRow:
    owner, epoch, expires_at, host, pid, started = row
    return LeaseRow(owner, epoch, expires_at, None if host is None else Holder(host, pid, started))
