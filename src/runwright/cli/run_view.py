"""The folded state of a run that is followed, indexed for display.

Folding an event costs what the event changes, not the size of the plan: a run of 100,000 steps is followed at the same
cost per event as one of ten.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import msgspec

from runwright.contract import payloads
from runwright.contract.errors import RunwrightError
from runwright.contract.events import RunEventRecord
from runwright.contract.plan import ExecutionPlan, Step, read_plan
from runwright.contract.timestamps import is_utc, to_micros
from runwright.contract.transitions import ENDED, STEP_TRANSITIONS, RunStatus, StepStatus
from runwright.core.fold.evolve import evolve
from runwright.core.fold.payload_reader import read_payload
from runwright.core.fold.playbook_state import attempt_outcome
from runwright.core.fold.run_state import RunState, StepState, substatus
from runwright.log.protocols import LogReader

RECENT_STEPS = 200
"""Number of steps that `recently_ended` holds."""


class InputRequest(msgspec.Struct, frozen=True):
    """An approval or an external event that a step waits for."""

    text: str
    event: str | None = None  # None: the step waits for an approval.
    fields: tuple[str, ...] = ()  # Names of the fields of the approval's answer.


class CurrentTask(msgspec.Struct):
    """The current task in the pipeline of a playbook step."""

    path: str
    label: str
    attempt: int = 1
    error: str | None = None  # Of the previous attempt.
    due_at: int | None = None  # Time of the next attempt, in microseconds.


class RunView:
    def __init__(self, run_id: str, plan: ExecutionPlan | None) -> None:
        self.run_id = run_id
        self.plan = plan
        self.plan_id = "" if plan is None else plan.plan_id
        self.state = RunState(detailed=True)
        steps = () if plan is None else plan.steps
        self.step_ids: list[str] = [step.step_id for step in steps]
        self.positions = {step_id: number for number, step_id in enumerate(self.step_ids)}
        self._plan_steps: dict[str, Step] = {step.step_id: step for step in steps}
        # Ordered sets, as dicts without values.
        self.running: dict[str, None] = {}
        self.retrying: dict[str, None] = {}
        self.failed: dict[str, None] = {}
        self.recently_ended: deque[str] = deque(maxlen=RECENT_STEPS)
        self.due_times: dict[str, int] = {}  # When a retry or the end of a wait is due, in microseconds.
        self.input_requests: dict[str, InputRequest] = {}
        self.worker_queues: dict[str, str] = {}  # Task queues of steps that wait for a worker.
        self.tasks: dict[str, CurrentTask] = {}  # Of running playbook steps without a loop.
        self._first_pending = 0

    def fold(self, record: RunEventRecord) -> None:
        evolve(self.state, record)
        self.plan_id = self.plan_id or record.plan_id
        step_id = record.step_id
        if step_id is None:
            return
        if record.event_type in STEP_TRANSITIONS:
            self._fold_transition(step_id)
        elif "/" in step_id:
            self._fold_task(record, step_id)
        else:
            self._fold_step(record, step_id)

    def _fold_step(self, record: RunEventRecord, step_id: str) -> None:
        """Fold an event about a step that does not change its status."""
        if record.event_type == "StepRetryScheduled":
            self._store_due_time(step_id, read_payload(payloads.StepRetryScheduled, record).next_attempt_at)
            if step_id in self.state.steps and self.state.steps[step_id].retry:
                self.failed.pop(step_id, None)
                self.retrying[step_id] = None
        elif record.event_type == "StepScheduled":
            queue = read_payload(payloads.StepScheduled, record).queue
            if queue is not None:
                self.worker_queues[step_id] = queue
        elif record.event_type == "StepDelayed":
            delayed = read_payload(payloads.StepDelayed, record)
            self._store_due_time(step_id, delayed.scheduled_at)
            if delayed.event is not None:
                self.input_requests[step_id] = InputRequest(f"waits for event {delayed.event}", delayed.event)
        elif record.event_type == "ApprovalRequested":
            approval = read_payload(payloads.Approval, record)
            self._store_due_time(step_id, approval.expires_at)
            text, fields = f"requests approval: {approval.prompt}", tuple(approval.fields or ())
            self.input_requests[step_id] = InputRequest(text, fields=fields)
        elif record.event_type in ("ApprovalGranted", "ApprovalDenied"):
            self.input_requests.pop(step_id, None)

    def _fold_task(self, record: RunEventRecord, path: str) -> None:
        kind, (owner, _, name) = record.event_type, path.partition("/")
        if owner.endswith("]"):
            return  # Tasks of iterations are not tracked: there may be very many, and the loop counts them.
        if kind == "TaskStarted":
            self.tasks[owner] = CurrentTask(path, name.partition("@")[0])
        elif (task := self.tasks.get(owner)) is None:
            return
        elif kind == "TaskAttemptStarted":
            task.attempt, task.due_at = record.logical_attempt_id, None
        elif kind == "TaskAttemptFailed":
            error: dict[str, Any] = attempt_outcome(record).details.get("error") or {}
            task.error = " ".join(str(error[part]) for part in ("code", "message") if error.get(part)) or None
        elif kind == "PolicyTaskEvaluated":
            due = read_payload(payloads.PolicyTaskEvaluated, record).next_attempt_at
            task.due_at = to_micros(due) if due is not None and is_utc(due) else None

    def _store_due_time(self, step_id: str, due: str | None) -> None:
        if due is not None and is_utc(due):
            self.due_times[step_id] = to_micros(due)

    def _fold_transition(self, step_id: str) -> None:
        step = self.state.steps.get(step_id)
        if step is None:
            return
        if step_id not in self.positions:  # The plan is unknown, or does not declare this step.
            self.positions[step_id] = len(self.step_ids)
            self.step_ids.append(step_id)
        self.due_times.pop(step_id, None)
        self.worker_queues.pop(step_id, None)
        if step.status is not StepStatus.RUNNING:
            self.input_requests.pop(step_id, None)
            self.tasks.pop(step_id, None)
        for group in (self.running, self.retrying, self.failed):
            group.pop(step_id, None)
        if step.status is StepStatus.RUNNING:
            self.running[step_id] = None
            return
        self.recently_ended.append(step_id)
        if step.status is StepStatus.FAILED:
            self.failed[step_id] = None

    # Queries

    @property
    def status(self) -> RunStatus:
        return self.state.summary.status

    @property
    def has_ended(self) -> bool:
        return self.status in ENDED

    @property
    def substatus(self) -> str | None:
        return substatus(self.state.summary)[0]

    @property
    def message(self) -> str | None:
        return substatus(self.state.summary)[1]

    @property
    def waits_for_operator(self) -> bool:
        """Whether a failed step keeps the run open until an operator retries or skips it."""
        summary = self.state.summary
        return summary.waits_on_failure and bool(self.failed) and summary.status is RunStatus.RUNNING

    def is_retrying(self, step_id: str) -> bool:
        """Return True if another attempt follows. A scheduled attempt does not follow once the run has ended."""
        return step_id in self.retrying and not self.has_ended

    def step_state(self, step_id: str) -> StepState | None:
        return self.state.steps.get(step_id)

    def plan_step(self, step_id: str) -> Step | None:
        """Return the declared step. All visits of a playbook step have the same declaration."""
        return self._plan_steps.get(step_id) or self._plan_steps.get(step_id.partition("@")[0])

    @property
    def total(self) -> int:
        """Number of steps: those of the plan and those that events added; after completion, those that events named."""
        known = self.state.summary.total_steps
        return known if self.status is RunStatus.COMPLETED else max(len(self.step_ids), known)

    @property
    def ended_steps(self) -> int:
        summary = self.state.summary
        ended = summary.completed_steps + summary.skipped_steps + summary.failed_steps
        return ended if self.has_ended else ended - summary.retrying_steps

    @property
    def fraction(self) -> float:
        """Progress from 0 to 1; a running loop counts by its iterations."""
        if not self.total:
            return 0.0
        partial = 0.0
        for step_id in self.running:
            loop = self.state.loops.get(step_id)
            if loop is not None and loop.total:
                partial += loop.done / loop.total
        return min(1.0, (self.ended_steps + partial) / self.total)

    def pending(self, limit: int) -> list[str]:
        """Return the first steps without events. The search is bounded, so that it is cheap for large plans."""
        step_ids, states = self.step_ids, self.state.steps
        while self._first_pending < len(step_ids) and step_ids[self._first_pending] in states:
            self._first_pending += 1
        found: list[str] = []
        for number in range(self._first_pending, len(step_ids)):
            if len(found) >= limit or number - self._first_pending > 50 * limit:
                break
            if step_ids[number] not in states:
                found.append(step_ids[number])
        return found


async def plan_of_run(log: LogReader, run_id: str) -> ExecutionPlan | None:
    """Load the plan of a run; None if it is not in this store, as for runs of other engines."""
    started = await log.find_event(run_id, "RunStarted")
    reference = None if started is None else read_payload(payloads.RunStarted, started).plan_ref
    if started is None or reference is None:
        return None
    try:
        return read_plan(await log.plan(reference.sha256, started.tenant_id))
    except (RunwrightError, ValueError):  # Not stored here, or written by a newer version.
        return None


async def load_run_view(log: LogReader, run_id: str) -> RunView:
    """Fold all events of a run."""
    view = RunView(run_id, await plan_of_run(log, run_id))
    async for record in log.events(run_id):
        view.fold(record)
    return view
