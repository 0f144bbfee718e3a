"""From the stores' rows to the log's types."""

from __future__ import annotations

from typing import Any

import msgspec

from runwright.contract.events import RunIdentity
from runwright.contract.snapshot import Alert
from runwright.contract.timestamps import from_micros
from runwright.contract.transitions import Enforcement, RunStatus

from .model import Holder, LeaseRow, RunRow
from .prepare import identity


def run_row(row: Any) -> RunRow:
    run_key, run_id, tenant_id, project_id, environment_id, plan_id, plan_version, enforcement, *rest = row
    created_at, last_seq, head, persisted_at, status, *others = rest
    run = identity((run_id, tenant_id, project_id, environment_id, plan_id, plan_version))
    return RunRow(
        run_key, run, Enforcement(enforcement), created_at, last_seq, head, persisted_at, RunStatus(status), *others
    )


def run_identity(row: Any) -> RunIdentity:
    run_id, tenant_id, project_id, environment_id, plan_id, plan_version = row
    return identity((run_id, tenant_id, project_id, environment_id, plan_id, plan_version))


def alert_from(row: Any) -> Alert:
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
