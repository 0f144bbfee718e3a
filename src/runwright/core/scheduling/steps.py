"""Step events that several parts of the schedulers emit."""

from __future__ import annotations

from runwright.contract import payloads
from runwright.contract.paths import EntityPath
from runwright.contract.plan import Retry
from runwright.contract.refs import ErrorInfo
from runwright.contract.timestamps import from_micros
from runwright.contract.transitions import StepStatus
from runwright.core.fold.loop_state import LoopState

from .context import SchedulingContext
from .retry import step_retry_delay


def schedule_retry(
    context: SchedulingContext, path: str, attempt: int, policy: Retry, error: ErrorInfo | None = None
) -> None:
    delay = step_retry_delay(policy, context.run.run_id, path, attempt, error)
    due = from_micros(context.now + int(delay * 1e6))
    context.emit("StepRetryScheduled", path, attempt, payloads.StepRetryScheduled(due, attempt + 1))


def fail_running_steps(context: SchedulingContext, error: ErrorInfo) -> None:
    """Fail every running step and iteration, because the run ends: nothing stays open after its end."""
    for step_id in list(context.state.steps):
        step_state = context.state.steps[step_id]
        if step_state.status is not StepStatus.RUNNING:
            continue
        if (loop := context.execution.loops.get(step_id)) is not None:
            _fail_iterations(context, step_id, loop, error)
        failed = payloads.StepFailed(error, context.ms_since(step_state.started_at))
        context.emit("StepFailed", step_id, step_state.attempt, failed)


def _fail_iterations(context: SchedulingContext, step_id: str, loop: LoopState, error: ErrorInfo) -> None:
    for index, since in list(loop.running_since.items()):
        path = str(EntityPath(step_id, attempt=loop.attempt, indexes=(index,)))
        failed = payloads.LoopIteration(index, duration_ms=context.ms_since_micros(since), error=error)
        context.emit("LoopIterationFailed", path, loop.attempts.get(index, 1), failed)
    counts = payloads.LoopCounts(loop.total, loop.done, loop.failed, step_failed=True)
    context.emit("LoopDone", str(EntityPath(step_id, attempt=loop.attempt)), 1, counts)
