"""Request and response documents of the API.

Class names are the schema names of /openapi.json, except those in `openapi.SCHEMA_NAMES`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from runwright.auth.tokens import Token
from runwright.contract.payloads import RootCause
from runwright.contract.refs import ArtifactRef
from runwright.contract.snapshot import Alert, StepSnapshot
from runwright.contract.transitions import RunStatus
from runwright.control.signal_rules import SignalDecision
from runwright.runtimes.embedded.task_queue import StepAssignment

Id = Annotated[str, msgspec.Meta(min_length=1, max_length=512, pattern="^[^|\\x00]*$")]
Json = dict[str, Any]


class _In(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """A request document: unknown fields are rejected."""


class _Out(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A response document: all fields are present."""


class StartContext(_In, frozen=True, kw_only=True):
    tenant_id: Id | None = None
    """Default: the tenant of the caller, or `default`."""
    project_id: Id = "default"
    environment_id: Id = "default"
    run_id: Id | None = None
    target_adapter: Literal["embedded", "any"] = "embedded"


class StartRun(_In, frozen=True, kw_only=True):
    plan: Json | str
    """The plan as an object, or as the text of a YAML file."""
    parts: Annotated[list[Json | str], msgspec.Meta(max_length=100)] = []
    """Sub-plans of the plan."""
    context: StartContext = StartContext()
    params: Json = {}
    run_request_id: Id | None = None
    """Idempotency key: the same key again returns the same run. Alternative: the header Idempotency-Key."""
    source: Annotated[str, msgspec.Meta(max_length=4096)] | None = None
    """Path of the plan file on the machine that executes its steps: code is imported from the folder of that file."""


class Rerun(_In, frozen=True, kw_only=True):
    from_step: str | None = None
    force: bool = False
    run_id: Id | None = None
    plan: Json | str | None = None
    """A corrected plan, as for a start. Steps that are unchanged are not run again."""
    parts: Annotated[list[Json | str], msgspec.Meta(max_length=100)] = []
    """Sub-plans of the plan."""
    params: Json = {}
    """Parameters that differ from those of the original run."""


class SendSignal(_In, frozen=True, kw_only=True):
    signal_id: Annotated[str, msgspec.Meta(max_length=64)]
    signal_type: Annotated[str, msgspec.Meta(max_length=64)]
    payload: Json = {}
    reason: Annotated[str, msgspec.Meta(max_length=1000)] | None = None


class ConfirmSignal(_In, frozen=True, kw_only=True):
    decision: Literal["ACCEPTED", "REJECTED"]
    reason: Annotated[str, msgspec.Meta(max_length=500)] | None = None


class SendEvent(_In, frozen=True, kw_only=True):
    key: str | None = None
    payload: Any = None
    signal_id: Annotated[str, msgspec.Meta(max_length=64)] | None = None


class CreateToken(_In, frozen=True, kw_only=True):
    name: Annotated[str, msgspec.Meta(min_length=1, max_length=128)]
    tenant_id: Id | None = None
    roles: list[Literal["Viewer", "Operator", "Engineer", "Admin", "System"]] = []
    scopes: list[Literal["events:server", "events:worker", "steps", "metrics"]] = []
    expires_in: Annotated[str, msgspec.Meta(max_length=32)] | None = None
    """Lifetime, such as `30d`."""


class CreatedToken(_Out, frozen=True, kw_only=True):
    token: str
    """The bearer token. It is returned only here."""
    details: Token


class TokenList(_Out, frozen=True, kw_only=True):
    tokens: list[Token]


class WhoAmI(_Out, frozen=True, kw_only=True):
    actor_id: str
    roles: list[str]
    scopes: list[str]
    tenant_id: str | None
    token_id: str | None


class StartedRun(_Out, frozen=True, kw_only=True):
    run_id: str
    created: bool
    """False if the run existed already; then it was not changed."""
    status: RunStatus
    tenant_id: str
    project_id: str
    environment_id: str
    plan_id: str
    plan_version: str
    engine_run_ref: Json


class RunListing(_Out, frozen=True, kw_only=True):
    run_id: str
    status: RunStatus
    substatus: str | None
    message: str | None
    plan_id: str
    plan_version: str
    tenant_id: str
    project_id: str
    environment_id: str
    created_at: str
    started_at: str | None
    completed_at: str | None
    last_event_seq: int
    total_steps: int
    completed_steps: int
    failed_steps: int
    skipped_steps: int
    running_steps: int
    inconsistent: bool
    origin_run_id: str | None


class RunList(_Out, frozen=True, kw_only=True):
    runs: list[RunListing]
    cursor: str | None
    """Cursor of the next page; null on the last page."""


class RunDetail(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """RunSnapshot, and the time that it describes."""

    run_id: str
    status: RunStatus
    last_event_seq: int
    as_of: str
    tenant_id: str
    project_id: str
    environment_id: str
    plan_id: str
    plan_version: str
    total_steps: int
    completed_steps: int
    failed_steps: int
    skipped_steps: int
    running_steps: int
    inconsistent: bool
    steps: list[StepSnapshot]
    artifacts: list[ArtifactRef]
    substatus: str | None = None
    message: str | None = None
    started_at: str | None = None
    completed_at: str | None = None
    total_duration_ms: int | None = None
    engine_run_ref: str | None = None
    root_cause: RootCause | None = None
    reason: str | None = None
    origin_run_id: str | None = None
    pauses: int = 0


class EventRecord(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """An event of the log."""

    event_id: str
    event_type: str
    schema_version: int
    run_id: str
    run_seq: int
    tenant_id: str
    project_id: str
    environment_id: str
    plan_id: str
    plan_version: str
    engine_attempt_id: int
    logical_attempt_id: int
    idempotency_key: str
    emitted_at: str
    persisted_at: str
    hash: str
    step_id: str | None = None
    payload: Json | None = None
    emitted_by: str | None = None
    foreign_event_id: str | None = None
    traceparent: str | None = None
    redacted: bool = False


class EventPage(_Out, frozen=True, kw_only=True):
    events: list[EventRecord]
    last_event_seq: int
    next_after_seq: int | None
    """`afterSeq` of the next page; null on the last page."""


class FoundEvents(_Out, frozen=True, kw_only=True):
    events: list[EventRecord]
    cursor: str
    """Cursor of the next page."""


class Entity(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A step of the plan, or an iteration of a step."""

    path: str
    kind: Literal["step", "iteration"]
    status: str
    logical_attempt_id: int
    tool: str | None = None
    started_at: str | None = None
    completed_at: str | None = None
    error: Json | None = None
    depends_on: list[str] = []


class EntityPage(_Out, frozen=True, kw_only=True):
    entities: list[Entity]
    cursor: str | None


class DecisionList(_Out, frozen=True, kw_only=True):
    decisions: list[SignalDecision]


class Question(_Out, frozen=True, kw_only=True):
    step_id: str
    prompt: str | None
    fields: Json | None
    approvers: list[str] | None
    expires_at: str | None


class QuestionList(_Out, frozen=True, kw_only=True):
    questions: list[Question]


class StepArtifact(_Out, frozen=True, kw_only=True):
    step_id: str
    artifact: ArtifactRef


class ArtifactList(_Out, frozen=True, kw_only=True):
    artifacts: list[StepArtifact]


class LogLineOut(_Out, frozen=True, kw_only=True):
    time: str
    entity: str
    attempt: int
    stream: str
    text: str


class LogPage(_Out, frozen=True, kw_only=True):
    lines: list[LogLineOut]
    truncated: bool
    """Whether there are more lines than requested; the last ones are returned."""


class AlertList(_Out, frozen=True, kw_only=True):
    alerts: list[Alert]


Name = Annotated[str, msgspec.Meta(min_length=1, max_length=128)]


class TakeSteps(_In, frozen=True, kw_only=True):
    worker: Name
    queues: Annotated[list[Name], msgspec.Meta(min_length=1, max_length=100)]
    most: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 1
    wait_seconds: Annotated[float, msgspec.Meta(ge=0, le=30)] = 20.0


class StepLease(_Out, frozen=True, kw_only=True):
    lease_id: str
    lease_seconds: float
    """Time until the lease expires without a heartbeat."""
    order: StepAssignment


class LeaseList(_Out, frozen=True, kw_only=True):
    leases: list[StepLease]


class Beat(_In, frozen=True, kw_only=True):
    worker: Name
    leases: Annotated[list[Annotated[str, msgspec.Meta(max_length=64)]], msgspec.Meta(max_length=1000)]


class BeatAnswer(_Out, frozen=True, kw_only=True):
    leases: dict[str, Literal["go on", "stop", "kill", "lost"]]


class SavedState(_In, frozen=True, kw_only=True):
    state: Any


class WantedResult(_In, frozen=True, kw_only=True):
    ref: Any  # The reference to the result of a task, or the address of the result.


class OutputPart(_In, frozen=True, kw_only=True):
    stream: Literal["out", "err"]
    text: str


class StepOutputUpload(_In, frozen=True, kw_only=True):
    parts: Annotated[list[OutputPart], msgspec.Meta(max_length=10_000)]


class CheckFinding(_Out, frozen=True, kw_only=True):
    run_id: str
    kind: str
    detail: str
    run_seq: int | None


class CheckReport(_Out, frozen=True, kw_only=True):
    ok: bool
    findings: list[CheckFinding]


class RebuildAnswer(_Out, frozen=True, kw_only=True):
    runs: int
    different: list[str]


class Health(_Out, frozen=True, kw_only=True):
    status: Literal["ok", "closing", "unavailable"]
    detail: str | None
