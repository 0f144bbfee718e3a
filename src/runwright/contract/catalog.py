"""The catalogue: the only list of event types.

JSON Schemas, dotted names, bus subjects, emitter checks and the reference page of the docs are derived from it. An
event of another type is stored and shown, and never changes state.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from . import payloads as p


class Level(StrEnum):
    RUN = "run"  # no stepId
    STEP = "step"  # stepId is the step
    ENTITY = "entity"  # stepId is an entity path: a part of a step, or something outside of steps


class Role(StrEnum):
    """Role of an emitter, not a process: the server decides, a worker executes tools."""

    SERVER = "server"
    WORKER = "worker"


class EventType(msgspec.Struct, frozen=True):
    name: str
    dotted: str
    level: Level
    role: Role
    payload: type[msgspec.Struct]
    summary: str
    schema_version: int = 1
    from_anyone: bool = False  # processes other than the owner of the run may append it


def _table() -> dict[str, EventType]:
    run, step, entity = Level.RUN, Level.STEP, Level.ENTITY
    server, worker = Role.SERVER, Role.WORKER
    rows: list[EventType] = []

    def add(
        name: str,
        dotted: str,
        level: Level,
        role: Role,
        payload: type[msgspec.Struct],
        summary: str,
        *,
        version: int = 1,
        from_anyone: bool = False,
    ) -> None:
        rows.append(EventType(name, dotted, level, role, payload, summary, version, from_anyone))

    add("RunQueued", "playbook.execution.requested", run, server, p.RunQueued, "The run was requested; PENDING")
    add("AdmissionEvaluated", "playbook.request.evaluated", run, server, p.AdmissionEvaluated, "START, QUEUE or DELAY, with the figures of the quota")
    add("RunApproved", "playbook.approved", run, server, p.RunApproved, "The run may start; APPROVED")
    add("RunStarted", "playbook.started", run, server, p.RunStarted, "The engine started the run; RUNNING", version=2)
    add("WorkflowStarted", "workflow.started", run, server, p.WorkflowStarted, "The plan was loaded and verified")
    add("WorkflowFinished", "workflow.finished", run, server, p.WorkflowFinished, "All steps have ended")
    add("StepScheduled", "step.scheduled", entity, server, p.StepScheduled, "A token was committed for the step; workers may claim it")
    add("PolicyAdmitEvaluated", "policy.admit.evaluated", entity, server, p.PolicyAdmitEvaluated, "Whether the step may run, and the rule that decided")
    add("StepStarted", "step.started", step, worker, p.StepStarted, "The attempt started; RUNNING")
    add("StepCompleted", "step.done", step, worker, p.StepCompleted, "The attempt succeeded; SUCCESS")
    add("StepFailed", "step.failed", step, worker, p.StepFailed, "The attempt failed; FAILED")
    add("StepSkipped", "step.skipped", step, server, p.StepSkipped, "The step is skipped; SKIPPED")
    add("StepRetryScheduled", "step.attempt.scheduled", entity, server, p.StepRetryScheduled, "The next attempt of a failed step is due at this time")
    add("StepDelayed", "step.delayed", entity, server, p.StepDelayed, "The step waits for a time or an event")
    add("StepOverridden", "step.override.applied", entity, server, p.StepChanged, "The inputs of a pending step were changed")
    add("StepTargetUpdated", "step.target.updated", entity, server, p.StepChanged, "The target of a step was changed")
    add("TaskStarted", "task.started", entity, worker, p.TaskStarted, "A task of a pipeline started")
    add("TaskDone", "task.done", entity, worker, p.TaskEnded, "The final outcome of a task is a success")
    add("TaskFailed", "task.failed", entity, worker, p.TaskEnded, "The final outcome of a task is a failure")
    add("TaskAttemptStarted", "task.attempt.started", entity, worker, p.TaskStarted, "An attempt of a task started")
    add("TaskAttemptDone", "task.attempt.done", entity, worker, p.TaskEnded, "An attempt of a task succeeded")
    add("TaskAttemptFailed", "task.attempt.failed", entity, worker, p.TaskEnded, "An attempt of a task failed")
    add("PolicyTaskEvaluated", "policy.task.evaluated", entity, worker, p.PolicyTaskEvaluated, "The rule that matched the outcome of a task, and its action")
    add("LoopStarted", "loop.started", entity, server, p.LoopStarted, "A loop started")
    add("LoopDone", "loop.done", entity, server, p.LoopCounts, "Every iteration ended; the counts that routing uses")
    add("LoopIterationScheduled", "loop.iteration.scheduled", entity, server, p.LoopIteration, "An iteration was scheduled")
    add("LoopIterationStarted", "loop.iteration.started", entity, worker, p.LoopIteration, "An iteration started")
    add("LoopIterationDone", "loop.iteration.done", entity, worker, p.LoopIteration, "An iteration succeeded")
    add("LoopIterationFailed", "loop.iteration.failed", entity, worker, p.LoopIteration, "An iteration failed")
    add("NextEvaluated", "next.evaluated", entity, server, p.NextEvaluated, "The arcs that matched and those that fired")
    add("ResultStored", "result.stored", entity, worker, p.ResultStored, "A large value was stored outside of the log")
    add("ResultManifestUpdated", "result.manifest.updated", entity, worker, p.ResultStored, "A part was added to a manifest")
    add("ChildRunInitiated", "step.child.initiated", entity, server, p.ChildRunInitiated, "The run of a step is about to be created with this id")
    add("CheckpointWritten", "step.checkpoint.written", entity, worker, p.CheckpointWritten, "A step stored a checkpoint")
    add("ApprovalRequested", "step.approval.requested", entity, server, p.Approval, "A person was asked for approval")
    add("ApprovalGranted", "step.approval.granted", entity, server, p.Approval, "A person approved")
    add("ApprovalDenied", "step.approval.denied", entity, server, p.Approval, "A person denied")
    add("SignalAccepted", "signal.accepted", entity, server, p.SignalDecided, "A signal will be applied; the status does not change", from_anyone=True)
    add("SignalRejected", "signal.rejected", entity, server, p.SignalDecided, "A signal was rejected", from_anyone=True)
    add("SignalRevisionRequired", "signal.revision.required", entity, server, p.SignalDecided, "A second person must confirm a signal", from_anyone=True)
    add("SignalProcessed", "signal.processed", entity, server, p.SignalProcessed, "The engine applied an accepted signal")
    add("RunParamsUpdated", "playbook.params.updated", run, server, p.RunParamsUpdated, "Parameters were changed, effective from the next step")
    add("RunPaused", "playbook.paused", run, server, p.RunSteered, "No new steps start; PAUSED")
    add("RunResumed", "playbook.resumed", run, server, p.RunSteered, "Steps start again; RUNNING")
    add("RunDrainTimedOut", "playbook.drain.failed", run, server, p.RunSteered, "Running steps did not finish within the drain timeout")
    add("RunCompleted", "playbook.finished", run, server, p.RunEnded, "The run succeeded; COMPLETED")
    add("RunFailed", "playbook.finished", run, server, p.RunEnded, "The run failed; FAILED")
    add("RunCancelled", "playbook.finished", run, server, p.RunEnded, "The run was cancelled; CANCELLED")
    add("RunProcessed", "playbook.processed", run, server, p.Payload, "All processing of a playbook is complete")
    add("RunArchived", "playbook.archived", run, server, p.RunArchived, "The log was archived to cold storage", from_anyone=True)
    return {row.name: row for row in rows}


CATALOG: dict[str, EventType] = _table()


def schema_version_of(event_type: str) -> int:
    """Return the newest payload version of a type; 1 for a type that is not in the catalogue."""
    known = CATALOG.get(event_type)
    return 1 if known is None else known.schema_version
