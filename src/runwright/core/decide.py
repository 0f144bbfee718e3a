"""`decide`: what happens next in a run. Start this step, skip that one, wait until then, finish.

Pure: a function of the plan, the folded state, the time and the room that the caller gives. What it decides
it folds at once, so that one decision can lead to the next; the caller appends it all together, and if the
log has moved on in the meantime folds anew and asks again. Its cost is what changed, not what there is.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import msgspec

from runwright.contract import payloads
from runwright.contract.errors import RunwrightError
from runwright.contract.events import RunIdentity
from runwright.contract.keys import RUN
from runwright.contract.paths import parse_path
from runwright.contract.plan import OnFailure, Retry
from runwright.contract.refs import ErrorInfo
from runwright.contract.timestamps import from_micros, to_micros
from runwright.contract.transitions import ENDED, RUN_TRANSITIONS, STEP_TRANSITIONS, RunStatus, StepStatus

from .asking import NOBODY_CAME, close_approval, may_start
from .draft import Draft, Violation, draft
from .ending import finish_if_done
from .evolve import transition
from .expressions import is_true
from .handing import take_back
from .keeping import Spot
from .looping import end_wait, go_on_with_loops, retry_iterations, start_loop
from .net import Marking, Net
from .node import Node
from .playnet import Station
from .playscope import PlayScope
from .room import Room
from .routing import Router
from .state import RunState, StepCell
from .steering import Stop, steer
from .values import Missing, Values
from .waiting import TOO_LATE, Waits, delay, may_retry, too_late

Payload = msgspec.Struct | dict[str, Any] | bytes | None


class Decider:
    """One run on its way through its plan's net."""

    def __init__(
        self, net: Net, state: RunState, run: RunIdentity, engine_attempt: int = 1, drain_timeout: float = 300.0
    ) -> None:
        assert state.workings is not None, "a run is driven on a state that was folded with its workings"
        self.net = net
        self.state = state
        self.work = state.workings
        self.run = run
        self.engine_attempt = engine_attempt
        self.drain_timeout = drain_timeout
        self.marking = Marking(net, state)
        self.values = Values(net, state, self.work, run)
        self.missing: dict[str, dict[str, Any]] = {}  # references that must be fetched before all can be decided
        self.stop: Stop | None = None  # running steps must be stopped before the run can end
        self.now = 0
        self.loops: dict[int, None] = {}  # foreach steps under way
        self.due_iterations: deque[str] = deque()
        self.failed_iterations: list[Draft] = []
        self.silenced: set[str] = set()  # steps that this engine was about to say something forbidden of
        self.violations: list[Violation] = []  # not yet told to anybody
        self._now_text = ""
        self._drafts: list[Draft] = []
        self.blobs: dict[str | Spot, bytes] = {}  # values that must be put aside before the drafts are appended
        take_back(net, self.work)
        self._waits = Waits(self.work)
        self._touched: dict[int, None] = {}
        self.drafted = 0  # events so far
        self.router: Router | None = None
        if net.routes is not None:
            self.scope = PlayScope(net.routes, self.values, self.work, run)
            self.router = Router(self, net.routes)
        else:
            self._take_stock()

    def _take_stock(self) -> None:
        for step_id, cell in self.state.steps.items():
            index = self.net.index.get(step_id)
            if index is None:
                continue
            self._touched[index] = None
            if cell.status is StepStatus.RUNNING and step_id in self.work.loops:
                self.loops[index] = None

    # Drafting

    def at(self, now: int) -> None:
        self.now = self.values.now = now
        self._now_text = from_micros(now)

    def say(self, event_type: str, path: str | None = None, attempt: int = 1, payload: Payload = None) -> None:
        """Draft an event and fold it. The producer's own guard is here: an event that the state machines forbid is
        not taken, and nothing is said any more that would move its step, until the log has been folded anew."""
        if path in self.silenced and event_type in STEP_TRANSITIONS:
            return
        made = draft(event_type, self._now_text, self.engine_attempt, path, attempt, payload)
        if (invalid := transition(self.state, made)) is not None:
            if path is None:
                raise Violation(RUN, invalid)
            self.silenced.add(path)
            self.violations.append(Violation(path, invalid))
            return
        self._drafts.append(made)
        self.drafted += 1
        if path is None:
            return
        if self.router is not None:
            self.router.said(made)
            return
        if (index := self.net.index.get(path)) is not None:
            self._touched[index] = None
        if event_type == "StepRetryScheduled":
            self._waits.add_retry(path)
        elif event_type in ("StepDelayed", "ApprovalRequested") and path in self.work.due_at:
            self._waits.add_due(path)
        elif event_type == "LoopIterationFailed":
            self.failed_iterations.append(made)

    def seam(self) -> None:
        """Whoever finds the log ending here goes on alike. Much that was decided at once is appended in parts that end
        at such places, and nowhere else."""
        if self._drafts:
            self._drafts[-1].is_whole = True

    def take(self) -> tuple[list[Draft], dict[str | Spot, bytes]]:
        """Everything drafted since the last time, and the values that must be put aside first."""
        drafts, self._drafts = self._drafts, []
        blobs, self.blobs = self.blobs, {}
        return drafts, blobs

    # Deciding

    def decide(self, room: Room, *, stopped: bool = False) -> None:
        """Draft all that follows from the state as it is. `stopped`: no step of this run is at work any more."""
        self.missing.clear()
        if self.status in ENDED:
            return
        self.settle()
        self.stop = steer(self, stopped=stopped)
        if self.stop is not None or self.status in ENDED:
            return
        if self._waits.dues:
            self._complete_waits()
        retry_iterations(self)
        self.settle()
        if self.status is not RunStatus.RUNNING:
            if self.router is not None and self.work.play is not None and self.status is RunStatus.PAUSED:
                self.router.let_end()
            return
        if self.router is not None:
            self.router.go_on(room)
            return
        if self._waits.retries:
            self._start_retries(room)
        while True:
            self._start_ready(room)
            if self.loops or self.due_iterations:
                go_on_with_loops(self, room)
            if not self._touched:
                break
            self.settle()
        finish_if_done(self, room)

    @property
    def status(self) -> RunStatus:
        return self.state.summary.status

    @property
    def halted(self) -> bool:
        """Whether a failure keeps everything new from starting."""
        return bool(self.marking.failed) and self.net.plan.on_failure is OnFailure.FAIL

    def next_due(self) -> int | None:
        """When there will be something to do; None if nothing waits for a time."""
        due = self._waits.next_after(self.now)
        over = None if self.router is None else self.router.offers.next_deadline()
        return due if over is None else over if due is None else min(due, over)

    def settle(self) -> None:
        """Pass on how touched steps ended; schedule the retries that policy asks for."""
        while self._touched:
            touched, self._touched = self._touched, {}
            for index in touched:
                cell = self.marking.cell(index)
                if cell is None:
                    continue
                if cell.status is StepStatus.RUNNING:
                    self.marking.began(index)
                    continue
                self.loops.pop(index, None)
                if cell.status is StepStatus.FAILED:
                    self._after_failure(index, cell)
                else:
                    self.marking.ended(index)

    def _after_failure(self, index: int, cell: StepCell) -> None:
        step = self.net.nodes[index].step
        if step.step_id in self.work.retry_at or step.step_id in self.work.scheduled:
            self.marking.not_failed(index)
        elif step.foreach is None and may_retry(cell.error, cell.attempt, step.retry):
            self.schedule_retry(step.step_id, cell.attempt, step.retry, cell.error)
        else:
            self.marking.failed_for_good(index)

    def schedule_retry(self, path: str, attempt: int, policy: Retry, error: ErrorInfo | None = None) -> None:
        due = self.now + int(delay(policy, self.run.run_id, path, attempt, error) * 1e6)
        self.say("StepRetryScheduled", path, attempt, payloads.StepRetryScheduled(from_micros(due), attempt + 1))

    def next_retry(self) -> str | None:
        """What is to be tried again now; it is asked for once."""
        alarm = self._waits.next_retry(self.now)
        return None if alarm is None else alarm[1]

    def end_run(self, event_type: str, payload: payloads.RunEnded) -> None:
        """The run's last word; a playbook's books are closed with it."""
        if self.router is not None:
            self.say("WorkflowFinished", payload=payloads.WorkflowFinished(RUN_TRANSITIONS[event_type][1]))
        self.say(event_type, payload=payload)
        if self.router is not None:
            self.say("RunProcessed")

    def station(self, name: str) -> Station:
        assert self.net.routes is not None
        return self.net.routes.stations[name]

    def inputs(self, node: Node, path: str, more: dict[str, Any]) -> Any:
        """What a step or task is given, with expressions filled in."""
        if self.router is None:
            return self.values.inputs(node, **more)
        return self.router.inputs(node, path)

    def written(self, node: Node) -> dict[str, Any]:
        """The same as they were written."""
        return self.values.written(node)

    def handed_on(self, path: str) -> frozenset[str]:
        """The names under which a task finds references to secrets that others made sure of."""
        place = None if self.router is None else parse_path(path)
        return frozenset() if place is None else self.station(place.step).handed_on

    def time_for(self, node: Node, path: str) -> tuple[float, ErrorInfo] | None:
        """Seconds that it may take, and what it failed with if it takes longer."""
        if self.router is not None:
            return self.router.time_for(node, path)
        return None if node.step.timeout is None else (node.step.timeout, too_late(node.step.timeout))

    def iteration(self, path: str) -> dict[str, Any] | None:
        """The iteration of a playbook's loop that a task is part of."""
        return None if self.router is None else self.router.iteration(path)

    def look_at_retry(self, path: str) -> None:
        """A retry that policy had put off was brought forward."""
        self._waits.add_retry(path)

    def _complete_waits(self) -> None:
        while (alarm := self._waits.next_due(self.now)) is not None:
            path = alarm[1]
            if path not in self.net.index:
                end_wait(self, path)
                continue
            cell = self.state.steps.get(path)
            if cell is None or cell.status is not StepStatus.RUNNING:
                continue
            took = self.since(cell.started_at)
            if path in self.work.awaits:
                close_approval(self, path, "Nobody answered in time.")
                self.say("StepFailed", path, cell.attempt, payloads.StepFailed(NOBODY_CAME, took))
            elif path in self.work.late:
                self.say("StepFailed", path, cell.attempt, payloads.StepFailed(TOO_LATE, took))
            else:
                self.say("StepCompleted", path, cell.attempt, payloads.StepCompleted(duration_ms=took))

    def _start_retries(self, room: Room) -> None:
        held_back: list[str] = []
        while room.any() and (alarm := self._waits.next_retry(self.now)) is not None:
            path = alarm[1]
            index = self.net.index.get(path)
            if index is None:
                self.due_iterations.append(path)
                continue
            if not self._start_again(self.net.nodes[index], room):
                held_back.append(path)
        for path in held_back:
            self._waits.add_retry(path)

    def _start_again(self, node: Node, room: Room) -> bool:
        step_id = node.step.step_id
        signal = self.work.retry_signal.get(step_id)
        if self.halted and signal is None:
            return False
        attempt = self.state.steps[step_id].attempt + 1
        if node.step.needs_approval and not may_start(self, node, attempt):
            return False
        if node.step.foreach is None and node.queue is None and not room.take(node.step.step_class):
            return False
        try:
            self._start(node, attempt, signal)
        except Missing as missing:
            self.missing |= missing.refs
            return False
        return True

    def _start_ready(self, room: Room) -> None:
        left: list[int] = []
        while not self.halted and (index := self.marking.next_ready(room)) is not None:
            try:
                self._start_or_skip(self.net.nodes[index], room)
            except Missing as missing:
                self.missing |= missing.refs
                left.append(index)
            self.settle()
            self.seam()
        for index in left:
            self.marking.make_ready(index)

    def _start_or_skip(self, node: Node, room: Room) -> None:
        step_id = node.step.step_id
        if step_id in self.work.scheduled:
            return
        if self.marking.not_run[node.index]:
            self.say(
                "StepSkipped", step_id, 1, payloads.StepSkipped("DEPENDENCY_SKIPPED", "A step it needs was skipped.")
            )
            return
        try:
            if node.step.when is not None and not is_true(node.step.when, self.values.scope(node)):
                self.say("StepSkipped", step_id, 1, payloads.StepSkipped("CONDITION_FALSE", "Its condition is false."))
                return
        except RunwrightError as error:
            self.say("StepStarted", step_id)
            self.fail(step_id, 1, error.code, error.detail)
            return
        if node.step.needs_approval and not may_start(self, node, 1):
            return
        if node.step.foreach is None and node.queue is None:
            room.take(node.step.step_class)
        self._start(node, 1, None)

    def _start(self, node: Node, attempt: int, signal: str | None) -> None:
        started = None if signal is None else payloads.StepStarted(signal)
        if node.step.foreach is not None:
            start_loop(self, node, attempt, started)
        elif node.queue is not None:
            self.say("StepScheduled", node.step.step_id, attempt, payloads.StepScheduled(node.queue))
        else:
            self.say("StepStarted", node.step.step_id, attempt, started)

    def fail(self, step_id: str, attempt: int, code: str, message: str) -> None:
        """A step fails for a reason that lies in the plan."""
        error = ErrorInfo(code, message, retryable=False, category="plan")
        self.say("StepFailed", step_id, attempt, payloads.StepFailed(error, 0.0))

    def since(self, start: str | None) -> float | None:
        return None if start is None else max(0, self.now - to_micros(start)) / 1000
