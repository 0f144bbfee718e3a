"""From the stores' rows to the log's types."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import msgspec

from runwright.contract.errors import ErrorCode, RunwrightError
from runwright.contract.events import RunIdentity
from runwright.contract.snapshot import Alert, RunSummary
from runwright.contract.timestamps import from_micros
from runwright.contract.transitions import Enforcement, RunStatus

from .model import Holder, LeaseRow, RunRow
from .prepare import identity

DAMAGE = (AttributeError, TypeError, ValueError, OverflowError, IndexError)
"""What Python says of values that were never written by Runwright. (Bad UTF-8 and bad JSON are ValueErrors.)"""


def damaged(what: str) -> RunwrightError:
    return RunwrightError(
        ErrorCode.STORE_CORRUPT, f"{what} holds values that Runwright never wrote. `runwright verify` tells which."
    )


@contextmanager
def guarded(what: str) -> Generator[None]:
    """Reading rows somebody may have damaged: nonsense in them becomes an error with a code."""
    try:
        yield
    except DAMAGE as error:
        raise damaged(what) from error


def run_row(row: Any) -> RunRow:
    with guarded("A run's row"):
        return _run_row(row)


def _run_row(row: Any) -> RunRow:
    run_key, run_id, tenant_id, project_id, environment_id, plan_id, plan_version, enforcement, *rest = row
    created_at, last_seq, head, persisted_at, status, *others = rest
    summary_text, *others = others
    texts = (run_id, tenant_id, project_id, environment_id, plan_id, plan_version)
    numbers = (run_key, created_at, last_seq, persisted_at)
    if not (all(type(text) is str for text in texts) and all(type(number) is int for number in numbers)):
        raise TypeError("a column holds another type than it should")
    return RunRow(
        run_key,
        identity(texts),
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
    run_id, tenant_id, project_id, environment_id, plan_id, plan_version = row
    return identity((run_id, tenant_id, project_id, environment_id, plan_id, plan_version))


def alert_from(row: Any) -> Alert:
    with guarded("An alert"):
        return _alert_from(row)


def _alert_from(row: Any) -> Alert:
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
