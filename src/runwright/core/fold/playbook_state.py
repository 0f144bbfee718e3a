"""State of a running playbook, as its driver needs it: tokens, visits, pipelines and `ctx`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import msgspec

from runwright.contract import payloads
from runwright.contract.events import FoldableEvent
from runwright.contract.paths import EntityPath, parse_path
from runwright.contract.playbook import PolicyAction
from runwright.contract.refs import ArtifactRef, ErrorInfo

from .payload_reader import (
    NOTHING,
    StoredResult,
    may_contain_field,
    micros_or_zero,
    read_payload,
    result_of,
    stored_result,
)


class RoutingToken(msgspec.Struct, frozen=True):
    """A request to visit a step, created when an arc to it fired."""

    args: dict[str, Any]
    event: str | None = None  # the event that the arc fired on
    source: str | None = None  # the step that the arc starts at


class AttemptOutcome(msgspec.Struct, frozen=True):
    """The outcome of an attempt of a task, before its policy is evaluated."""

    status: str
    result: StoredResult
    details: dict[str, Any]  # all parts but the result


class ManifestState(msgspec.Struct):
    """A manifest and the parts added to it so far."""

    strategy: str
    merge_path: str | None
    parts: list[StoredResult] = []
    size_bytes: int = 0  # bytes


def size_of(stored: StoredResult) -> int:
    """Return the size of a result in bytes."""
    return len(stored.raw or b"") if stored.ref is None else int(stored.ref["meta"]["bytes"])


class PipelineState(msgspec.Struct):
    """The running pipeline of a visit, or of an iteration. Times are microseconds since 1970."""

    started_at: int
    task: str | None = None  # the current task, or the last one
    task_visits: dict[str, int] = {}
    attempt: int = 0
    is_running: bool = False
    attempt_started_at: int = 0  # start of that attempt
    attempt_ended_at: int = 0  # end of that attempt
    pending_outcome: AttemptOutcome | None = None  # set until the policy of the attempt was evaluated
    action: PolicyAction | None = None  # the action after the current task; None while the task goes on
    jump_target: str | None = None  # the target of a jump
    jump_count: int = 0
    results: dict[str, StoredResult] = {}
    previous: StoredResult = StoredResult(b"null")
    iter_vars: dict[str, Any] = {}
    manifests: dict[str, ManifestState] = {}
    error: ErrorInfo | None = None  # set once the pipeline failed


class StepVisit(msgspec.Struct):
    """One visit of a step, from its token to the arcs that fired."""

    args: dict[str, Any]
    is_started: bool = False
    end_event: str | None = None  # the event that ended it: step.done or step.failed
    is_routed: bool = False
    error: ErrorInfo | None = None
    result: StoredResult | None = None  # of this visit: another visit of the same step may end at the same time
    last_task: str | None = None  # the task that it ended with
    iter_vars: dict[str, Any] = {}  # the `iter` variables that its tasks set
    ctx_writers: dict[str, tuple[int, ...]] = {}  # key of `ctx` -> indexes of the iteration that wrote it


class DeniedTokens(msgspec.Struct, frozen=True):
    """Tokens that were not admitted. Admission is evaluated again when `ctx` has changed or another token arrived."""

    ctx_version: int  # `PlaybookState.changes` at the evaluation
    count: int  # number of denied tokens; they are the last ones of those that wait


class PlaybookState(msgspec.Struct):
    """The state of a playbook. Dicts are keyed by the path of a visit or by a step name, as noted."""

    ctx: dict[str, Any] = {}
    ctx_version: int = 0  # number of changes of `ctx`
    tokens: dict[str, list[RoutingToken]] = {}  # by step: tokens that wait for admission
    visit_counts: dict[str, int] = {}  # by step: visits so far
    visits: dict[str, StepVisit] = {}  # by path: visits that have not both ended and been routed
    pipelines: dict[str, PipelineState] = {}  # by path of the visit or iteration
    denied_tokens: dict[str, DeniedTokens] = {}  # by step: tokens that were not admitted
    admission_counts: dict[str, int] = {}  # by path: how often admission was evaluated
    unhandled_errors: dict[str, ErrorInfo | None] = {}  # by path: failures that no arc handled
    final_visit: str | None = None  # the path of the final step's visit
    result_visit: str | None = None  # the path of the visit whose result is the run's
    artifacts: dict[ArtifactRef, None] = {}  # created by tasks
    newest_ended_visits: dict[str, int] = {}  # by step: the newest visit that has ended


class PlaybookFields(Protocol):
    """The members of ExecutionState that folding a playbook reads and writes."""

    playbook: PlaybookState | None
    results: dict[str, StoredResult]
    retry_at: dict[str, int]
    due_at: dict[str, int]

    def stores_result_of(self, step_id: str) -> bool: ...


class _OutcomePayload(msgspec.Struct, frozen=True):
    status: str = "ok"
    result: msgspec.Raw = NOTHING
    error: dict[str, Any] | None = None
    meta: dict[str, Any] | None = None
    http: dict[str, Any] | None = None
    pg: dict[str, Any] | None = None
    py: dict[str, Any] | None = None


class _TaskEnd(msgspec.Struct, frozen=True):
    outcome: _OutcomePayload = _OutcomePayload()
    result_ref: dict[str, Any] | None = None
    extracted: dict[str, Any] = {}


class _TaskArtifacts(msgspec.Struct, frozen=True, rename="camel"):
    artifact_refs: list[ArtifactRef] = []


_ACTIONS = frozenset(map(str, PolicyAction))
_OUTCOME_PARTS = ("error", "meta", "http", "pg", "py")


def attempt_outcome(event: FoldableEvent) -> AttemptOutcome:
    """Read the outcome from the event that ended a task or an attempt of it."""
    end = read_payload(_TaskEnd, event)
    outcome = end.outcome
    parts = {name: part for name in _OUTCOME_PARTS if (part := getattr(outcome, name)) is not None}
    stored = stored_result(bytes(outcome.result) or None, end.result_ref, end.extracted)
    return AttemptOutcome(outcome.status, stored, parts)


def store_newest_result(
    execution: PlaybookFields, playbook: PlaybookState, event: FoldableEvent, *, is_failed: bool
) -> None:
    """Store the result of a visit as the step's result, unless a newer visit has ended.

    Expressions refer to the newest visit of a step. A failed visit has no result.
    """
    step, _, number = (event.step_id or "").partition("@")
    visit = int(number) if number.isdecimal() else 1
    if visit < playbook.newest_ended_visits.get(step, 0):
        return
    playbook.newest_ended_visits[step] = visit
    if is_failed:
        execution.results.pop(step, None)
    elif execution.stores_result_of(step):
        execution.results[step] = result_of(event)


def pipeline_key(path: EntityPath) -> str:
    """Return the path of the pipeline that a task is part of: a visit, or one iteration of it."""
    return str(EntityPath(path.step, path.visit, path.attempt, path.indexes))


def _on_workflow_started(execution: PlaybookFields, event: FoldableEvent) -> None:
    payload = read_payload(payloads.WorkflowStarted, event)
    if payload.entry is not None:
        token = RoutingToken({}, "workflow.started")
        execution.playbook = PlaybookState(ctx=dict(payload.ctx or {}), tokens={payload.entry: [token]})


def _on_entity_event(execution: PlaybookFields, event: FoldableEvent) -> None:
    """Fold an event of a playbook's step, iteration or task. Runs of other plans are not affected."""
    playbook = execution.playbook
    if playbook is None:
        return
    if event.event_type.startswith("Task") and may_contain_field(event, b"artifactRefs"):
        playbook.artifacts.update(dict.fromkeys(read_payload(_TaskArtifacts, event).artifact_refs))
    path = parse_path(event.step_id or "")
    if path is not None:
        _ENTITY_HANDLERS[event.event_type](execution, playbook, path, event)


# Steps


def _on_admission_evaluated(
    _execution: PlaybookFields, playbook: PlaybookState, path: EntityPath, event: FoldableEvent
) -> None:
    playbook.admission_counts[str(path)] = event.logical_attempt_id
    payload = read_payload(payloads.PolicyAdmitEvaluated, event)
    if payload.error is not None:
        playbook.unhandled_errors[str(path)] = payload.error
    if payload.allow is not False:
        return
    waiting, before = playbook.tokens.get(path.step, []), playbook.denied_tokens.get(path.step)
    count = len(waiting) if payload.tokens is None else payload.tokens
    waiting[:] = waiting[count:] + waiting[:count]  # denied tokens go to the end of the queue
    denied_before = before.count if before is not None and before.ctx_version == playbook.ctx_version else 0
    playbook.denied_tokens[path.step] = DeniedTokens(playbook.ctx_version, denied_before + count)


def _on_step_scheduled(
    _execution: PlaybookFields, playbook: PlaybookState, path: EntityPath, event: FoldableEvent
) -> None:
    payload = read_payload(payloads.StepScheduled, event)
    key = str(path)
    playbook.visit_counts[path.step] = path.visit
    playbook.admission_counts.pop(key, None)
    waiting = playbook.tokens.get(path.step, [])
    del waiting[: payload.tokens or 0]
    if not waiting:
        playbook.tokens.pop(path.step, None)
    playbook.visits[key] = StepVisit(payload.args or {})
    if payload.final:
        playbook.final_visit = key


def _on_step_started(
    _execution: PlaybookFields, playbook: PlaybookState, path: EntityPath, event: FoldableEvent
) -> None:
    visit = playbook.visits.get(str(path))
    if visit is not None:
        visit.is_started = True
        playbook.pipelines[str(path)] = PipelineState(micros_or_zero(event.emitted_at))


def _on_step_ended(execution: PlaybookFields, playbook: PlaybookState, path: EntityPath, event: FoldableEvent) -> None:
    key = str(path)
    pipeline, visit = playbook.pipelines.pop(key, None), playbook.visits.get(key)
    if visit is None:
        return
    is_failed = event.event_type == "StepFailed"
    visit.end_event = "step.failed" if is_failed else "step.done"
    visit.last_task = None if pipeline is None else pipeline.task
    visit.iter_vars = {} if pipeline is None else pipeline.iter_vars
    is_newest = (
        playbook.newest_ended_visits.get(path.step) == path.visit
    )  # then `store_newest_result` has just stored its result
    if not is_failed and execution.stores_result_of(path.step):
        visit.result = execution.results.get(path.step) if is_newest else result_of(event)
    if is_failed:
        visit.error = read_payload(payloads.StepFailed, event).error
        for times in (execution.retry_at, execution.due_at):
            for inner in [inner for inner in times if inner.startswith((f"{key}[", f"{key}/"))]:
                del times[inner]
    _remove_finished_visit(playbook, key, visit)


def _on_next_evaluated(
    _execution: PlaybookFields, playbook: PlaybookState, path: EntityPath, event: FoldableEvent
) -> None:
    payload, key = read_payload(payloads.NextEvaluated, event), str(path)
    visit = playbook.visits.get(key)
    selected = payload.selected or []
    if payload.ctx:
        playbook.ctx.update(payload.ctx)
        playbook.ctx_version += 1
    cause = (
        "loop.done" if visit is None or visit.end_event is None else visit.end_event
    )  # a loop is routed before it ends
    for arc in selected:
        target = str(arc.get("step"))
        playbook.tokens.setdefault(target, []).append(RoutingToken(arc.get("args") or {}, cause, path.step))
        playbook.denied_tokens.pop(target, None)
    if visit is None:
        return
    visit.is_routed = True
    is_failed = visit.end_event == "step.failed"
    if payload.error is not None:
        # If the step failed before its arcs did, its error is the cause. Errors of category `plan` fail the run in
        # every failure mode.
        error = visit.error if is_failed else None
        playbook.unhandled_errors[key] = (
            payload.error if error is None else msgspec.structs.replace(error, category="plan")
        )
    elif not selected:
        playbook.result_visit = key
        if is_failed:
            playbook.unhandled_errors[key] = visit.error
    _remove_finished_visit(playbook, key, visit)


def _remove_finished_visit(playbook: PlaybookState, key: str, visit: StepVisit) -> None:
    if visit.end_event is not None and visit.is_routed:
        del playbook.visits[key]


# Iterations and tasks


def _on_iteration_started(
    _execution: PlaybookFields, playbook: PlaybookState, path: EntityPath, event: FoldableEvent
) -> None:
    playbook.pipelines[str(path)] = PipelineState(micros_or_zero(event.emitted_at))


def _on_iteration_ended(
    _execution: PlaybookFields, playbook: PlaybookState, path: EntityPath, _event: FoldableEvent
) -> None:
    playbook.pipelines.pop(str(path), None)


def _on_task_started(
    _execution: PlaybookFields, playbook: PlaybookState, path: EntityPath, event: FoldableEvent
) -> None:
    pipeline = playbook.pipelines.get(pipeline_key(path))
    if pipeline is not None and path.task is not None:
        pipeline.task, pipeline.attempt, pipeline.is_running = path.task, 1, True
        pipeline.task_visits[path.task] = path.task_visit
        pipeline.attempt_started_at = micros_or_zero(event.emitted_at)
        pipeline.action = pipeline.jump_target = pipeline.pending_outcome = None


def _on_attempt_started(
    execution: PlaybookFields, playbook: PlaybookState, path: EntityPath, event: FoldableEvent
) -> None:
    pipeline = playbook.pipelines.get(pipeline_key(path))
    if pipeline is not None:
        pipeline.attempt, pipeline.is_running, pipeline.action = event.logical_attempt_id, True, None
        pipeline.attempt_started_at = micros_or_zero(event.emitted_at)
    execution.retry_at.pop(event.step_id or "", None)


def _on_attempt_ended(
    _execution: PlaybookFields, playbook: PlaybookState, path: EntityPath, event: FoldableEvent
) -> None:
    pipeline = playbook.pipelines.get(pipeline_key(path))
    if pipeline is not None:
        pipeline.is_running = False
        pipeline.attempt_ended_at = micros_or_zero(event.emitted_at)
        pipeline.pending_outcome = attempt_outcome(event)


def _on_policy_evaluated(
    execution: PlaybookFields, playbook: PlaybookState, path: EntityPath, event: FoldableEvent
) -> None:
    payload = read_payload(payloads.PolicyTaskEvaluated, event)
    pipeline = playbook.pipelines.get(pipeline_key(path))
    if payload.ctx:
        playbook.ctx.update(payload.ctx)
        playbook.ctx_version += 1
        visit = playbook.visits.get(path.owner)
        if visit is not None and path.indexes:
            visit.ctx_writers.update(dict.fromkeys(payload.ctx, path.indexes))
    if pipeline is None:
        return
    pipeline.iter_vars.update(payload.iter or {})
    action = payload.action or {}
    do = action.get("do")
    if do == PolicyAction.RETRY:
        pipeline.pending_outcome = None
        execution.retry_at[event.step_id or ""] = micros_or_zero(payload.next_attempt_at)
    elif do in _ACTIONS:
        pipeline.action, pipeline.jump_target = PolicyAction(do), action.get("to")


def _on_task_ended(_execution: PlaybookFields, playbook: PlaybookState, path: EntityPath, event: FoldableEvent) -> None:
    pipeline = playbook.pipelines.get(pipeline_key(path))
    if pipeline is None or path.task is None:
        return
    pipeline.is_running = False
    if pipeline.pending_outcome is None:
        pipeline.attempt_ended_at = micros_or_zero(event.emitted_at)
    outcome = pipeline.pending_outcome or attempt_outcome(event)
    pipeline.pending_outcome = None
    pipeline.results[path.task] = pipeline.previous = outcome.result
    if event.event_type == "TaskFailed":
        pipeline.action = PolicyAction.FAIL
        pipeline.error = read_payload(payloads.TaskEnded, event).error or ErrorInfo("TASK_FAILED", "A task failed.")
    else:
        pipeline.action = pipeline.action or PolicyAction.CONTINUE
        pipeline.jump_count += pipeline.action is PolicyAction.JUMP


def _on_manifest_updated(
    _execution: PlaybookFields, playbook: PlaybookState, path: EntityPath, event: FoldableEvent
) -> None:
    """Add a part to a manifest: the newest result of the task."""
    pipeline = playbook.pipelines.get(pipeline_key(path))
    ref = read_payload(payloads.ResultStored, event).result_ref or {}
    if pipeline is None or path.task is None or (part := pipeline.results.get(path.task)) is None:
        return
    name = str(ref.get("name"))
    manifest = pipeline.manifests.get(name)
    if manifest is None:
        manifest = pipeline.manifests[name] = ManifestState(str(ref.get("strategy")), ref.get("merge_path"))
    manifest.parts.append(part)
    manifest.size_bytes += size_of(part)


_ENTITY_HANDLERS: dict[str, Callable[[PlaybookFields, PlaybookState, EntityPath, FoldableEvent], None]] = {
    "PolicyAdmitEvaluated": _on_admission_evaluated,
    "StepScheduled": _on_step_scheduled,
    "StepStarted": _on_step_started,
    "LoopIterationStarted": _on_iteration_started,
    "LoopIterationDone": _on_iteration_ended,
    "LoopIterationFailed": _on_iteration_ended,
    "TaskStarted": _on_task_started,
    "TaskAttemptStarted": _on_attempt_started,
    "TaskAttemptDone": _on_attempt_ended,
    "TaskAttemptFailed": _on_attempt_ended,
    "PolicyTaskEvaluated": _on_policy_evaluated,
    "TaskDone": _on_task_ended,
    "TaskFailed": _on_task_ended,
    "ResultManifestUpdated": _on_manifest_updated,
    "StepCompleted": _on_step_ended,
    "StepFailed": _on_step_ended,
    "NextEvaluated": _on_next_evaluated,
}

HANDLERS: dict[str, Callable[[PlaybookFields, FoldableEvent], None]] = {
    "WorkflowStarted": _on_workflow_started,
    **dict.fromkeys(_ENTITY_HANDLERS, _on_entity_event),
}
