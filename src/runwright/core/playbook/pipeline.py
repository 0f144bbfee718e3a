"""Pipelines: tasks one after another, each with a policy for its outcome."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec.structs import replace

from runwright.contract import payloads
from runwright.contract.errors import RunwrightError
from runwright.contract.paths import EntityPath, parse_path
from runwright.contract.playbook import PolicyAction, Task
from runwright.contract.refs import ErrorInfo
from runwright.contract.result_ref import result_address
from runwright.contract.timestamps import from_micros
from runwright.core.fold.playbook_state import PipelineState, pipeline_key, size_of
from runwright.core.graph.playbook_graph import PlaybookStep
from runwright.core.scheduling.result_refs import PlacedResult
from runwright.core.scheduling.scheduler import AttemptEnd, RunningAttempt

from .context import PlaybookContext
from .outcome import TaskOutcome, build_outcome, error_of, store_result
from .policies import PolicyInput, decide_policy


def task_path(path: EntityPath, label: str, visit: int) -> str:
    return str(replace(path, task=label, task_visit=visit))


# The end of an attempt


def end_attempt(playbook: PlaybookContext, end: AttemptEnd) -> None:
    """Emit the end of an attempt. The next decision evaluates the policy."""
    path = parse_path(end.path)
    if path is None or path.task is None or not is_running(playbook, end.path, end.attempt):
        return
    task = playbook.step_of(path).tasks[path.task]
    error, outcome = end.error, build_outcome(end, task.kind)
    try:
        placed = store_result(playbook, task, path, end.attempt, outcome.body)
    except RunwrightError as problem:
        error = ErrorInfo(problem.code, problem.detail, retryable=False, category="plan")
        outcome = build_outcome(AttemptEnd(end.path, end.attempt, end.duration_ms, None, error), task.kind)
        placed = PlacedResult(outcome.body)
    payload = _attempt_payload(playbook, end, outcome, placed)
    run = playbook.run
    if task.rules is not None:
        run.emit("TaskAttemptDone" if error is None else "TaskAttemptFailed", end.path, end.attempt, payload)
    elif error is None:
        run.emit("TaskDone", end.path, end.attempt, payload)
        _add_to_manifest(playbook, task, path, end.attempt)
    else:
        run.emit("TaskFailed", end.path, end.attempt, {**payload, "error": error_of(outcome.fields)})
    run.mark_append_boundary()


def _attempt_payload(
    playbook: PlaybookContext, end: AttemptEnd, outcome: TaskOutcome, placed: PlacedResult
) -> dict[str, Any]:
    payload: dict[str, Any] = {"outcome": outcome.fields}
    if placed.ref is not None:
        payload["result_ref"] = placed.ref
        stored = payloads.ResultStored(msgspec.to_builtins(placed.ref), placed.extracted)
        playbook.run.emit("ResultStored", end.path, end.attempt, stored)
    else:
        outcome.fields["result"] = msgspec.Raw(placed.body)
        payload |= {"extracted": placed.extracted} if placed.extracted else {}
    if end.artifacts:
        payload["artifactRefs"] = list(end.artifacts)
    return payload


def _add_to_manifest(playbook: PlaybookContext, task: Task, path: EntityPath, attempt: int) -> None:
    manifest = task.result.manifest
    if manifest is None:
        return
    pipeline = playbook.state.pipelines[pipeline_key(path)]
    before = pipeline.manifests.get(manifest.name)
    part = pipeline.results[task.label]
    description: dict[str, Any] = {
        "kind": "manifest",
        "name": manifest.name,
        "strategy": manifest.strategy,
        "part": {"ref": result_address(playbook.run.run.run_id, path, attempt)},
        "total_parts": 1 + (0 if before is None else len(before.parts)),
        "total_bytes": size_of(part) + (0 if before is None else before.size_bytes),
    }
    if manifest.path is not None:
        description["merge_path"] = manifest.path
    playbook.run.emit("ResultManifestUpdated", str(path), attempt, payloads.ResultStored(description))


def is_running(playbook: PlaybookContext, path_text: str, attempt: int) -> bool:
    """Whether the log has this attempt of a task as running."""
    path = parse_path(path_text)
    pipeline = None if path is None else playbook.pipeline_of(path)
    if path is None or pipeline is None or path.task is None or not pipeline.is_running:
        return False
    current = (pipeline.task, pipeline.task_visits.get(path.task), pipeline.attempt)
    return current == (path.task, path.task_visit, attempt)


# The policy of a task


def apply_policy(playbook: PlaybookContext, task: PolicyInput) -> bool:
    """Evaluate the policy of the current task and emit its decision. True if the task is retried later.
    Raises MissingValues to have values fetched."""
    step, pipeline, run = task.step, task.pipeline, playbook.run
    assert pipeline.task is not None
    assert pipeline.pending_outcome is not None
    path = task_path(task.path, pipeline.task, pipeline.task_visits[pipeline.task])
    decision = decide_policy(playbook, task)
    evaluated: dict[str, Any] = {"matched_rule_index": decision.rule, "action": decision.action}
    evaluated |= {name: value for name, value in (("ctx", decision.ctx), ("iter", decision.iter)) if value}
    if decision.due is not None:
        evaluated["next_attempt_at"] = from_micros(decision.due)
    if decision.is_broken:
        evaluated["error"] = decision.error
    ended: dict[str, Any] = {"outcome": {"status": pipeline.pending_outcome.status, **pipeline.pending_outcome.details}}
    if (ref := pipeline.pending_outcome.result.ref) is not None:
        ended["result_ref"] = {name: part for name, part in ref.items() if name != "preview"}
    attempt, is_success = pipeline.attempt, pipeline.pending_outcome.status == "ok"
    run.emit("PolicyTaskEvaluated", path, attempt, evaluated)
    if decision.do is PolicyAction.RETRY:
        return True
    if decision.do is PolicyAction.FAIL:
        run.emit("TaskFailed", path, attempt, {**ended, "error": decision.error})
        return False
    definition, parsed = step.tasks[pipeline.task], parse_path(path)
    run.emit("TaskDone", path, attempt, ended)
    if is_success and parsed is not None:
        _add_to_manifest(playbook, definition, parsed, attempt)
    return False


def next_label(step: PlaybookStep, pipeline: PipelineState) -> str | None:
    """The task to start next; None if the pipeline is done."""
    if pipeline.task is None:
        return step.labels[0] if step.labels else None
    if pipeline.action is PolicyAction.JUMP:
        return pipeline.jump_target
    return None if pipeline.action is PolicyAction.BREAK else step.after(pipeline.task)


def start_task(
    playbook: PlaybookContext,
    step: PlaybookStep,
    path: EntityPath,
    pipeline: PipelineState,
    label: str,
    worker: str | None = None,
) -> None:
    task, started = task_path(path, label, pipeline.task_visits.get(label, 0) + 1), payloads.TaskStarted(worker)
    playbook.run.emit("TaskStarted", task, 1, started)
    if step.tasks[label].rules is not None:
        playbook.run.emit("TaskAttemptStarted", task, 1, started)


# All pipelines of a run


def fail_running_tasks(playbook: PlaybookContext, error: ErrorInfo) -> None:
    """Fail every task that was started, also those that wait for a retry, because the run ends."""
    outcome = {"status": "error", "error": {"kind": "cancelled", "code": error.code, "retryable": False}}
    for path, pipeline in _current_tasks(playbook):
        if pipeline.action is not None:
            continue
        if pipeline.is_running and _has_policy(playbook, path):
            playbook.run.emit("TaskAttemptFailed", path, pipeline.attempt, {"outcome": outcome})
        idle = {} if pipeline.is_running else {"idle": True}  # its last attempt had ended before
        playbook.run.emit("TaskFailed", path, pipeline.attempt, {"outcome": outcome, "error": error, **idle})


def _has_policy(playbook: PlaybookContext, path_text: str) -> bool:
    path = parse_path(path_text)
    return path is not None and playbook.step_of(path).tasks[path.task or ""].rules is not None


def running_tasks(playbook: PlaybookContext) -> list[RunningAttempt]:
    return [
        RunningAttempt(path, pipeline.attempt) for path, pipeline in _current_tasks(playbook) if pipeline.is_running
    ]


def _current_tasks(playbook: PlaybookContext) -> list[tuple[str, PipelineState]]:
    """The current or last task of every open pipeline."""
    if not playbook.is_started:
        return []
    return [
        (task_path(path, pipeline.task, pipeline.task_visits[pipeline.task]), pipeline)
        for key, pipeline in playbook.state.pipelines.items()
        if pipeline.task is not None and (path := parse_path(key)) is not None
    ]
