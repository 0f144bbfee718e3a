"""Steps that wait for input: approvals by people, and external events."""

from __future__ import annotations

from typing import Any

from runwright.contract import payloads
from runwright.contract.refs import ErrorInfo
from runwright.contract.transitions import StepStatus
from runwright.core.graph.node import Node

from .context import SchedulingContext

Signal = payloads.SignalDecided

INPUT_TIMED_OUT = ErrorInfo("STEP_TIMEOUT", "No answer arrived within the timeout of the step.", True, "timeout")
RUN_FAILED = ErrorInfo("CANCELLED", "The run failed while the step waited.", retryable=False, category="operator")


def has_approval(context: SchedulingContext, node: Node, attempt: int) -> bool:
    """Whether a step that needs an approval has it. Requests the approval if it was not requested yet."""
    step_id = node.step.step_id
    if step_id in context.execution.granted_approvals:
        return True
    if step_id not in context.execution.pending_inputs:
        context.emit("ApprovalRequested", step_id, attempt, payloads.Approval(prompt=f"May {step_id} start?"))
    return False


def close_approval(context: SchedulingContext, path: str, reason: str) -> None:
    """Close a pending approval that needs no answer any more."""
    pending = context.execution.pending_inputs.get(path)
    if pending is not None and pending.approval is not None:
        context.emit("ApprovalDenied", path, pending.attempt, payloads.Approval(reason=reason))


def fail_waiting_steps(context: SchedulingContext) -> None:
    """Fail every step that only waits for input, because the run has failed."""
    for path in list(context.execution.pending_inputs):
        step_state = context.state.steps.get(path)
        if step_state is None or step_state.status is not StepStatus.RUNNING:
            continue
        close_approval(context, path, "The run failed.")
        failed = payloads.StepFailed(RUN_FAILED, context.ms_since(step_state.started_at))
        context.emit("StepFailed", path, step_state.attempt, failed)


def find_approval(context: SchedulingContext, signal: Signal) -> str | None:
    """The step that an answer is for: the one it names, or the only one that waits for an approval."""
    wanted = (signal.payload or {}).get("stepId")
    pending = [path for path, each in context.execution.pending_inputs.items() if each.approval is not None]
    if wanted is not None:
        return wanted if wanted in pending else None
    return pending[0] if len(pending) == 1 else None


def approve(context: SchedulingContext, signal: Signal) -> str:
    """Apply an APPROVE signal and return its result. A step that had not started becomes ready."""
    path = find_approval(context, signal)
    if path is None:
        return "NOTHING_TO_APPROVE"
    attempt, answer = context.execution.pending_inputs[path].attempt, (signal.payload or {}).get("answer")
    granted = payloads.Approval(by=signal.actor_id, answer=answer, reason=signal.reason, signal_id=signal.signal_id)
    context.emit("ApprovalGranted", path, attempt, granted)
    step_state = context.state.steps.get(path)
    if step_state is not None and step_state.status is StepStatus.RUNNING:
        result: dict[str, Any] = {"approvedBy": signal.actor_id, "reason": signal.reason, "answer": answer or {}}
        ended = payloads.StepCompleted(result=result, duration_ms=context.ms_since(step_state.started_at))
        context.emit("StepCompleted", path, attempt, ended)
    return "APPROVED"


def deny(context: SchedulingContext, signal: Signal) -> str:
    """Apply a DENY signal. The step fails, also if it had not started: so it can be retried and approved then."""
    path = find_approval(context, signal)
    if path is None:
        return "NOTHING_TO_APPROVE"
    attempt = context.execution.pending_inputs[path].attempt
    denied = payloads.Approval(by=signal.actor_id, reason=signal.reason, signal_id=signal.signal_id)
    context.emit("ApprovalDenied", path, attempt, denied)
    step_state = context.state.steps.get(path)
    if step_state is None or step_state.attempt < attempt:
        context.emit("StepStarted", path, attempt)
    message = f"{signal.actor_id} denied it" + (f": {signal.reason}" if signal.reason else ".")
    error = ErrorInfo("APPROVAL_DENIED", message, retryable=False, category="operator")
    duration_ms = context.ms_since(context.state.steps[path].started_at)
    context.emit("StepFailed", path, attempt, payloads.StepFailed(error, duration_ms))
    return "DENIED"


def deliver_event(context: SchedulingContext, signal: Signal) -> str | None:
    """Deliver an external event to the first step that waits for it; None if no step does yet."""
    payload = signal.payload or {}
    for path, pending in context.execution.pending_inputs.items():
        if pending.event != payload.get("name") or (pending.key is not None and pending.key != payload.get("key")):
            continue
        result = {"name": pending.event, "key": payload.get("key"), "payload": payload.get("payload")}
        duration_ms = context.ms_since(context.state.steps[path].started_at)
        completed = payloads.StepCompleted(result=result, duration_ms=duration_ms)
        context.emit("StepCompleted", path, pending.attempt, completed)
        return "DELIVERED"
    return None
