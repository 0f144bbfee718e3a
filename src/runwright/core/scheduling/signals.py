"""Apply accepted signals and the deadlines of a run. Signals are applied in the order of the log, once each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from runwright.contract import payloads
from runwright.contract.refs import ErrorInfo
from runwright.contract.timestamps import from_micros
from runwright.contract.transitions import RunStatus, StepStatus
from runwright.core.fold.run_state import inflight_count

from .approvals import approve, close_approval, deliver_event, deny
from .context import SchedulingContext
from .run_end_payloads import failed_payload
from .scheduler import Scheduler

Signal = payloads.SignalDecided


class Stop(msgspec.Struct, frozen=True):
    """Running steps must be stopped before the run can end."""

    code: str  # the error code of the stopped steps: CANCELLED, KILLED or TIMEOUT
    by_force: bool = False


class SignalTarget(msgspec.Struct, frozen=True):
    """The run that a signal is applied to."""

    context: SchedulingContext
    scheduler: Scheduler

    def processed(self, path: str, signal: Signal, result: str) -> None:
        done = payloads.SignalProcessed(signal.signal_id, signal.signal_type, result)
        self.context.emit("SignalProcessed", path, 1, done)


def apply_signals(target: SignalTarget, *, stopped: bool) -> Stop | None:
    """Apply signals and deadlines. Return what must be stopped first if the run is to end. `stopped`: no step of the
    run is executed any more."""
    context, signals = target.context, target.context.execution.pending_signals
    ending = next((path for path, signal in signals.items() if signal.signal_type == "EMERGENCY_STOP"), None)
    if ending is None:
        for path, signal in list(signals.items()):
            if signal.signal_type == "CANCEL":
                ending = path
                break
            _ACTIONS.get(signal.signal_type or "", _unknown)(target, path, signal)
    if ending is not None:
        return _cancel(target, ending, signals[ending], stopped=stopped)
    if _is_past_timeout(context):
        return _time_out(target, stopped=stopped)
    _check_drain_timeout(context)
    return None


def is_ending(context: SchedulingContext) -> bool:
    """Whether the run is being cancelled, or its timeout has passed: its steps need not be worked on any more."""
    return _is_past_timeout(context) or context.execution.has_pending_signal("CANCEL", "EMERGENCY_STOP")


def next_deadline(context: SchedulingContext) -> int | None:
    """When the timeout of the run, or that of a draining pause, passes."""
    times: list[int] = []
    if context.graph.plan.timeout is not None and context.execution.started_at is not None:
        times.append(context.execution.started_at + int(context.graph.plan.timeout * 1e6))
    if _is_draining(context):
        assert context.execution.paused_at is not None
        times.append(context.execution.paused_at + int(context.drain_timeout * 1e6))
    return min(times) if times else None


def _is_past_timeout(context: SchedulingContext) -> bool:
    started_at, timeout = context.execution.started_at, context.graph.plan.timeout
    return timeout is not None and started_at is not None and context.now >= started_at + int(timeout * 1e6)


def _has_running_steps(context: SchedulingContext) -> bool:
    return context.state.summary.running_steps > 0


def _cancel(target: SignalTarget, path: str, signal: Signal, *, stopped: bool) -> Stop | None:
    context, by_force = target.context, signal.signal_type == "EMERGENCY_STOP"
    code = "KILLED" if by_force else "CANCELLED"
    if _has_running_steps(context) and not stopped:
        return Stop(code, by_force)
    message = "The run was stopped." if by_force else "The run was cancelled."
    if not _end_steps(target, code, message, "RUN_CANCELLED"):
        return None
    reason = signal.reason or (signal.payload or {}).get("reason")
    duration_ms = context.ms_since(context.state.summary.started_at)
    ended = payloads.RunEnded(reason=reason, signal_id=signal.signal_id, duration_ms=duration_ms)
    target.scheduler.end_run("RunCancelled", ended)
    target.processed(path, signal, "CANCELLED")
    for other, late in list(context.execution.pending_signals.items()):
        target.processed(other, late, "RUN_TERMINAL")
    return None


def _time_out(target: SignalTarget, *, stopped: bool) -> Stop | None:
    context = target.context
    if _has_running_steps(context) and not stopped:
        return Stop("TIMEOUT")
    if not _end_steps(target, "TIMEOUT", "The run timed out.", "RUN_FAILED"):
        return None
    message = f"The run timed out after {context.graph.plan.timeout:g} s."
    error = ErrorInfo("RUN_TIMEOUT", message, retryable=False, category="timeout")
    duration_ms = context.ms_since(context.state.summary.started_at)
    target.scheduler.end_run("RunFailed", failed_payload(None, error, duration_ms))
    return None


def _end_steps(target: SignalTarget, code: str, reason: str, skip_code: str) -> bool:
    """Skip pending steps and fail running ones: after the end of a run nothing stays open. False if some remain for
    the next decision."""
    for path in list(target.context.execution.pending_inputs):
        close_approval(target.context, path, reason)
    if not target.scheduler.skip_pending(skip_code, reason):
        return False
    target.scheduler.end_running(ErrorInfo(code, reason, retryable=False, category="operator"))
    return True


# One function per signal type


def _pause(target: SignalTarget, path: str, signal: Signal) -> None:
    context = target.context
    if context.status is not RunStatus.RUNNING:
        is_paused = context.status is RunStatus.PAUSED
        target.processed(path, signal, "ALREADY_PAUSED" if is_paused else "NOT_RUNNING")
        return
    reason = signal.reason or (signal.payload or {}).get("reason")
    paused = payloads.RunSteered(signal.signal_id, reason)
    context.emit("RunPaused", None, context.state.summary.pauses + 1, paused)
    target.processed(path, signal, "PAUSED")


def _resume(target: SignalTarget, path: str, signal: Signal) -> None:
    context = target.context
    if context.status is not RunStatus.PAUSED:
        target.processed(path, signal, "NOT_PAUSED")
        return
    resumed = payloads.RunSteered(signal.signal_id, signal.reason)
    context.emit("RunResumed", None, context.state.summary.pauses, resumed)
    target.processed(path, signal, "RESUMED")


def _retry_step(target: SignalTarget, path: str, signal: Signal) -> None:
    context, payload = target.context, signal.payload or {}
    step_id = str(payload.get("stepId"))
    step_state = context.state.steps.get(step_id)
    if step_state is None or step_state.status is StepStatus.RUNNING:
        target.processed(path, signal, "STEP_NOT_TERMINAL")
        return
    if step_state.status is not StepStatus.FAILED and not payload.get("force"):
        target.processed(path, signal, "STEP_TERMINAL")
        return
    if step_id not in context.execution.retry_at:
        retry = payloads.StepRetryScheduled(from_micros(context.now), step_state.attempt + 1, signal.signal_id)
        context.emit("StepRetryScheduled", step_id, step_state.attempt, retry)
    target.processed(path, signal, "RETRYING")  # folding this brings a retry forward that the policy had delayed
    target.scheduler.requeue_retry(step_id)


def _skip_step(target: SignalTarget, path: str, signal: Signal) -> None:
    context, payload = target.context, signal.payload or {}
    step_id = str(payload.get("stepId"))
    step_state = context.state.steps.get(step_id)
    if step_state is not None and step_state.status is not StepStatus.FAILED:
        target.processed(path, signal, _not_changeable(step_state.status))
        return
    close_approval(context, step_id, "The step was skipped.")
    reason = signal.reason or payload.get("reason")
    skipped = payloads.StepSkipped("OPERATOR_SKIP", reason or "Skipped by an operator.", signal.signal_id)
    context.emit("StepSkipped", step_id, 1 if step_state is None else step_state.attempt + 1, skipped)
    target.processed(path, signal, "SKIPPED")


def _not_changeable(status: StepStatus) -> str:
    return "STEP_NOT_TERMINAL" if status is StepStatus.RUNNING else "STEP_TERMINAL"


def _update_params(target: SignalTarget, path: str, signal: Signal) -> None:
    context = target.context
    changes: dict[str, Any] = (signal.payload or {}).get("params") or {}
    params = {**context.execution.params, **changes}
    ordinal = context.execution.params_update_count + 1
    context.emit("RunParamsUpdated", None, ordinal, payloads.RunParamsUpdated(params, signal.signal_id))
    target.processed(path, signal, "UPDATED")


def _override(target: SignalTarget, path: str, signal: Signal) -> None:
    context, payload = target.context, signal.payload or {}
    step_id = str(payload.get("stepId"))
    step_state = context.state.steps.get(step_id)
    if step_state is not None and step_state.status is not StepStatus.FAILED:
        target.processed(path, signal, _not_changeable(step_state.status))
        return
    ordinal = context.execution.override_counts.get(step_id, 0) + 1
    context.emit("StepOverridden", step_id, ordinal, payloads.StepChanged(signal.signal_id, payload.get("override")))
    target.processed(path, signal, "OVERRIDDEN")


def _approve(target: SignalTarget, path: str, signal: Signal) -> None:
    target.processed(path, signal, approve(target.context, signal))


def _deny(target: SignalTarget, path: str, signal: Signal) -> None:
    target.processed(path, signal, deny(target.context, signal))


def _event(target: SignalTarget, path: str, signal: Signal) -> None:
    """An event that no step waits for yet stays pending in the log."""
    if (result := deliver_event(target.context, signal)) is not None:
        target.processed(path, signal, result)


def _unknown(target: SignalTarget, path: str, signal: Signal) -> None:
    target.processed(path, signal, "NOT_SUPPORTED")


_ACTIONS: dict[str, Callable[[SignalTarget, str, Signal], None]] = {
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


# Drain timeout of a pause


def _is_draining(context: SchedulingContext) -> bool:
    summary = context.state.summary
    if summary.status is not RunStatus.PAUSED:
        return False
    return inflight_count(summary) > 0 and not summary.drain_timed_out and context.execution.paused_at is not None


def _check_drain_timeout(context: SchedulingContext) -> None:
    if not _is_draining(context):
        return
    assert context.execution.paused_at is not None
    if context.now >= context.execution.paused_at + int(context.drain_timeout * 1e6):
        count = inflight_count(context.state.summary)
        reason = f"{count} steps were still running {context.drain_timeout:g} s after the pause."
        context.emit("RunDrainTimedOut", None, context.state.summary.pauses, payloads.RunSteered(reason=reason))
