"""Tasks of a playbook that workers execute: queued until a worker claims them, and started by the claim alone.

The queue follows from the log: a process that recovers the run queues the same tasks. A visit or an iteration whose
first task is for workers starts with that task; until then it is scheduled.
"""

from __future__ import annotations

from runwright.contract import payloads
from runwright.contract.paths import EntityPath, parse_path
from runwright.core.fold.playbook_state import PipelineState, pipeline_key
from runwright.core.graph.playbook_graph import PlaybookStep

from .context import PlaybookContext
from .failures import FatalFailures
from .loops import is_stopped
from .pipeline import next_label, start_task


class TaskOffers:
    def __init__(self, playbook: PlaybookContext, failures: FatalFailures) -> None:
        self._playbook = playbook
        self._failures = failures
        self.queued: dict[str, int] = {}
        """The paths and attempts that workers may claim."""
        self._deadlines: dict[str, int] = {}  # when the timeout of a visit with queued tasks passes

    def add(self, path: str, attempt: int, owner: str, deadline: int | None) -> None:
        self.queued[path] = attempt
        if deadline is not None:
            self._deadlines[owner] = deadline

    def next_deadline(self) -> int | None:
        return min(self._deadlines.values(), default=None)

    def expire(self) -> list[tuple[str, int]]:
        """Remove and return the tasks that no worker claimed before the timeout of their step."""
        now = self._playbook.run.now
        expired = {owner for owner, deadline in self._deadlines.items() if deadline <= now}
        if not expired:
            return []
        for owner in expired:
            del self._deadlines[owner]
        return [(path, self.queued.pop(path)) for path in list(self.queued) if _owner(path) in expired]

    def withdraw_unstarted_visits(self) -> None:
        """The run has failed: visits that have not started do not start any more."""
        visits = self._playbook.state.visits
        for path in list(self.queued):
            visit = visits.get(_owner(path) or "")
            if visit is not None and not visit.is_started:
                del self.queued[path]

    def withdraw_unstarted(self, visit: str) -> None:
        """No more iterations of this loop start."""
        for path_text in [path for path in self.queued if _owner(path) == visit]:
            path = parse_path(path_text)
            if path is not None and self._playbook.pipeline_of(path) is None:
                del self.queued[path_text]

    def claim(self, path_text: str, attempt: int, worker: str) -> bool:
        """Start a queued task for a worker. False if it is not queued."""
        playbook, path = self._playbook, parse_path(path_text)
        step = None if path is None else playbook.graph.steps.get(path.step)
        if path is None or step is None or path.task is None or not self._is_queued(step, path, attempt):
            return False
        self.queued.pop(path_text, None)
        key, pipelines = pipeline_key(path), playbook.state.pipelines
        if key not in pipelines and path.indexes:
            started = payloads.LoopIteration(path.indexes[0], worker=worker)
            playbook.run.emit("LoopIterationStarted", key, 1, started)
        elif key not in pipelines:
            playbook.run.emit("StepStarted", key, 1, payloads.StepStarted(worker=worker))
        if attempt == 1:
            start_task(playbook, step, path, pipelines[key], path.task, worker)
        else:
            playbook.run.emit("TaskAttemptStarted", path_text, attempt, payloads.TaskStarted(worker))
        playbook.run.mark_append_boundary()
        return True

    def _is_queued(self, step: PlaybookStep, path: EntityPath, attempt: int) -> bool:
        """Decided by the state alone: the claim may be applied to a state that was just refolded."""
        node = step.nodes.get(path.task or "")
        if node is None or node.queue is None:
            return False
        pipeline = self._playbook.pipeline_of(path)
        if pipeline is None:
            return attempt == 1 and path.task_visit == 1 and self._can_start(step, path)
        if pipeline.is_running or pipeline.pending_outcome is not None or pipeline.error is not None:
            return False
        return _is_next(step, pipeline, path) if attempt == 1 else self._is_retry(pipeline, path, attempt)

    def _can_start(self, step: PlaybookStep, path: EntityPath) -> bool:
        visit = self._playbook.state.visits.get(path.owner)
        if visit is None or visit.end_event is not None or path.task != step.labels[0]:
            return False
        if not path.indexes:
            return step.route.loop is None and not visit.is_started and not self._failures.all()
        loop = self._playbook.run.execution.loops.get(path.owner)
        return loop is not None and path.indexes[0] in loop.unclaimed_attempts and not is_stopped(step, loop)

    def _is_retry(self, pipeline: PipelineState, path: EntityPath, attempt: int) -> bool:
        current = (pipeline.task, pipeline.task_visits.get(path.task or ""), pipeline.attempt + 1)
        if current != (path.task, path.task_visit, attempt):
            return False
        # It was due when it was queued. The time is not compared again: clocks may be set back.
        return pipeline.action is None and str(path) in self._playbook.run.execution.retry_at


def _is_next(step: PlaybookStep, pipeline: PipelineState, path: EntityPath) -> bool:
    if pipeline.task is not None and pipeline.action is None:
        return False
    label = next_label(step, pipeline)
    return label == path.task and pipeline.task_visits.get(label or "", 0) + 1 == path.task_visit


def _owner(path_text: str) -> str | None:
    path = parse_path(path_text)
    return None if path is None else path.owner
