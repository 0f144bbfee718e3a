"""What the log hands out besides events: runs, pages, leases."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from runwright.contract.events import Receipt, Refusal, RunEventRecord, RunIdentity
from runwright.contract.snapshot import RunSummary
from runwright.contract.timestamps import from_micros
from runwright.contract.transitions import Enforcement, RunStatus
from runwright.core.state import substatus


class RunRow(msgspec.Struct):
    """A run as its row holds it."""

    run_key: int
    identity: RunIdentity
    enforcement: Enforcement
    created_at: int
    last_seq: int
    head: bytes
    persisted_at: int
    status: RunStatus
    summary_text: str
    summary: RunSummary  # the same, decoded
    provider: str | None
    workflow_id: str | None
    provider_run_id: str | None
    edition: int
    owner: str | None
    epoch: int | None
    wake_at: int | None

    def to_json(self) -> dict[str, Any]:
        """A row of the run list: the folded summary and the run's constants, nothing operational."""
        summary = self.summary
        within, message = substatus(summary)
        document: dict[str, Any] = {
            "runId": self.identity.run_id,
            "status": summary.status,
            "substatus": within,
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
    """Which runs a list holds; None asks for any."""

    status: RunStatus | None = None
    plan_id: str | None = None
    tenant_id: str | None = None
    since: int | None = None  # created at or after, in microseconds since 1970

    def conditions(self, before: int | None) -> Sequence[tuple[str, Any]]:
        return (
            ("run_key <", before),
            ("status =", self.status),
            ("plan_id =", self.plan_id),
            ("tenant_id =", self.tenant_id),
            ("created_at >=", self.since),
        )


class RunPage(msgspec.Struct, frozen=True):
    runs: Sequence[RunRow]
    cursor: str | None  # where the next page starts; None on the last


class TailPage(msgspec.Struct, frozen=True):
    records: Sequence[RunEventRecord]
    cursor: str  # hand it back to read on from here; it stays good for ever
    places: Sequence[tuple[int, int]] = ()  # of each record: which number of the cursor it moves, and to what


class Holder(msgspec.Struct, frozen=True):
    """The process behind a lease, as far as another process on the same machine can check on it."""

    host: str
    pid: int
    started: str


class Lease(msgspec.Struct, frozen=True):
    """A process's claim to be alive. Runs point to its owner and epoch."""

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
    """Which events of a run are wanted: of these types, about this entity or what is beneath it."""

    types: Sequence[str] | None = None
    entity: str | None = None


class RebuildReport(msgspec.Struct, frozen=True, rename="camel"):
    runs: int
    different: Sequence[str]  # ids of runs whose summary was not the fold of their events


Outcome = Receipt | Refusal
