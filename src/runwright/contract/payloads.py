"""The payload of each event type.

A payload is open: other keys are stored and ignored. Every field is optional, and must have the declared type if it is
present. Only Runwright's own runtimes must set all of them. Field names are those of the wire in Python case.
"""

from __future__ import annotations

from typing import Any

import msgspec

from .refs import ArtifactRef, EngineRun, ErrorInfo, JsonObject, Name, PlanRef, parse_engine_run_ref


class Payload(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """Base of all payloads, and the payload of types without fields."""


class SnakePayload(msgspec.Struct, frozen=True, omit_defaults=True):
    """Base of payloads with the snake_case names of the NoETL event model."""


class RunStartedContext(Payload, frozen=True):
    tenant_id: str | None = None
    project_id: str | None = None
    environment_id: str | None = None
    triggered_by: str | None = None
    trigger_source: str | None = None


class RunQueued(Payload, frozen=True):
    queue_position: int | None = None
    estimated_wait_ms: int | None = None
    approval_required: bool | None = None
    run_request_id: str | None = None
    params: JsonObject | None = None
    trigger: str | None = None
    origin_run_id: Name | None = None
    origin_plan_version: Name | None = None
    forked_from_seq: int | None = None
    carried_over: int | None = None  # steps of the original run that do not run again
    parent_run_id: Name | None = None  # run of which this run is a step
    parent_step_id: Name | None = None
    parent_iter: JsonObject | None = None  # iteration of the parent run that started this run


class AdmissionEvaluated(Payload, frozen=True):
    decision: str | None = None
    quota: JsonObject | None = None
    start_at: str | None = None


class RunApproved(Payload, frozen=True):
    approved_by: str | None = None
    reason: str | None = None


class RunStarted(Payload, frozen=True):
    status: str | None = None
    engine_run_ref: Name | EngineRun | None = None  # as text, or as an object
    engine_run: EngineRun | None = None  # its parts, if it is text

    @property
    def parsed_engine_run(self) -> EngineRun | None:
        """The ids of the run in its engine; producers send them as text or as an object."""
        ref = self.engine_run_ref
        return self.engine_run or (parse_engine_run_ref(ref) if isinstance(ref, str) else ref)

    engine_type: str | None = None
    plan_ref: PlanRef | None = None
    context: RunStartedContext | None = None
    started_at: str | None = None
    validation_report: JsonObject | None = None
    degraded: bool | None = None
    on_failure: str | None = None
    source: str | None = None
    working_directory: str | None = None  # where relative paths of steps begin
    code: dict[str, str] | None = None  # fingerprints of the functions that are steps
    sub_plans: dict[str, str] | None = None  # files of the sub-plans, by hash


class WorkflowStarted(Payload, frozen=True):
    entry: str | None = None  # playbooks: step of the first token
    ctx: JsonObject | None = None


class WorkflowFinished(Payload, frozen=True):
    run_status: str | None = None  # final status of the run; missing in older logs


class StepScheduled(Payload, frozen=True):
    queue: str | None = None  # task queue for workers
    args: JsonObject | None = None  # playbooks: arguments of the arcs that led to the step
    tokens: int | None = None  # number of tokens that this visit consumed
    final: bool | None = None


class StepStarted(Payload, frozen=True):
    forced_by: str | None = None
    worker: str | None = None  # worker that claimed the step, if one did


class TaskStarted(SnakePayload, frozen=True):
    worker: str | None = None  # worker that claimed the task, if one did


class StepCompleted(Payload, frozen=True):
    result: Any = None
    result_ref: JsonObject | None = None
    extracted: JsonObject | None = None  # fields of the result that the playbook selects
    artifact_refs: list[ArtifactRef] | None = None
    duration_ms: float | None = None


class StepFailed(Payload, frozen=True):
    error: ErrorInfo | None = None
    duration_ms: float | None = None
    artifact_refs: list[ArtifactRef] | None = None


class StepSkipped(Payload, frozen=True):
    reason_code: str | None = None
    reason: str | None = None
    signal_id: str | None = None
    origin_run_id: str | None = None
    result: Any = None
    result_ref: JsonObject | None = None
    artifact_refs: list[ArtifactRef] | None = None


class StepRetryScheduled(Payload, frozen=True):
    next_attempt_at: str | None = None
    attempt: int | None = None
    signal_id: str | None = None


class StepDelayed(Payload, frozen=True):
    scheduled_at: str | None = None
    reason: str | None = None
    event: str | None = None  # event that the step waits for, in addition to a time
    key: str | None = None


class StepChanged(Payload, frozen=True):
    signal_id: str | None = None
    override: JsonObject | None = None
    new_target: Any = None


class TaskEnded(SnakePayload, frozen=True):
    outcome: JsonObject | None = None
    result_ref: JsonObject | None = None
    extracted: JsonObject | None = None
    ctx: JsonObject | None = None
    error: ErrorInfo | None = None
    idle: bool | None = None  # no attempt of the task was running any more


class PolicyAdmitEvaluated(SnakePayload, frozen=True):
    allow: bool | None = None
    matched_rule_index: int | None = None
    error: ErrorInfo | None = None
    tokens: int | None = None  # number of waiting tokens that were evaluated


class PolicyTaskEvaluated(SnakePayload, frozen=True):
    matched_rule_index: int | None = None
    action: JsonObject | None = None
    ctx: JsonObject | None = None
    iter: JsonObject | None = None
    next_attempt_at: str | None = None
    error: ErrorInfo | None = None  # reason why the policy could not be evaluated


class LoopStarted(Payload, frozen=True):
    total: int | None = None
    items: list[Any] | None = None
    items_ref: JsonObject | None = None
    carried_over: int | None = None
    max_in_flight: int | None = None


class LoopCounts(Payload, frozen=True):
    total: int | None = None
    done: int | None = None
    failed: int | None = None
    step_failed: bool | None = None  # the step fails because of the loop


class LoopIteration(Payload, frozen=True):
    index: int | None = None
    item: Any = None
    item_ref: JsonObject | None = None
    result: Any = None
    result_ref: JsonObject | None = None
    extracted: JsonObject | None = None
    duration_ms: float | None = None
    error: ErrorInfo | None = None
    queue: str | None = None  # task queue for workers
    worker: str | None = None  # worker that claimed the iteration


class NextEvaluated(SnakePayload, frozen=True):
    mode: str | None = None
    matched: list[JsonObject] | None = None
    selected: list[JsonObject] | None = None
    ctx: JsonObject | None = None
    error: ErrorInfo | None = None


class ResultStored(SnakePayload, frozen=True):
    result_ref: JsonObject | None = None
    extracted: JsonObject | None = None


class ChildRunInitiated(Payload, frozen=True):
    child_run_id: Name | None = None
    attempt: int | None = None  # of the step; an id that was taken is followed by another one for the same attempt
    plan_sha256: str | None = None


class CheckpointWritten(Payload, frozen=True):
    state: Any = None


class Approval(Payload, frozen=True):
    prompt: str | None = None
    fields: Any = None
    approvers: list[str] | None = None  # only these actors may decide
    expires_at: str | None = None
    by: str | None = None
    answer: Any = None
    reason: str | None = None
    signal_id: str | None = None


class SignalDecided(Payload, frozen=True):
    signal_decision_id: str | None = None
    signal_id: str | None = None
    signal_type: str | None = None
    payload: JsonObject | None = None
    actor_id: str | None = None
    actor_role: str | None = None
    source: str | None = None  # interface that sent the signal
    source_ip: str | None = None
    user_agent: str | None = None
    reason: str | None = None
    code: str | None = None
    policy_decision_id: str | None = None  # rule that decided
    requested_by: str | None = None  # first person, if a second one had to confirm
    logical_attempt_id: int | None = None  # of the step that the signal is about; 1 if it is about the run


class SignalProcessed(Payload, frozen=True):
    signal_id: str | None = None
    signal_type: str | None = None
    engine_result: str | None = None
    new_run_id: Name | None = None


class RunParamsUpdated(Payload, frozen=True):
    params: JsonObject | None = None
    signal_id: str | None = None


class RunSteered(Payload, frozen=True):
    signal_id: str | None = None
    reason: str | None = None


class RootCause(Payload, frozen=True):
    step_id: str | None = None
    code: str | None = None
    message: str | None = None


class RunEnded(Payload, frozen=True):
    reason: str | None = None
    signal_id: str | None = None
    root_cause: RootCause | None = None
    error: ErrorInfo | None = None
    artifact_refs: list[ArtifactRef] | None = None
    artifacts_left_out: int | None = None  # number of artifacts that are not listed
    duration_ms: float | None = None


class RunArchived(Payload, frozen=True):
    uri: str | None = None
    sha256: str | None = None
