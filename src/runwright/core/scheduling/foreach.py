"""`foreach` steps of plans: one step, many iterations. The items are fixed when the step starts."""

from __future__ import annotations

from collections import deque

import msgspec

from runwright.contract import payloads
from runwright.contract.errors import ErrorCode, RunwrightError
from runwright.contract.paths import EntityPath, parse_path
from runwright.contract.transitions import StepStatus
from runwright.core.fold.loop_state import RUNNING, LoopState
from runwright.core.fold.payload_reader import read_payload
from runwright.core.graph.node import Node

from .context import Capacity, Draft, SchedulingContext
from .due_times import WAIT_TIMED_OUT
from .loops import collect_results, is_full, loop_error, loop_items, next_iteration, store_items
from .retry import may_retry
from .scope import PlanScope
from .steps import schedule_retry
from .stored_values import MissingValues, inline_or_ref


class ForeachLoops:
    """The foreach steps of one run that are running."""

    def __init__(self, context: SchedulingContext, scope: PlanScope) -> None:
        self._context = context
        self._scope = scope
        self._running: dict[int, None] = {}
        self._due: deque[str] = deque()  # iterations whose retry is due
        self._failed: list[Draft] = []  # failed iterations whose retry policy was not applied yet
        for step_id, step_state in context.state.steps.items():
            index = context.graph.index.get(step_id)
            if index is not None and step_state.status is StepStatus.RUNNING and step_id in context.execution.loops:
                self._running[index] = None

    def start(self, node: Node, attempt: int, started: payloads.StepStarted | None) -> None:
        context, step_id = self._context, node.step.step_id
        try:
            items = self._scope.items(node)
            if not isinstance(items, list):
                message = f"foreach needs a list; this is {type(items).__name__}."
                raise RunwrightError(ErrorCode.EXPRESSION_ERROR, message)
        except RunwrightError as error:
            context.emit("StepStarted", step_id, attempt, started)
            context.fail_step(step_id, attempt, error.code, error.detail)
            return
        context.emit("StepStarted", step_id, attempt, started)
        stored = store_items(context, items, msgspec.json.encode(items))  # pyright: ignore[reportUnknownArgumentType]
        earlier = context.execution.loops.get(step_id)
        carried = earlier.done if earlier is not None and earlier.items == stored.stored else 0
        payload = {**stored.payload(), **({"carriedOver": carried} if carried else {})}
        context.emit("LoopStarted", str(EntityPath(step_id, attempt=attempt)), 1, payload)
        self._running[node.index] = None

    def on_failed(self, event: Draft) -> None:
        """An iteration failed; its retry is scheduled with the next decision."""
        self._failed.append(event)

    def on_retry_due(self, path: str) -> None:
        self._due.append(path)

    def on_ended(self, index: int) -> None:
        self._running.pop(index, None)

    def forget_failures(self) -> None:
        """The run ends: nothing is retried."""
        self._failed.clear()

    @property
    def has_work(self) -> bool:
        return bool(self._running or self._due)

    def advance(self, capacity: Capacity) -> None:
        """Start iterations, and end the loops whose iterations have all ended."""
        self.schedule_retries()
        for _ in range(len(self._due)):
            self._retry(self._due.popleft(), capacity)
        for index in list(self._running):
            node = self._context.graph.nodes[index]
            loop = self._context.execution.loops[node.step.step_id]
            try:
                self._start_iterations(node, loop, capacity)
            except MissingValues as missing:
                self._context.missing_values |= missing.refs
                continue
            except RunwrightError as error:  # the items of the loop are not available any more
                if not loop.running_since:
                    self._emit_done(node, loop, step_failed=True)
                    self._context.fail_step(node.step.step_id, loop.attempt, error.code, error.detail)
                continue
            self._end_if_done(node, loop)

    def schedule_retries(self) -> None:
        """Schedule the retries of failed iterations; also while the run is paused, or they would be lost."""
        failed, self._failed = self._failed, []
        for event in failed:
            path = parse_path(event.step_id or "")
            node = None if path is None else self._context.graph.node(path.step)
            if node is None:
                continue
            error = read_payload(payloads.LoopIteration, event).error
            if may_retry(error, event.logical_attempt_id, node.step.retry):
                schedule_retry(self._context, event.step_id or "", event.logical_attempt_id, node.step.retry)

    def end_wait(self, path_text: str) -> None:
        """End an iteration that only waited."""
        execution, path = self._context.execution, parse_path(path_text)
        timed_out = path_text in execution.fails_when_due
        execution.due_at.pop(path_text, None)
        loop = None if path is None else execution.loops.get(path.step)
        if path is None or loop is None or loop.attempt != path.attempt or loop.statuses[path.indexes[0]] != RUNNING:
            return
        index = path.indexes[0]
        attempt, duration_ms = loop.attempts.get(index, 1), self._context.ms_since_micros(loop.running_since[index])
        if timed_out:
            failed = payloads.LoopIteration(index, duration_ms=duration_ms, error=WAIT_TIMED_OUT)
            self._context.emit("LoopIterationFailed", path_text, attempt, failed)
        else:
            done = payloads.LoopIteration(index, duration_ms=duration_ms)
            self._context.emit("LoopIterationDone", path_text, attempt, done)

    def _retry(self, path_text: str, capacity: Capacity) -> None:
        path = parse_path(path_text)
        loop = None if path is None else self._context.execution.loops.get(path.step)
        node = None if path is None else self._context.graph.node(path.step)
        if path is None or loop is None or node is None or loop.attempt != path.attempt or loop.failed:
            return
        assert node.step.foreach is not None
        has_slot = not is_full(loop, node.step.foreach.max_parallel)
        if not has_slot or (node.queue is None and not capacity.acquire(node.step.step_class)):
            self._due.append(path_text)
            return
        index = path.indexes[0]
        self._start_iteration(node, path_text, loop.attempts.get(index, 1) + 1, index)

    def _start_iterations(self, node: Node, loop: LoopState, capacity: Capacity) -> None:
        assert node.step.foreach is not None
        step_id, limit, retry_at = node.step.step_id, node.step.foreach.max_parallel, self._context.execution.retry_at

        def path_of(index: int) -> str:
            return str(EntityPath(step_id, attempt=loop.attempt, indexes=(index,)))

        while not loop.failed and (index := next_iteration(loop, lambda at: path_of(at) in retry_at)) is not None:
            if is_full(loop, limit):
                return
            loop_items(self._context.values, loop)  # before capacity is acquired: they may have to be fetched
            if node.queue is None and not capacity.acquire(node.step.step_class):
                return
            self._start_iteration(node, path_of(index), 1, index)
            loop.next_index += 1
            self._context.mark_append_boundary()

    def _start_iteration(self, node: Node, path: str, attempt: int, index: int) -> None:
        if node.queue is None:
            self._context.emit("LoopIterationStarted", path, attempt, payloads.LoopIteration(index))
        else:
            scheduled = payloads.LoopIteration(index, queue=node.queue)
            self._context.emit("LoopIterationScheduled", path, attempt, scheduled)

    def _end_if_done(self, node: Node, loop: LoopState) -> None:
        context, step_id = self._context, node.step.step_id
        if loop.running_since or (loop.done < loop.total and not loop.failed):
            return
        self._emit_done(node, loop, step_failed=loop.failed > 0)
        step_state = context.state.steps[step_id]
        duration_ms = context.ms_since(step_state.started_at)
        if loop.failed:
            context.emit("StepFailed", step_id, step_state.attempt, payloads.StepFailed(loop_error(loop), duration_ms))
            return
        field, value = inline_or_ref("result", collect_results(loop), context.pending_values)
        context.emit(
            "StepCompleted", step_id, step_state.attempt, {field: msgspec.Raw(value), "durationMs": duration_ms}
        )

    def _emit_done(self, node: Node, loop: LoopState, *, step_failed: bool) -> None:
        counts = payloads.LoopCounts(loop.total, loop.done, loop.failed, step_failed=step_failed)
        self._context.emit("LoopDone", str(EntityPath(node.step.step_id, attempt=loop.attempt)), 1, counts)
