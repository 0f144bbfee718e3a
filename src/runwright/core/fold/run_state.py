"""The mutable state of one run that the fold fills, and `freeze`, which turns it into an immutable snapshot."""

from __future__ import annotations

import msgspec

from runwright.contract.events import RunIdentity
from runwright.contract.refs import ArtifactRef, ErrorInfo
from runwright.contract.snapshot import IterationFailure, Iterations, RunSnapshot, RunSummary, StepSnapshot
from runwright.contract.timestamps import millis_between
from runwright.contract.transitions import RunStatus, StepStatus

from .execution_state import ExecutionState


class StepState(msgspec.Struct, gc=False):
    """A step: its newest attempt, the final statuses of earlier attempts, and details for snapshots."""

    attempt: int
    status: StepStatus
    past: dict[int, StepStatus] | None = None  # earlier attempt -> its final status
    retry: bool = False  # a retry of the failed attempt is scheduled
    engine_attempt_id: int = 1
    started_at: str | None = None
    completed_at: str | None = None
    artifacts: tuple[ArtifactRef, ...] = ()
    error: ErrorInfo | None = None
    reason_code: str | None = None

    def next_attempt(self, attempt: int) -> None:
        """Move the current attempt to the earlier ones and begin another."""
        self.past = {**(self.past or {}), self.attempt: self.status}
        self.attempt = attempt
        self.started_at = self.completed_at = self.error = self.reason_code = None
        self.artifacts = ()


class LoopProgress(msgspec.Struct):
    """Counts of the iterations of a loop, for snapshots."""

    total: int = 0
    done: int = 0
    failed: int = 0
    running: dict[str, None] = {}  # paths of running iterations
    failures: list[IterationFailure] = []


class RunState(msgspec.Struct):
    """The state of a run.

    `evolve` reads only the entities that its event names. So the state may be complete (built by folding every event)
    or hold only the entities that the next event needs (built from key look-ups by the append authority): the outcome
    is the same.
    """

    summary: RunSummary = msgspec.field(default_factory=RunSummary)
    steps: dict[str, StepState] = {}
    # Sets are dicts without values, because dicts are ordered: the same events must give the same bytes.
    applied: dict[str, None] = {}  # run-level events that took effect, as "type|attempt"
    signals: dict[str, None] = {}  # paths of accepted signals
    approvals: dict[str, bool] = {}  # "path|attempt": True while the request is pending
    artifacts: tuple[ArtifactRef, ...] = ()  # named by the run's end
    detailed: bool = False  # whether to store what only snapshots show: artifacts, errors, reasons, loops
    loops: dict[str, LoopProgress] = {}
    execution: ExecutionState | None = msgspec.field(default=None, name="workings")  # the encoded name is fixed


def inflight_count(summary: RunSummary) -> int:
    """Return the number of steps, iterations or tasks in flight."""
    steps = 0 if summary.has_tasks else summary.running_steps
    return max(0, steps + summary.loose_tasks)


def substatus(summary: RunSummary) -> tuple[str | None, str | None]:
    """Return the substatus of the run and a message for it; both None if there is none."""
    status = summary.status
    if status is RunStatus.PAUSED and (count := inflight_count(summary)) and not summary.drain_timed_out:
        tasks = "task" if count == 1 else "tasks"
        return "DRAINING", f"Workflow paused. Waiting for {count} in-flight {tasks} to complete."
    if status is RunStatus.PENDING and summary.approval_required:
        return "WAITING_APPROVAL", "Waiting for approval of the run."
    if status is RunStatus.RUNNING and summary.waiting_approvals:
        return "WAITING_APPROVAL", f"Waiting for {summary.waiting_approvals} approval(s)."
    if status is RunStatus.RUNNING and summary.retrying_steps:
        return "RETRYING", f"{summary.retrying_steps} step(s) will be retried."
    if status is RunStatus.RUNNING and summary.waits_on_failure and summary.failed_steps:
        prefix = summary.provider or "embedded"
        return f"{prefix}/WAITING_OPERATOR", f"{summary.failed_steps} step(s) failed: retry or skip them, or cancel."
    return None, None


def freeze(identity: RunIdentity, state: RunState) -> RunSnapshot:
    """Create an immutable snapshot of a run. The state must be detailed."""
    assert state.detailed, "freeze() requires a state created with detailed=True"
    summary = state.summary
    steps = tuple([_freeze_step(step_id, step, state.loops.get(step_id)) for step_id, step in state.steps.items()])
    artifacts: tuple[ArtifactRef, ...] = ()
    if summary.status is RunStatus.COMPLETED:
        of_steps = dict.fromkeys(artifact for step in steps for artifact in step.artifacts)
        artifacts = tuple(dict.fromkeys((*of_steps, *state.artifacts)))
    duration = millis_between(summary.started_at, summary.completed_at)
    substatus_code, message = substatus(summary)
    return RunSnapshot(
        run_id=identity.run_id,
        status=summary.status,
        last_event_seq=summary.last_event_seq,
        substatus=substatus_code,
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


def _freeze_step(step_id: str, step: StepState, loop: LoopProgress | None) -> StepSnapshot:
    return StepSnapshot(
        step_id,
        step.status,
        step.attempt,
        step.engine_attempt_id,
        step.started_at,
        step.completed_at,
        step.artifacts,
        step.error,
        step.reason_code,
        step.retry,
        () if step.past is None else tuple(step.past[attempt] for attempt in sorted(step.past)),
        None
        if loop is None
        else Iterations(loop.total, len(loop.running), loop.done, loop.failed, tuple(loop.failures)),
    )
