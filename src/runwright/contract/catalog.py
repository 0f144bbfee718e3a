"""The catalogue: the only place where event types are listed.

JSON Schemas, dotted names, bus subjects, emitter checks and the reference page in the docs all come
from this table. A type that is not here is stored and shown all the same; it never changes state.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from . import payloads as p


class Level(StrEnum):
    RUN = "run"  # no stepId
    STEP = "step"  # stepId is the step
    ENTITY = "entity"  # stepId is an entity path, finer than a step or beside it


class Role(StrEnum):
    """Whoever decides is the server, whoever runs a tool is the worker: roles, not processes."""

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
    from_anyone: bool = False  # others may append it too while somebody drives the run


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

    add("RunQueued", "playbook.execution.requested", run, server, p.RunQueued, "The run was asked for; PENDING")
    add("AdmissionEvaluated", "playbook.request.evaluated", run, server, p.AdmissionEvaluated, "START, QUEUE or DELAY, with the quota's figures")
    add("RunApproved", "playbook.approved", run, server, p.RunApproved, "The run may start; APPROVED")
    add("RunStarted", "playbook.started", run, server, p.RunStarted, "The engine took the run up; RUNNING", version=2)
    add("WorkflowStarted", "workflow.started", run, server, p.WorkflowStarted, "The plan was loaded and verified")
    add("WorkflowFinished", "workflow.finished", run, server, p.WorkflowFinished, "Nothing is left to run")
    add("StepScheduled", "step.scheduled", entity, server, p.StepScheduled, "A token was committed for the step; workers may take it")
    add("PolicyAdmitEvaluated", "policy.admit.evaluated", entity, server, p.PolicyAdmitEvaluated, "Whether the step may run, and by which rule")
    add("StepStarted", "step.started", step, worker, p.StepStarted, "The attempt runs; RUNNING")
    add("StepCompleted", "step.done", step, worker, p.StepCompleted, "The attempt ended well; SUCCESS")
    add("StepFailed", "step.failed", step, worker, p.StepFailed, "The attempt ended badly; FAILED")
    add("StepSkipped", "step.skipped", step, server, p.StepSkipped, "The step will not run; SKIPPED")
    add("StepRetryScheduled", "step.attempt.scheduled", entity, server, p.StepRetryScheduled, "When the next attempt of a failed step is due")
    add("StepDelayed", "step.delayed", entity, server, p.StepDelayed, "The step waits, and for what")
    add("StepOverridden", "step.override.applied", entity, server, p.StepChanged, "A pending step's inputs were changed")
    add("StepTargetUpdated", "step.target.updated", entity, server, p.StepChanged, "A step was pointed elsewhere")
    add("TaskStarted", "task.started", entity, worker, p.TaskStarted, "A task of a pipeline began")
    add("TaskDone", "task.done", entity, worker, p.TaskEnded, "A task's final outcome, good")
    add("TaskFailed", "task.failed", entity, worker, p.TaskEnded, "A task's final outcome, bad")
    add("TaskAttemptStarted", "task.attempt.started", entity, worker, p.TaskStarted, "One try of a task began")
    add("TaskAttemptDone", "task.attempt.done", entity, worker, p.TaskEnded, "One try of a task ended well")
    add("TaskAttemptFailed", "task.attempt.failed", entity, worker, p.TaskEnded, "One try of a task ended badly")
    add("PolicyTaskEvaluated", "policy.task.evaluated", entity, worker, p.PolicyTaskEvaluated, "Which rule matched a task's outcome, and what it does")
    add("LoopStarted", "loop.started", entity, server, p.LoopStarted, "A loop began")
    add("LoopDone", "loop.done", entity, server, p.LoopCounts, "Every iteration ended; what routing sees")
    add("LoopIterationScheduled", "loop.iteration.scheduled", entity, server, p.LoopIteration, "An iteration was handed out")
    add("LoopIterationStarted", "loop.iteration.started", entity, worker, p.LoopIteration, "An iteration began")
    add("LoopIterationDone", "loop.iteration.done", entity, worker, p.LoopIteration, "An iteration ended well")
    add("LoopIterationFailed", "loop.iteration.failed", entity, worker, p.LoopIteration, "An iteration ended badly")
    add("NextEvaluated", "next.evaluated", entity, server, p.NextEvaluated, "Which arcs matched and which fired")
    add("ResultStored", "result.stored", entity, worker, p.ResultStored, "A large value was put aside, by reference")
    add("ResultManifestUpdated", "result.manifest.updated", entity, worker, p.ResultStored, "A manifest gained a part")
    add("CheckpointWritten", "step.checkpoint.written", entity, worker, p.CheckpointWritten, "A step's own mark of progress")
    add("ApprovalRequested", "step.approval.requested", entity, server, p.Approval, "A person is asked")
    add("ApprovalGranted", "step.approval.granted", entity, server, p.Approval, "A person said yes")
    add("ApprovalDenied", "step.approval.denied", entity, server, p.Approval, "A person said no")
    add("SignalAccepted", "signal.accepted", entity, server, p.SignalDecided, "A signal will be acted on; the status does not change", from_anyone=True)
    add("SignalRejected", "signal.rejected", entity, server, p.SignalDecided, "A signal was refused", from_anyone=True)
    add("SignalRevisionRequired", "signal.revision.required", entity, server, p.SignalDecided, "A second person has to agree to a signal", from_anyone=True)
    add("SignalProcessed", "signal.processed", entity, server, p.SignalProcessed, "The engine acted on an accepted signal")
    add("RunParamsUpdated", "playbook.params.updated", run, server, p.RunParamsUpdated, "New parameters, from the next step on")
    add("RunPaused", "playbook.paused", run, server, p.RunSteered, "Nothing new starts; PAUSED")
    add("RunResumed", "playbook.resumed", run, server, p.RunSteered, "Things start again; RUNNING")
    add("RunDrainTimedOut", "playbook.drain.failed", run, server, p.RunSteered, "A pause waited too long for running steps")
    add("RunCompleted", "playbook.finished", run, server, p.RunEnded, "The run ended well; COMPLETED")
    add("RunFailed", "playbook.finished", run, server, p.RunEnded, "The run ended badly; FAILED")
    add("RunCancelled", "playbook.finished", run, server, p.RunEnded, "The run was stopped; CANCELLED")
    add("RunProcessed", "playbook.processed", run, server, p.Payload, "A playbook's books are closed")
    add("RunArchived", "playbook.archived", run, server, p.RunArchived, "The log was sealed to cold storage", from_anyone=True)
    return {row.name: row for row in rows}


CATALOG: dict[str, EventType] = _table()


def schema_version_of(event_type: str) -> int:
    """The newest payload version of a type; types from elsewhere are at their first."""
    known = CATALOG.get(event_type)
    return 1 if known is None else known.schema_version
