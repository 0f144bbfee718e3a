"""A run as somebody follows it: its plan, its folded state, and what a screen must know without searching.

Everything here costs what an event changes, never what the plan holds: a run of 100,000 steps is followed as
lightly as one of ten.
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
from runwright.core.evolve import evolve
from runwright.core.playwork import ended_of
from runwright.core.reading import read_payload
from runwright.core.state import RunState, StepCell, substatus
from runwright.log.reader import LogReader

LATEST = 200
"""How many steps that ended lately are remembered by name."""


class Asking(msgspec.Struct, frozen=True):
    words: str
    event: str | None = None  # None: a person is asked
    fields: tuple[str, ...] = ()  # that the answer has


class TaskNow(msgspec.Struct):
    """Where the pipeline of a playbook's step is."""

    path: str
    label: str
    attempt: int = 1
    error: str | None = None  # of the try before
    due: int | None = None  # when it is tried again


class Story:
    def __init__(self, run_id: str, plan: ExecutionPlan | None) -> None:
        self.run_id = run_id
        self.plan = plan
        self.plan_id = "" if plan is None else plan.plan_id
        self.state = RunState(detailed=True)
        steps = () if plan is None else plan.steps
        self.order: list[str] = [step.step_id for step in steps]
        self.place = {step_id: number for number, step_id in enumerate(self.order)}
        self._declared: dict[str, Step] = {step.step_id: step for step in steps}
        # Sets that keep their order, as dicts without values.
        self.running: dict[str, None] = {}
        self.retrying: dict[str, None] = {}
        self.failed: dict[str, None] = {}
        self.latest: deque[str] = deque(maxlen=LATEST)
        self.due: dict[str, int] = {}  # when a retry or the end of a wait is due
        self.asking: dict[str, Asking] = {}  # what steps wait for somebody to do
        self.queues: dict[str, str] = {}  # where steps wait for a worker
        self.tasks: dict[str, TaskNow] = {}  # of playbooks: what their steps are at, those that are no loops
        self._first_pending = 0

    def fold(self, record: RunEventRecord) -> None:
        evolve(self.state, record)
        self.plan_id = self.plan_id or record.plan_id
        step_id = record.step_id
        if step_id is None:
            return
        if record.event_type in STEP_TRANSITIONS:
            self._moved(step_id)
        elif "/" in step_id:
            self._note_task(record, step_id)
        elif record.event_type == "StepRetryScheduled":
            at = read_payload(payloads.StepRetryScheduled, record).next_attempt_at
            self._note_due(step_id, at)
            if step_id in self.state.steps and self.state.steps[step_id].retry:
                self.failed.pop(step_id, None)
                self.retrying[step_id] = None
        elif record.event_type == "StepScheduled":
            queue = read_payload(payloads.StepScheduled, record).queue
            if queue is not None:
                self.queues[step_id] = queue
        elif record.event_type == "StepDelayed":
            delayed = read_payload(payloads.StepDelayed, record)
            self._note_due(step_id, delayed.scheduled_at)
            if delayed.event is not None:
                self.asking[step_id] = Asking(f"waits for the event {delayed.event}", delayed.event)
        elif record.event_type == "ApprovalRequested":
            asked = read_payload(payloads.Approval, record)
            self._note_due(step_id, asked.expires_at)
            self.asking[step_id] = Asking(f"asks: {asked.prompt}", fields=tuple(asked.fields or ()))
        elif record.event_type in ("ApprovalGranted", "ApprovalDenied"):
            self.asking.pop(step_id, None)

    def _note_task(self, record: RunEventRecord, path: str) -> None:
        kind, (owner, _, name) = record.event_type, path.partition("/")
        if owner.endswith("]"):
            return  # of iterations there may be very many, and their loop counts them
        if kind == "TaskStarted":
            self.tasks[owner] = TaskNow(path, name.partition("@")[0])
        elif (task := self.tasks.get(owner)) is None:
            return
        elif kind == "TaskAttemptStarted":
            task.attempt, task.due = record.logical_attempt_id, None
        elif kind == "TaskAttemptFailed":
            error: dict[str, Any] = ended_of(record).outcome.get("error") or {}
            task.error = " ".join(str(error[part]) for part in ("code", "message") if error.get(part)) or None
        elif kind == "PolicyTaskEvaluated":
            at = read_payload(payloads.PolicyTaskEvaluated, record).next_attempt_at
            task.due = to_micros(at) if at is not None and is_utc(at) else None

    def _note_due(self, path: str, at: str | None) -> None:
        if at is not None and is_utc(at):
            self.due[path] = to_micros(at)

    def _moved(self, step_id: str) -> None:
        cell = self.state.steps.get(step_id)
        if cell is None:
            return
        if step_id not in self.place:  # the plan is not known, or is not all there is
            self.place[step_id] = len(self.order)
            self.order.append(step_id)
        self.due.pop(step_id, None)
        self.queues.pop(step_id, None)
        if cell.status is not StepStatus.RUNNING:
            self.asking.pop(step_id, None)
            self.tasks.pop(step_id, None)
        for group in (self.running, self.retrying, self.failed):
            group.pop(step_id, None)
        if cell.status is StepStatus.RUNNING:
            self.running[step_id] = None
            return
        self.latest.append(step_id)
        if cell.status is StepStatus.FAILED:
            self.failed[step_id] = None

    # What people ask

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
        """Whether a failed step keeps the run open until somebody says how to go on."""
        summary = self.state.summary
        return summary.waits_on_failure and bool(self.failed) and summary.status is RunStatus.RUNNING

    def is_retrying(self, step_id: str) -> bool:
        """Whether another attempt is coming: one that was scheduled does not, once the run has ended."""
        return step_id in self.retrying and not self.has_ended

    def cell(self, step_id: str) -> StepCell | None:
        return self.state.steps.get(step_id)

    def step(self, step_id: str) -> Step | None:
        """As it was declared; further visits of a playbook's step are the same step."""
        return self._declared.get(step_id) or self._declared.get(step_id.partition("@")[0])

    @property
    def total(self) -> int:
        """The plan's steps and those that have come up beside them; in the end, all that were to run."""
        known = self.state.summary.total_steps
        return known if self.status is RunStatus.COMPLETED else max(len(self.order), known)

    @property
    def ended_steps(self) -> int:
        summary = self.state.summary
        ended = summary.completed_steps + summary.skipped_steps + summary.failed_steps
        return ended if self.has_ended else ended - summary.retrying_steps

    @property
    def fraction(self) -> float:
        """How much of the run is done; loops count by their iterations."""
        if not self.total:
            return 0.0
        partly = 0.0
        for step_id in self.running:
            loop = self.state.loops.get(step_id)
            if loop is not None and loop.total:
                partly += loop.done / loop.total
        return min(1.0, (self.ended_steps + partly) / self.total)

    def pending(self, limit: int) -> list[str]:
        """The first steps that nothing has happened to yet."""
        order, steps = self.order, self.state.steps
        while self._first_pending < len(order) and order[self._first_pending] in steps:
            self._first_pending += 1
        found: list[str] = []
        for number in range(self._first_pending, len(order)):
            if len(found) >= limit or number - self._first_pending > 50 * limit:
                break
            if order[number] not in steps:
                found.append(order[number])
        return found


async def plan_of_run(log: LogReader, run_id: str) -> ExecutionPlan | None:
    """The plan that a run follows; None if it is not in this store, as with runs of other engines."""
    started = await log.find_event(run_id, "RunStarted")
    reference = None if started is None else read_payload(payloads.RunStarted, started).plan_ref
    if started is None or reference is None:
        return None
    try:
        return read_plan(await log.plan(reference.sha256, started.tenant_id))
    except (RunwrightError, ValueError):  # not kept here, or written by a newer version
        return None


async def tell_story(log: LogReader, run_id: str) -> Story:
    """The story of a run up to now."""
    story = Story(run_id, await plan_of_run(log, run_id))
    async for record in log.events(run_id):
        story.fold(record)
    return story
