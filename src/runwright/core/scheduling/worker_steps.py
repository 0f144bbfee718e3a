"""Steps of a plan that workers execute: scheduled by the engine, started when a worker claims them."""

from __future__ import annotations

from runwright.contract import payloads
from runwright.contract.paths import EntityPath, parse_path
from runwright.core.fold.execution_state import ExecutionState
from runwright.core.graph.plan_graph import PlanGraph

from .context import SchedulingContext
from .readiness import Readiness


class WorkerSteps:
    def __init__(self, context: SchedulingContext, readiness: Readiness) -> None:
        self._context = context
        self._readiness = readiness

    def queued(self) -> dict[str, int]:
        """Attempts that workers may claim: path to attempt."""
        found = self.queued_steps()
        for step_id, loop in self._context.execution.loops.items():
            if not loop.failed:
                for index, attempt in loop.unclaimed_attempts.items():
                    found[str(EntityPath(step_id, attempt=loop.attempt, indexes=(index,)))] = attempt
        return found

    def queued_steps(self) -> dict[str, int]:
        """Without iterations. After a failure that halts the run only retries by an operator start; running loops
        continue."""
        execution, is_halted = self._context.execution, self._readiness.is_halted
        return {
            path: attempt
            for path, attempt in execution.unclaimed_attempts.items()
            if not is_halted or path in execution.retry_signal_ids
        }

    def claim(self, path_text: str, attempt: int, worker: str) -> bool:
        """Start a queued attempt for a worker. False if it is not queued."""
        if not self._is_queued(path_text, attempt):
            return False
        path = parse_path(path_text)
        if path is not None and path.indexes:
            started = payloads.LoopIteration(path.indexes[0], worker=worker)
            self._context.emit("LoopIterationStarted", path_text, attempt, started)
        else:
            signal_id = self._context.execution.retry_signal_ids.get(path_text)
            self._context.emit("StepStarted", path_text, attempt, payloads.StepStarted(signal_id, worker))
        return True

    def _is_queued(self, path_text: str, attempt: int) -> bool:
        execution = self._context.execution
        if path_text in execution.unclaimed_attempts:
            return self.queued_steps().get(path_text) == attempt
        path = parse_path(path_text)
        loop = None if path is None else execution.loops.get(path.step)
        if path is None or loop is None or not path.indexes or loop.attempt != path.attempt or loop.failed:
            return False
        return loop.unclaimed_attempts.get(path.indexes[0]) == attempt


def reclaim_unqueued_steps(graph: PlanGraph, execution: ExecutionState) -> None:
    """Take back steps that were scheduled for workers by another engine, if this engine executes them itself."""
    for step_id, attempt in list(execution.unclaimed_attempts.items()):
        node = graph.node(step_id)
        if node is not None and node.queue is None:
            del execution.unclaimed_attempts[step_id]
            if attempt > 1:
                execution.retry_at[step_id] = 0
    for step_id, loop in execution.loops.items():
        node = graph.node(step_id)
        if node is None or node.queue is not None:
            continue
        for index, attempt in loop.unclaimed_attempts.items():
            loop.statuses[index] = 0
            loop.next_index = min(loop.next_index, index)
            if attempt > 1:
                execution.retry_at[str(EntityPath(step_id, attempt=loop.attempt, indexes=(index,)))] = 0
        loop.unclaimed_attempts.clear()
