"""The fold's own, mutable state of one run, and how it becomes an immutable snapshot."""

from __future__ import annotations

import msgspec

from runwright.contract.events import RunIdentity
from runwright.contract.refs import ArtifactRef, ErrorInfo
from runwright.contract.snapshot import IterationFailure, Iterations, RunSnapshot, RunSummary, StepSnapshot
from runwright.contract.timestamps import millis_between
from runwright.contract.transitions import RunStatus, StepStatus

from .workings import Workings

PENDING = StepStatus.PENDING


class StepCell(msgspec.Struct, gc=False):
    """A step: its newest attempt, how earlier ones ended, and what people want to know of it."""

    attempt: int
    status: StepStatus
    past: dict[int, StepStatus] | None = None
    retry: bool = False  # a retry of the failed attempt is scheduled
    engine_attempt_id: int = 1
    started_at: str | None = None
    completed_at: str | None = None
    artifacts: tuple[ArtifactRef, ...] = ()
    error: ErrorInfo | None = None
    reason_code: str | None = None

    def status_of(self, attempt: int) -> StepStatus:
        if attempt == self.attempt:
            return self.status
        return PENDING if self.past is None else self.past.get(attempt, PENDING)

    def next_attempt(self, attempt: int) -> None:
        """Put the attempt so far among the earlier ones."""
        self.past = {**(self.past or {}), self.attempt: self.status}
        self.attempt = attempt
        self.started_at = self.completed_at = self.error = self.reason_code = None
        self.artifacts = ()


class LoopCell(msgspec.Struct):
    """How far a loop is, for people."""

    total: int = 0
    done: int = 0
    failed: int = 0
    running: dict[str, None] = {}
    failures: list[IterationFailure] = []


class RunState(msgspec.Struct):
    """The state of a run.

    `evolve` looks only at the entities its event names. So the state may be whole (built by folding
    every event), or hold just the entities that the next event needs (built from key look-ups by the
    Append Authority): the outcome is the same.
    """

    summary: RunSummary = msgspec.field(default_factory=RunSummary)
    steps: dict[str, StepCell] = {}
    # Sets, as dicts without values: those keep their order, so that the same events give the same bytes.
    applied: dict[str, None] = {}  # run-level events that took effect, as "type|attempt"
    signals: dict[str, None] = {}  # paths of accepted signals
    approvals: dict[str, bool] = {}  # "path|attempt": True while nobody has answered
    artifacts: tuple[ArtifactRef, ...] = ()  # named by the run's end
    detailed: bool = False  # whether to keep what only people look at: artifacts, errors, reasons, loops
    loops: dict[str, LoopCell] = {}
    workings: Workings | None = None  # what only a driver needs


def at_work(summary: RunSummary) -> int:
    """How many steps, iterations or tasks are being worked on."""
    steps = 0 if summary.has_tasks else summary.running_steps
    return max(0, steps + summary.loose_tasks)


def substatus(summary: RunSummary) -> tuple[str | None, str | None]:
    """What the run is doing within its status, and the sentence that says so."""
    status = summary.status
    if status is RunStatus.PAUSED and (count := at_work(summary)) and not summary.drain_timed_out:
        tasks = "task" if count == 1 else "tasks"
        return "DRAINING", f"Workflow paused. Waiting for {count} in-flight {tasks} to complete."
    if status is RunStatus.PENDING and summary.approval_required:
        return "WAITING_APPROVAL", "Waiting for approval of the run."
    if status is RunStatus.RUNNING and summary.waiting_approvals:
        return "WAITING_APPROVAL", f"Waiting for {summary.waiting_approvals} approval(s)."
    if status is RunStatus.RUNNING and summary.retrying_steps:
        return "RETRYING", f"{summary.retrying_steps} step(s) will be tried again."
    if status is RunStatus.RUNNING and summary.waits_on_failure and summary.failed_steps:
        prefix = summary.provider or "embedded"
        return f"{prefix}/WAITING_OPERATOR", f"{summary.failed_steps} step(s) failed: retry or skip them, or cancel."
    return None, None


def freeze(identity: RunIdentity, state: RunState) -> RunSnapshot:
    """The run as it stands, as a new object that never changes."""
    assert state.detailed, "this state was not made to be looked at"
    summary = state.summary
    steps = tuple([_freeze_step(step_id, cell, state.loops.get(step_id)) for step_id, cell in state.steps.items()])
    artifacts: tuple[ArtifactRef, ...] = ()
    if summary.status is RunStatus.COMPLETED:
        gathered = dict.fromkeys(artifact for step in steps for artifact in step.artifacts)
        artifacts = tuple(dict.fromkeys((*gathered, *state.artifacts)))
    duration = millis_between(summary.started_at, summary.completed_at)
    within, message = substatus(summary)
    return RunSnapshot(
        run_id=identity.run_id,
        status=summary.status,
        last_event_seq=summary.last_event_seq,
        substatus=within,
        message=message,
        tenant_id=identity.tenant_id,
        project_id=identity.project_id,
        environment_id=identity.environment_id,
        plan_id=identity.plan_id,
        plan_version=identity.plan_version,
        started_at=summary.started_at,
        completed_at=summary.completed_at,
        total_duration_ms=duration,
        total_steps=summary.total_steps,
        completed_steps=summary.completed_steps,
        failed_steps=summary.failed_steps,
        skipped_steps=summary.skipped_steps,
        running_steps=summary.running_steps,
        engine_run_ref=summary.engine_run_ref,
        root_cause=summary.root_cause,
        reason=summary.reason,
        inconsistent=summary.inconsistent,
        origin_run_id=summary.origin_run_id,
        pauses=summary.pauses,
        steps=steps,
        artifacts=artifacts,
    )


def _freeze_step(step_id: str, cell: StepCell, loop: LoopCell | None) -> StepSnapshot:
    return StepSnapshot(
        step_id,
        cell.status,
        cell.attempt,
        cell.engine_attempt_id,
        cell.started_at,
        cell.completed_at,
        cell.artifacts,
        cell.error,
        cell.reason_code,
        cell.retry,
        () if cell.past is None else tuple(cell.past[attempt] for attempt in sorted(cell.past)),
        None
        if loop is None
        else Iterations(loop.total, len(loop.running), loop.done, loop.failed, tuple(loop.failures)),
    )
