"""Snapshots: the folded, immutable state of a run up to one event."""

from __future__ import annotations

from typing import Any

import msgspec

from .payloads import RootCause
from .refs import ArtifactRef, ErrorInfo
from .transitions import RunStatus, StepStatus


class IterationFailure(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    index: int
    error: ErrorInfo | None = None


class Iterations(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """Progress of a loop: counts and the first failures. The iterations themselves are in the events."""

    total: int
    running: int = 0
    done: int = 0
    failed: int = 0
    failures: tuple[IterationFailure, ...] = ()


class StepSnapshot(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    step_id: str
    status: StepStatus
    logical_attempt_id: int
    engine_attempt_id: int | None = None
    started_at: str | None = None
    completed_at: str | None = None
    artifacts: tuple[ArtifactRef, ...] = ()
    error: ErrorInfo | None = None
    reason_code: str | None = None
    retry_scheduled: bool = False
    earlier_attempts: tuple[StepStatus, ...] = ()
    iterations: Iterations | None = None


class RunSummary(msgspec.Struct, rename="camel", omit_defaults=True):
    """The part of a fold that has constant size. It is stored in the row of the run, for lists of runs."""

    status: RunStatus = RunStatus.PENDING
    last_event_seq: int = 0
    engine_attempt_id: int = 1  # the highest of its events
    total_steps: int = 0
    running_steps: int = 0
    completed_steps: int = 0
    failed_steps: int = 0
    skipped_steps: int = 0
    retrying_steps: int = 0
    waiting_approvals: int = 0
    loose_tasks: int = 0  # running tasks and iterations, minus the running steps that are loops
    pauses: int = 0
    has_tasks: bool = False
    approval_required: bool = False
    drain_timed_out: bool = False
    waits_on_failure: bool = False
    inconsistent: bool = False
    started_at: str | None = None
    completed_at: str | None = None
    engine_run_ref: str | None = None
    provider: str | None = None
    provider_scope: str | None = None  # Temporal's namespace, Conductor's address
    workflow_id: str | None = None
    provider_run_id: str | None = None
    origin_run_id: str | None = None
    reason: str | None = None
    root_cause: RootCause | None = None
    last_failure: RootCause | None = None


class RunSnapshot(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    run_id: str
    status: RunStatus
    last_event_seq: int
    substatus: str | None = None
    message: str | None = None
    tenant_id: str
    project_id: str
    environment_id: str
    plan_id: str
    plan_version: str
    started_at: str | None = None
    completed_at: str | None = None
    total_duration_ms: int | None = None
    total_steps: int
    completed_steps: int
    failed_steps: int
    skipped_steps: int
    running_steps: int
    engine_run_ref: str | None = None
    root_cause: RootCause | None = None
    reason: str | None = None
    inconsistent: bool
    origin_run_id: str | None = None
    pauses: int = 0
    steps: tuple[StepSnapshot, ...]
    artifacts: tuple[ArtifactRef, ...]
    stale: bool = False  # a gap was found, and the events after it are not applied yet
    stale_until: int = 0  # sequence number at which the snapshot is up to date again
    resume: bytes = b""  # additional state for incremental projection

    def to_json(self) -> dict[str, Any]:
        """Return the snapshot as users see it, without `resume`."""
        document: dict[str, Any] = msgspec.to_builtins(self)
        document.pop("resume", None)
        return document


class Alert(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A notice for the operator. Stored once per code, run and subject."""

    code: str
    severity: str
    detail: str
    run_id: str | None = None
    subject: str = ""  # makes the alert unique within its run: an event id or a sequence number
    facts: dict[str, Any] = {}
    raised_at: str | None = None
