"""The scheduler of plans: steps start when their dependencies have ended."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any

import msgspec

from runwright.contract import payloads
from runwright.contract.errors import RunwrightError
from runwright.contract.paths import EntityPath, parse_path
from runwright.contract.plan import OnFailure
from runwright.contract.refs import ErrorInfo
from runwright.contract.transitions import StepStatus
from runwright.core.expressions.template import is_true
from runwright.core.fold.payload_reader import StoredResult
from runwright.core.fold.run_state import StepState
from runwright.core.graph.node import Node

from .approvals import INPUT_TIMED_OUT, close_approval, fail_waiting_steps, has_approval
from .context import Capacity, Draft, SchedulingContext
from .due_times import WAIT_TIMED_OUT, DueTimes, timeout_error
from .foreach import ForeachLoops
from .readiness import Readiness
from .retry import may_retry
from .run_end_payloads import completed_payload, failed_payload
from .scheduler import AttemptEnd, ResultPrefix, RunningAttempt, Timeout
from .scope import PlanScope
from .steps import fail_running_steps, schedule_retry
from .stored_values import MissingValues, inline_or_ref
from .worker_steps import WorkerSteps, reclaim_unqueued_steps

_EXECUTION_STARTS = frozenset({"StepStarted", "LoopIterationStarted"})


_RESULT_OF_A_STEP = re.compile(r"\{\{\s*steps\.(\w+)\.result\s*\}\}", re.ASCII)


class DagScheduler:
    """One run of a plan. The cost of a decision is proportional to what changed, not to the size of the plan."""

    def __init__(self, context: SchedulingContext) -> None:
        self._context = context
        self._graph = context.graph
        self._scope = PlanScope(
            context.graph, context.state, context.execution, context.run, context.values, context.cost
        )
        self.readiness = Readiness(context.graph, context.state)
        reclaim_unqueued_steps(context.graph, context.execution)
        self.due_times = DueTimes(context.execution)
        self._loops = ForeachLoops(context, self._scope)
        self._has_loops = any(node.step.foreach is not None for node in context.graph.nodes)
        self._worker_steps = WorkerSteps(context, self.readiness)
        index = context.graph.index
        self._touched = dict.fromkeys(index[step_id] for step_id in context.state.steps if step_id in index)

    # Scheduling

    def on_queued(self) -> None: ...

    def on_emitted(self, event: Draft) -> None:
        path = event.step_id or ""
        index = self._graph.index.get(path)
        if index is not None:
            self._touched[index] = None
        match event.event_type:
            case "StepRetryScheduled":
                self.due_times.add_retry(path)
            case "StepDelayed" | "ApprovalRequested":
                if path in self._context.execution.due_at:
                    self.due_times.add_wait(path)
            case "ApprovalGranted":
                if index is not None and path not in self._context.state.steps:
                    self.readiness.make_ready(index)
            case "LoopIterationFailed":
                self._loops.on_failed(event)
            case _:
                pass

    def advance(self, capacity: Capacity) -> None:
        self.advance_paused()
        if self.due_times.retries:
            self._start_retries(capacity)
        while True:
            self._start_ready(capacity)
            if self._has_loops and self._loops.has_work:
                self._loops.advance(capacity)
            if not self._touched or self._context.cost.is_spent:
                break
            self.propagate_ends()
        if not self._context.cost.is_spent:
            self._finish_if_done(capacity)

    def advance_paused(self) -> None:
        """End waits that are due, and schedule retries."""
        if self.due_times.waits:
            self._end_due_waits()
        if self._has_loops:
            self._loops.schedule_retries()
        self.propagate_ends()

    def next_due(self) -> int | None:
        due = self.due_times
        return due.next_after(self._context.now) if due.waits or due.retries else None

    def requeue_retry(self, path: str) -> None:
        self.due_times.add_retry(path)

    def propagate_ends(self) -> None:
        """Update the readiness of dependents of touched steps, and schedule retries."""
        while self._touched:
            touched, self._touched = self._touched, {}
            for index in touched:
                step_state = self.readiness.step_state(index)
                if step_state is None:
                    continue
                if step_state.status is StepStatus.RUNNING:
                    self.readiness.on_started(index)
                    continue
                if self._has_loops:
                    self._loops.on_ended(index)
                if step_state.status is StepStatus.FAILED:
                    self._on_step_failed(index, step_state)
                else:
                    self.readiness.on_ended(index)

    def _on_step_failed(self, index: int, step_state: StepState) -> None:
        step, execution = self._graph.nodes[index].step, self._context.execution
        if step.step_id in execution.retry_at or step.step_id in execution.unclaimed_attempts:
            self.readiness.clear_failure(index)
        elif step.foreach is None and may_retry(step_state.error, step_state.attempt, step.retry):
            schedule_retry(self._context, step.step_id, step_state.attempt, step.retry, step_state.error)
        else:
            self.readiness.on_failed(index)

    def _end_due_waits(self) -> None:
        context = self._context
        while (path := self.due_times.pop_wait(context.now)) is not None:
            if path not in self._graph.index:
                self._loops.end_wait(path)
                continue
            step_state = context.state.steps.get(path)
            if step_state is None or step_state.status is not StepStatus.RUNNING:
                continue
            duration_ms = context.ms_since(step_state.started_at)
            if path in context.execution.pending_inputs:
                close_approval(context, path, "The approval was not answered in time.")
                context.emit("StepFailed", path, step_state.attempt, payloads.StepFailed(INPUT_TIMED_OUT, duration_ms))
            elif path in context.execution.fails_when_due:
                context.emit("StepFailed", path, step_state.attempt, payloads.StepFailed(WAIT_TIMED_OUT, duration_ms))
            else:
                context.emit("StepCompleted", path, step_state.attempt, payloads.StepCompleted(duration_ms=duration_ms))

    def _start_retries(self, capacity: Capacity) -> None:
        delayed: list[str] = []
        while not self._context.cost.is_spent and capacity.is_available():
            if (path := self.due_times.pop_retry(self._context.now)) is None:
                break
            index = self._graph.index.get(path)
            if index is None:
                self._loops.on_retry_due(path)
            elif not self._start_retry(self._graph.nodes[index], capacity):
                delayed.append(path)
        for path in delayed:
            self.due_times.add_retry(path)

    def _start_retry(self, node: Node, capacity: Capacity) -> bool:
        step_id = node.step.step_id
        signal_id = self._context.execution.retry_signal_ids.get(step_id)
        if self.readiness.is_halted and signal_id is None:
            return False
        attempt = self._context.state.steps[step_id].attempt + 1
        if node.step.needs_approval and not has_approval(self._context, node, attempt):
            return False
        if node.step.foreach is None and node.queue is None and not capacity.acquire(node.step.step_class):
            return False
        try:
            self._start(node, attempt, signal_id)
        except MissingValues as missing:
            self._context.missing_values |= missing.refs
            return False
        return True

    def _start_ready(self, capacity: Capacity) -> None:
        incomplete: list[int] = []
        while not self.readiness.is_halted and not self._context.cost.is_spent:
            if (index := self.readiness.pop_ready(capacity)) is None:
                break
            try:
                self._start_or_skip(self._graph.nodes[index], capacity)
            except MissingValues as missing:
                self._context.missing_values |= missing.refs
                incomplete.append(index)
            self.propagate_ends()
            self._context.mark_append_boundary()
        for index in incomplete:
            self.readiness.make_ready(index)

    def _start_or_skip(self, node: Node, capacity: Capacity) -> None:
        context, step_id = self._context, node.step.step_id
        if step_id in context.execution.unclaimed_attempts:
            return
        if self.readiness.not_run[node.index]:
            skipped = payloads.StepSkipped("DEPENDENCY_SKIPPED", "A dependency was skipped.")
            context.emit("StepSkipped", step_id, 1, skipped)
            return
        try:
            if node.step.when is not None and not is_true(node.step.when, self._scope.of_node(node)):
                skipped = payloads.StepSkipped("CONDITION_FALSE", "The condition is false.")
                context.emit("StepSkipped", step_id, 1, skipped)
                return
        except RunwrightError as error:
            context.emit("StepStarted", step_id)
            context.fail_step(step_id, 1, error.code, error.detail)
            return
        if node.step.needs_approval and not has_approval(context, node, 1):
            return
        if node.step.foreach is None and node.queue is None:
            capacity.acquire(node.step.step_class)
        self._start(node, 1, None)

    def _start(self, node: Node, attempt: int, signal_id: str | None) -> None:
        started = None if signal_id is None else payloads.StepStarted(signal_id)
        if node.step.foreach is not None:
            self._loops.start(node, attempt, started)
        elif node.queue is not None:
            self._context.emit("StepScheduled", node.step.step_id, attempt, payloads.StepScheduled(node.queue))
        else:
            self._context.emit("StepStarted", node.step.step_id, attempt, started)

    # The end of the run

    def _finish_if_done(self, capacity: Capacity) -> None:
        context, readiness, execution = self._context, self.readiness, self._context.execution
        if readiness.is_halted and execution.pending_inputs:
            fail_waiting_steps(context)
            self.propagate_ends()
        if context.state.summary.running_steps or context.missing_values or capacity.refused:
            return
        duration_ms = context.ms_since(context.state.summary.started_at)
        if not readiness.open and not readiness.failed and not execution.retry_at:
            artifacts = [artifact for step_state in context.state.steps.values() for artifact in step_state.artifacts]
            self.end_run("RunCompleted", completed_payload(artifacts, duration_ms))
            return
        if not readiness.failed or self._graph.plan.on_failure is OnFailure.WAIT:
            return
        has_more = not readiness.is_halted and (execution.retry_at or readiness.has_ready())
        if self._worker_steps.queued_steps() or has_more:
            return
        first = self._first_failed()
        if self.skip_pending("RUN_FAILED", "The run failed before this step could start."):
            self.end_run("RunFailed", failed_payload(first, context.state.steps[first].error, duration_ms))

    def _first_failed(self) -> str:
        """The root cause. Derived from the log, so that a recovered run reports the same one."""
        names = [self._graph.nodes[index].step.step_id for index in sorted(self.readiness.failed)]
        return min(names, key=lambda name: self._context.state.steps[name].completed_at or "")

    def skip_pending(self, code: str, reason: str) -> bool:
        """Skip every step that did not start. If the run failed, dependents of a failed step get DEPENDENCY_FAILED.
        False if some remain for the next decision."""
        context = self._context
        dependents = self.readiness.depends_on_failure() if code == "RUN_FAILED" else ()
        for node in self._graph.nodes:
            if not self.readiness.is_pending(node.index):
                continue
            if context.cost.is_spent:
                return False
            close_approval(context, node.step.step_id, reason)
            if node.index in dependents:
                skipped = payloads.StepSkipped("DEPENDENCY_FAILED", "A dependency failed.")
            else:
                skipped = payloads.StepSkipped(code, reason)
            context.emit("StepSkipped", node.step.step_id, 1, skipped)
            context.mark_append_boundary()
        return True

    def end_running(self, error: ErrorInfo) -> None:
        fail_running_steps(self._context, error)
        self._loops.forget_failures()

    def end_run(self, event_type: str, payload: payloads.RunEnded) -> None:
        self._context.emit(event_type, payload=payload)

    def stored_result(self) -> StoredResult | None:
        whole = _RESULT_OF_A_STEP.fullmatch(str(self._graph.plan.result))
        node = None if whole is None else self._graph.node(whole[1])
        if node is None or node.step.foreach is not None:  # the result of a loop is put together from its iterations
            return None
        return self._context.execution.results.get(node.step.step_id)

    def result(self) -> Any:
        return self._scope.result()

    # Attempts

    def is_running(self, path: str, attempt: int) -> bool:
        step_state = self._context.state.steps.get(path)
        if step_state is not None:
            return (step_state.attempt, step_state.status) == (attempt, StepStatus.RUNNING)
        parsed = parse_path(path)
        loop = None if parsed is None else self._context.execution.loops.get(parsed.step)
        if parsed is None or loop is None or not parsed.indexes or loop.attempt != parsed.attempt:
            return False
        return parsed.indexes[0] in loop.running_since and loop.attempts.get(parsed.indexes[0], 1) == attempt

    def running_attempts(self) -> list[RunningAttempt]:
        execution = self._context.execution
        found: list[RunningAttempt] = []
        for step_id, step_state in self._context.state.steps.items():
            node = self._graph.node(step_id)
            if step_state.status is not StepStatus.RUNNING or node is None:
                continue
            loop = execution.loops.get(step_id)
            if node.step.foreach is None:
                found.append(RunningAttempt(step_id, step_state.attempt))
            elif loop is not None:
                for index in loop.running_since:
                    path = str(EntityPath(step_id, attempt=loop.attempt, indexes=(index,)))
                    found.append(RunningAttempt(path, loop.attempts.get(index, 1)))
        waiting = execution.due_at.keys() | execution.pending_inputs.keys()
        return [each for each in found if each.path not in waiting]

    def starts_execution(self, event: Draft) -> bool:
        return event.event_type in _EXECUTION_STARTS

    def on_attempt_ended(self, end: AttemptEnd) -> None:
        if not self.is_running(end.path, end.attempt):
            return  # it was ended by a cancel or a deadline
        path = None if end.path in self._graph.index else parse_path(end.path)
        if path is not None:
            self._end_iteration(end, path.indexes[0])
        elif end.error is not None:
            failed = payloads.StepFailed(end.error, end.duration_ms, list(end.artifacts) or None)
            self._context.emit("StepFailed", end.path, end.attempt, failed)
        else:
            self._context.emit("StepCompleted", end.path, end.attempt, self._success(end))

    def _end_iteration(self, end: AttemptEnd, index: int) -> None:
        if end.error is not None:
            failed = payloads.LoopIteration(index, duration_ms=end.duration_ms, error=end.error)
            self._context.emit("LoopIterationFailed", end.path, end.attempt, failed)
        else:
            self._context.emit("LoopIterationDone", end.path, end.attempt, {"index": index, **self._success(end)})

    def _success(self, end: AttemptEnd) -> dict[str, Any]:
        body = b"null" if end.result is None else end.result
        field, value = inline_or_ref("result", body, self._context.pending_values)
        payload: dict[str, Any] = {field: msgspec.Raw(value), "durationMs": end.duration_ms}
        if end.artifacts:
            payload["artifactRefs"] = list(end.artifacts)
        return payload

    def inputs_of(self, node: Node, path: str, more: dict[str, Any]) -> Any:
        del path
        return self._scope.inputs(node, **more)

    def timeout_of(self, node: Node, path: str) -> Timeout | None:
        del path
        return None if node.step.timeout is None else Timeout(node.step.timeout, timeout_error(node.step.timeout))

    def inherited_secret_names(self, path: str) -> frozenset[str]:
        del path
        return frozenset()

    def iteration_of(self, path: str) -> dict[str, Any] | None:
        del path
        return None

    def results_out_of_scope(self, events: list[Draft]) -> Collection[ResultPrefix]:
        del events
        return ()

    # Workers

    def queued_for_workers(self) -> dict[str, int]:
        return self._worker_steps.queued()

    def claim(self, path: str, attempt: int, worker: str) -> bool:
        return self._worker_steps.claim(path, attempt, worker)
