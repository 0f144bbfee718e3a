"""Steps that wait for somebody: approvals, and events from outside."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from runwright.contract import payloads
from runwright.contract.refs import ErrorInfo
from runwright.contract.transitions import StepStatus

from .node import Node

if TYPE_CHECKING:
    from .decide import Decider

Signal = payloads.SignalDecided

NOBODY_CAME = ErrorInfo("STEP_TIMEOUT", "What it waited for did not come within its timeout.", True, "timeout")
IN_VAIN = ErrorInfo("CANCELLED", "The run failed while it waited.", retryable=False, category="operator")


def may_start(decider: Decider, node: Node, attempt: int) -> bool:
    """Whether a step that needs an approval has it. If nobody was asked yet, somebody is asked now."""
    step_id = node.step.step_id
    if step_id in decider.work.granted:
        return True
    if step_id not in decider.work.awaits:
        decider.say("ApprovalRequested", step_id, attempt, payloads.Approval(prompt=f"May {step_id} start?"))
    return False


def close_approval(decider: Decider, path: str, why: str) -> None:
    """Nobody has to answer any more."""
    awaited = decider.work.awaits.get(path)
    if awaited is not None and awaited.approval is not None:
        decider.say("ApprovalDenied", path, awaited.attempt, payloads.Approval(reason=why))


def stop_waiting(decider: Decider) -> None:
    """The run has failed: what only waits need not be waited for."""
    for path in list(decider.work.awaits):
        cell = decider.state.steps.get(path)
        if cell is None or cell.status is not StepStatus.RUNNING:
            continue
        close_approval(decider, path, "The run failed.")
        decider.say("StepFailed", path, cell.attempt, payloads.StepFailed(IN_VAIN, decider.since(cell.started_at)))


def asked(decider: Decider, signal: Signal) -> str | None:
    """The step that an answer is for: the one it names, or the only one that waits for one."""
    wanted = (signal.payload or {}).get("stepId")
    open_now = [path for path, awaited in decider.work.awaits.items() if awaited.approval is not None]
    if wanted is not None:
        return wanted if wanted in open_now else None
    return open_now[0] if len(open_now) == 1 else None


def approve(decider: Decider, signal: Signal) -> str:
    """Act on an APPROVE; gives back what became of it."""
    path = asked(decider, signal)
    if path is None:
        return "NOTHING_TO_APPROVE"
    attempt, answer = decider.work.awaits[path].attempt, (signal.payload or {}).get("answer")
    granted = payloads.Approval(by=signal.actor_id, answer=answer, reason=signal.reason, signal_id=signal.signal_id)
    decider.say("ApprovalGranted", path, attempt, granted)
    cell = decider.state.steps.get(path)
    if cell is None:
        decider.marking.make_ready(decider.net.index[path])  # it only waited to be started
    elif cell.status is StepStatus.RUNNING:
        result: dict[str, Any] = {"approvedBy": signal.actor_id, "reason": signal.reason, "answer": answer or {}}
        ended = payloads.StepCompleted(result=result, duration_ms=decider.since(cell.started_at))
        decider.say("StepCompleted", path, attempt, ended)
    return "APPROVED"


def deny(decider: Decider, signal: Signal) -> str:
    """Act on a DENY. The step fails, also one that had not begun: so it can be retried, and asked about again."""
    path = asked(decider, signal)
    if path is None:
        return "NOTHING_TO_APPROVE"
    attempt = decider.work.awaits[path].attempt
    denied = payloads.Approval(by=signal.actor_id, reason=signal.reason, signal_id=signal.signal_id)
    decider.say("ApprovalDenied", path, attempt, denied)
    cell = decider.state.steps.get(path)
    if cell is None or cell.attempt < attempt:
        decider.say("StepStarted", path, attempt)
    why = f"{signal.actor_id} denied it" + (f": {signal.reason}" if signal.reason else ".")
    error = ErrorInfo("APPROVAL_DENIED", why, retryable=False, category="operator")
    took = decider.since(decider.state.steps[path].started_at)
    decider.say("StepFailed", path, attempt, payloads.StepFailed(error, took))
    return "DENIED"


def deliver(decider: Decider, signal: Signal) -> str | None:
    """Hand an event from outside to the first step that waits for it; None if none does yet."""
    payload = signal.payload or {}
    for path, awaited in decider.work.awaits.items():
        if awaited.event != payload.get("name") or (awaited.key is not None and awaited.key != payload.get("key")):
            continue
        result = {"name": awaited.event, "key": payload.get("key"), "payload": payload.get("payload")}
        took = decider.since(decider.state.steps[path].started_at)
        decider.say("StepCompleted", path, awaited.attempt, payloads.StepCompleted(result=result, duration_ms=took))
        return "DELIVERED"
    return None
