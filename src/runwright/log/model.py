"""Data types of the log other than events: run rows, filters, pages, leases."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from runwright.contract.events import Receipt, Refusal, RunEventRecord, RunIdentity
from runwright.contract.snapshot import RunSummary
from runwright.contract.timestamps import from_micros
from runwright.contract.transitions import Enforcement, RunStatus
from runwright.core.fold.run_state import substatus


class EngineIds(NamedTuple):
    """The ids of a run in another engine."""

    provider: str
    workflow_id: str
    provider_run_id: str


class RunRow(msgspec.Struct):
    """One row of table `run`, with its decoded summary."""

    run_key: int
    identity: RunIdentity
    enforcement: Enforcement
    created_at: int
    last_seq: int
    head: bytes
    persisted_at: int
    status: RunStatus
    summary_text: str
    summary: RunSummary  # summary_text, decoded
    provider: str | None
    workflow_id: str | None
    provider_run_id: str | None
    edition: int
    owner: str | None
    epoch: int | None
    wake_at: int | None

    def to_json(self) -> dict[str, Any]:
        """Return an entry of the run list: the folded summary and the run's constants, nothing operational."""
        summary = self.summary
        substatus_name, message = substatus(summary)
        document: dict[str, Any] = {
            "runId": self.identity.run_id,
            "status": summary.status,
            "substatus": substatus_name,
            "message": message,
            "planId": self.identity.plan_id,
            "planVersion": self.identity.plan_version,
            "tenantId": self.identity.tenant_id,
            "projectId": self.identity.project_id,
            "environmentId": self.identity.environment_id,
            "createdAt": from_micros(self.created_at),
            "startedAt": summary.started_at,
            "completedAt": summary.completed_at,
            "lastEventSeq": summary.last_event_seq,
            "totalSteps": summary.total_steps,
            "completedSteps": summary.completed_steps,
            "failedSteps": summary.failed_steps,
            "skippedSteps": summary.skipped_steps,
            "runningSteps": summary.running_steps,
            "inconsistent": summary.inconsistent,
            "originRunId": summary.origin_run_id,
        }
        return document


class RunFilter(msgspec.Struct, frozen=True):
    """Conditions of a run list; None matches any value."""

    status: RunStatus | None = None
    plan_id: str | None = None
    tenant_id: str | None = None
    since: int | None = None  # created at or after, in microseconds since 1970

    def conditions(self, before: int | None) -> Sequence[tuple[str, Any]]:
        """Return the conditions of the SQL query for the runs created before run key `before`."""
        return (
            ("run_key <", before),
            ("status =", self.status),
            ("plan_id =", self.plan_id),
            ("tenant_id =", self.tenant_id),
            ("created_at >=", self.since),
        )


class RunPage(msgspec.Struct, frozen=True):
    runs: Sequence[RunRow]
    cursor: str | None  # start of the next page; None on the last page


class TailPage(msgspec.Struct, frozen=True):
    records: Sequence[RunEventRecord]
    cursor: str  # pass it to continue after this page; it never expires
    places: Sequence[tuple[int, int]] = ()  # (shard, position) of each record


class Holder(msgspec.Struct, frozen=True):
    """The process behind a lease, as another process on the same machine can identify it."""

    host: str
    pid: int
    started: str


class Lease(msgspec.Struct, frozen=True):
    """The right of a process to own runs until a time. Runs refer to it by owner and epoch."""

    owner: str
    epoch: int
    expires_at: int
    ttl: float


class LeaseRow(msgspec.Struct, frozen=True):
    owner: str
    epoch: int
    expires_at: int
    holder: Holder | None


class EventFilter(msgspec.Struct, frozen=True):
    """Conditions on the events of a run: of these types, about this entity or its descendants."""

    types: Sequence[str] | None = None
    entity: str | None = None


class RebuildReport(msgspec.Struct, frozen=True, rename="camel"):
    runs: int
    different: Sequence[str]  # ids of runs whose summary differs from the fold of their events


AppendResult = Receipt | Refusal
"""The result of appending one event."""
