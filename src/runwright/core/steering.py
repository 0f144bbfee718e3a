"""What accepted signals and deadlines do to a run. Signals are acted on in the order of the log, once each."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from runwright.contract import payloads
from runwright.contract.paths import EntityPath
from runwright.contract.refs import ErrorInfo
from runwright.contract.timestamps import from_micros
from runwright.contract.transitions import RunStatus, StepStatus

from .asking import approve, close_approval, deliver, deny
from .ending import skip_the_rest
from .pipeline import stop_tasks
from .state import at_work

if TYPE_CHECKING:
    from .decide import Decider


class Stop(msgspec.Struct, frozen=True):
    """Running steps are to be stopped before the run can end."""

    code: str  # what they will have failed with: CANCELLED, KILLED or TIMEOUT
    by_force: bool = False


Signal = payloads.SignalDecided


def steer(decider: Decider, *, stopped: bool) -> Stop | None:
    """Act on signals and deadlines. Gives back what must be stopped first, if the run is to end."""
    signals = decider.work.signals
    ending = None
    if signals:
        ending = next((path for path, signal in signals.items() if signal.signal_type == "EMERGENCY_STOP"), None)
    if ending is None:
        for path, signal in list(signals.items()):
            if signal.signal_type == "CANCEL":
                ending = path
                break
            _ACTIONS.get(signal.signal_type or "", _unknown)(decider, path, signal)
    if ending is not None:
        return _end(decider, ending, signals[ending], stopped=stopped)
    if _is_late(decider):
        if _at_work(decider) and not stopped:
            return Stop("TIMEOUT")
        _end_steps(decider, "TIMEOUT", "The run's time was up.", "RUN_FAILED")
        error = ErrorInfo(
            "RUN_TIMEOUT",
            f"The run took longer than {decider.net.plan.timeout:g} s.",
            retryable=False,
            category="timeout",
        )
        took = decider.since(decider.state.summary.started_at)
        cause = payloads.RootCause(None, error.code, error.message)
        decider.end_run("RunFailed", payloads.RunEnded(root_cause=cause, error=error, duration_ms=took))
        return None
    _watch_drain(decider)
    return None


def is_ending(decider: Decider) -> bool:
    """Whether the run was told to end, or its time is up: nothing of it is to be worked on any more."""
    return _is_late(decider) or decider.work.is_told("CANCEL", "EMERGENCY_STOP")


def next_deadline(decider: Decider) -> int | None:
    """When the run's own time, or the time of a pause to drain, is up."""
    times: list[int] = []
    if decider.net.plan.timeout is not None and decider.work.started_at is not None:
        times.append(decider.work.started_at + int(decider.net.plan.timeout * 1e6))
    if _is_draining(decider):
        assert decider.work.paused_at is not None
        times.append(decider.work.paused_at + int(decider.drain_timeout * 1e6))
    return min(times) if times else None


def _is_late(decider: Decider) -> bool:
    work, timeout = decider.work, decider.net.plan.timeout
    return timeout is not None and work.started_at is not None and decider.now >= work.started_at + int(timeout * 1e6)


def _at_work(decider: Decider) -> bool:
    return decider.state.summary.running_steps > 0


def _end(decider: Decider, path: str, signal: Signal, *, stopped: bool) -> Stop | None:
    by_force = signal.signal_type == "EMERGENCY_STOP"
    code = "KILLED" if by_force else "CANCELLED"
    if _at_work(decider) and not stopped:
        return Stop(code, by_force)
    _end_steps(decider, code, "The run was stopped." if by_force else "The run was cancelled.", "RUN_CANCELLED")
    reason = signal.reason or (signal.payload or {}).get("reason")
    took = decider.since(decider.state.summary.started_at)
    ended = payloads.RunEnded(reason=reason, signal_id=signal.signal_id, duration_ms=took)
    decider.end_run("RunCancelled", ended)
    _processed(decider, path, signal, "CANCELLED")
    for other, late in list(decider.work.signals.items()):
        _processed(decider, other, late, "RUN_TERMINAL")
    return None


def _end_steps(decider: Decider, code: str, why: str, skip_code: str) -> None:
    """Skip what never started, and fail what is under way: after a run's end nothing is left open."""
    for path in list(decider.work.awaits):
        close_approval(decider, path, why)
    skip_the_rest(decider, skip_code, why)
    error = ErrorInfo(code, why, retryable=False, category="operator")
    stop_tasks(decider, error)
    for step_id in list(decider.state.steps):
        cell = decider.state.steps[step_id]
        if cell.status is not StepStatus.RUNNING:
            continue
        loop = decider.work.loops.get(step_id)
        if loop is not None:
            for index, since in list(loop.running.items()):
                path = str(EntityPath(step_id, attempt=loop.attempt, indexes=(index,)))
                took = max(0, decider.now - since) / 1000
                failed = payloads.LoopIteration(index, duration_ms=took, error=error)
                decider.say("LoopIterationFailed", path, loop.attempts.get(index, 1), failed)
            decider.failed_iterations.clear()
            counts = payloads.LoopCounts(loop.total, loop.done, loop.failed, step_failed=True)
            decider.say("LoopDone", str(EntityPath(step_id, attempt=loop.attempt)), 1, counts)
        took = decider.since(cell.started_at)
        decider.say("StepFailed", step_id, cell.attempt, payloads.StepFailed(error, took))


def _processed(decider: Decider, path: str, signal: Signal, result: str) -> None:
    done = payloads.SignalProcessed(signal.signal_id, signal.signal_type, result)
    decider.say("SignalProcessed", path, 1, done)


# One function a signal


def _pause(decider: Decider, path: str, signal: Signal) -> None:
    if decider.status is not RunStatus.RUNNING:
        _processed(decider, path, signal, "ALREADY_PAUSED" if decider.status is RunStatus.PAUSED else "NOT_RUNNING")
        return
    reason = signal.reason or (signal.payload or {}).get("reason")
    steered = payloads.RunSteered(signal.signal_id, reason)
    decider.say("RunPaused", None, decider.state.summary.pauses + 1, steered)
    _processed(decider, path, signal, "PAUSED")


def _resume(decider: Decider, path: str, signal: Signal) -> None:
    if decider.status is not RunStatus.PAUSED:
        _processed(decider, path, signal, "NOT_PAUSED")
        return
    decider.say("RunResumed", None, decider.state.summary.pauses, payloads.RunSteered(signal.signal_id, signal.reason))
    _processed(decider, path, signal, "RESUMED")


def _retry_step(decider: Decider, path: str, signal: Signal) -> None:
    payload = signal.payload or {}
    step_id = str(payload.get("stepId"))
    cell = decider.state.steps.get(step_id)
    if cell is None or cell.status is StepStatus.RUNNING:
        _processed(decider, path, signal, "STEP_NOT_TERMINAL")
        return
    if cell.status is not StepStatus.FAILED and not payload.get("force"):
        _processed(decider, path, signal, "STEP_TERMINAL")
        return
    if step_id not in decider.work.retry_at:
        at = payloads.StepRetryScheduled(from_micros(decider.now), cell.attempt + 1, signal.signal_id)
        decider.say("StepRetryScheduled", step_id, cell.attempt, at)
    _processed(decider, path, signal, "RETRYING")  # this brings a retry forward that policy had put off
    decider.look_at_retry(step_id)


def _skip_step(decider: Decider, path: str, signal: Signal) -> None:
    payload = signal.payload or {}
    step_id = str(payload.get("stepId"))
    cell = decider.state.steps.get(step_id)
    if cell is not None and cell.status is StepStatus.RUNNING:
        _processed(decider, path, signal, "STEP_NOT_TERMINAL")
        return
    if cell is not None and cell.status is not StepStatus.FAILED:
        _processed(decider, path, signal, "STEP_TERMINAL")
        return
    close_approval(decider, step_id, "The step was skipped.")
    reason = signal.reason or payload.get("reason")
    skipped = payloads.StepSkipped("OPERATOR_SKIP", reason or "An operator skipped it.", signal.signal_id)
    decider.say("StepSkipped", step_id, 1 if cell is None else cell.attempt + 1, skipped)
    _processed(decider, path, signal, "SKIPPED")


def _update_params(decider: Decider, path: str, signal: Signal) -> None:
    changes: dict[str, Any] = (signal.payload or {}).get("params") or {}
    params = {**decider.work.params, **changes}
    ordinal = decider.work.params_updates + 1
    decider.say("RunParamsUpdated", None, ordinal, payloads.RunParamsUpdated(params, signal.signal_id))
    _processed(decider, path, signal, "UPDATED")


def _override(decider: Decider, path: str, signal: Signal) -> None:
    payload = signal.payload or {}
    step_id = str(payload.get("stepId"))
    cell = decider.state.steps.get(step_id)
    if cell is not None and cell.status is not StepStatus.FAILED:
        code = "STEP_NOT_TERMINAL" if cell.status is StepStatus.RUNNING else "STEP_TERMINAL"
        _processed(decider, path, signal, code)
        return
    ordinal = decider.work.override_count.get(step_id, 0) + 1
    decider.say("StepOverridden", step_id, ordinal, payloads.StepChanged(signal.signal_id, payload.get("override")))
    _processed(decider, path, signal, "OVERRIDDEN")


def _approve(decider: Decider, path: str, signal: Signal) -> None:
    _processed(decider, path, signal, approve(decider, signal))


def _deny(decider: Decider, path: str, signal: Signal) -> None:
    _processed(decider, path, signal, deny(decider, signal))


def _event(decider: Decider, path: str, signal: Signal) -> None:
    """An event that nobody waits for yet stays where it is, in the log, until somebody does."""
    if (result := deliver(decider, signal)) is not None:
        _processed(decider, path, signal, result)


def _unknown(decider: Decider, path: str, signal: Signal) -> None:
    _processed(decider, path, signal, "NOT_SUPPORTED")


_ACTIONS: dict[str, Callable[[Decider, str, Signal], None]] = {
    "PAUSE": _pause,
    "RESUME": _resume,
    "RETRY_STEP": _retry_step,
    "SKIP_STEP": _skip_step,
    "UPDATE_PARAMS": _update_params,
    "INJECT_OVERRIDE": _override,
    "APPROVE": _approve,
    "DENY": _deny,
    "EVENT": _event,
}


# A pause that does not come to rest


def _is_draining(decider: Decider) -> bool:
    summary = decider.state.summary
    if summary.status is not RunStatus.PAUSED:
        return False
    return at_work(summary) > 0 and not summary.drain_timed_out and decider.work.paused_at is not None


def _watch_drain(decider: Decider) -> None:
    if not _is_draining(decider):
        return
    assert decider.work.paused_at is not None
    if decider.now >= decider.work.paused_at + int(decider.drain_timeout * 1e6):
        count = at_work(decider.state.summary)
        reason = f"{count} steps were still running {decider.drain_timeout:g} s after the pause."
        decider.say("RunDrainTimedOut", None, decider.state.summary.pauses, payloads.RunSteered(reason=reason))
