"""Policies of tasks: what follows from the outcome of an attempt (continue, retry, jump, break, fail)."""

from __future__ import annotations

from typing import Any

import msgspec

from runwright.contract.errors import ErrorCode, RunwrightError
from runwright.contract.paths import EntityPath
from runwright.contract.playbook import PolicyAction, PolicyRule, RetrySpacing
from runwright.contract.refs import ErrorInfo
from runwright.core.expressions.template import evaluate, evaluate_all, is_true
from runwright.core.fold.loop_state import CTX_CONFLICT
from runwright.core.fold.playbook_state import PipelineState, StepVisit
from runwright.core.graph.playbook_graph import PlaybookStep
from runwright.core.scheduling.retry import Growth, backoff_delay, valid_retry_after

from .context import PlaybookContext
from .event_values import check_event_value
from .outcome import error_of
from .scope import as_output

MAX_DELAY = 7 * 24 * 3600.0  # seconds
MAX_ATTEMPTS = 10_000

_GROWTH = {RetrySpacing.LINEAR: Growth.LINEAR, RetrySpacing.EXPONENTIAL: Growth.EXPONENTIAL}


class PolicyDecision(msgspec.Struct):
    """The decision of a policy about an outcome."""

    rule: int | None
    action: dict[str, Any]
    do: PolicyAction
    ctx: dict[str, Any] = {}
    iter: dict[str, Any] = {}
    due: int | None = None
    error: ErrorInfo | None = None
    is_broken: bool = False  # the policy could not be evaluated; `error` is the reason


class PolicyInput(msgspec.Struct, frozen=True):
    """The task whose policy is evaluated."""

    step: PlaybookStep
    path: EntityPath  # of the visit or iteration
    pipeline: PipelineState
    limit_error: ErrorInfo | None  # a limit was reached: nothing is retried
    deadline: int | None  # retries are due no later


def decide_policy(playbook: PlaybookContext, task: PolicyInput) -> PolicyDecision:
    """Evaluate the policy of a task. Raises MissingValues to have values fetched."""
    try:
        decision = _evaluate(playbook, task)
    except RunwrightError as error:
        return _broken(None, error)
    if task.limit_error is not None and decision.do is PolicyAction.RETRY:
        return _fail(decision.rule, task.limit_error)
    if decision.due is not None and task.deadline is not None:
        decision.due = min(decision.due, task.deadline)
    return decision


def _fail(rule: int | None, error: ErrorInfo, *, is_broken: bool = False) -> PolicyDecision:
    return PolicyDecision(rule, {"do": PolicyAction.FAIL}, PolicyAction.FAIL, error=error, is_broken=is_broken)


def _broken(rule: int | None, error: RunwrightError) -> PolicyDecision:
    return _fail(rule, ErrorInfo(error.code, error.detail, retryable=False, category="plan"), is_broken=True)


def _evaluate(playbook: PlaybookContext, task: PolicyInput) -> PolicyDecision:
    pipeline = task.pipeline
    assert pipeline.pending_outcome is not None
    assert pipeline.task is not None
    rules = task.step.tasks[pipeline.task].rules or ()
    mentions = task.step.policy_mentions[pipeline.task]
    outcome = playbook.scope.outcome(mentions, pipeline.pending_outcome)
    scope = playbook.scope.of_task(mentions, task.step, task.path, pipeline)
    scope |= {"outcome": outcome, "output": as_output(outcome)}
    index = next((at for at, rule in enumerate(rules) if rule.when is None or is_true(rule.when, scope)), None)
    if index is None:
        return PolicyDecision(None, {"do": PolicyAction.CONTINUE}, PolicyAction.CONTINUE)
    try:
        return _apply_rule(playbook, task, index, rules[index], scope)
    except RunwrightError as error:
        return _broken(index, error)


def _apply_rule(
    playbook: PlaybookContext, task: PolicyInput, index: int, rule: PolicyRule, scope: dict[str, Any]
) -> PolicyDecision:
    """The action of the rule that matched, with its expressions evaluated."""
    assert task.pipeline.pending_outcome is not None
    visit = playbook.state.visits[task.path.owner]
    ctx, own = evaluate_all(rule.set_ctx, scope), evaluate_all(rule.set_iter, scope)
    check_event_value("The value this rule sets", ctx, own)
    if (conflict := _ctx_conflict(task.step, task.path, visit, ctx)) is not None:
        return _fail(index, conflict, is_broken=True)
    decision = PolicyDecision(index, {"do": rule.do}, rule.do, ctx, own)
    if rule.do is PolicyAction.JUMP:
        decision.action["to"] = rule.to
    elif rule.do is PolicyAction.RETRY:
        _retry(playbook, task.pipeline, rule, scope, decision)
    if decision.do is PolicyAction.FAIL:
        decision.error = error_of(task.pipeline.pending_outcome.details)
    return decision


def _ctx_conflict(step: PlaybookStep, path: EntityPath, visit: StepVisit, ctx: dict[str, Any]) -> ErrorInfo | None:
    """In a parallel loop a key of `ctx` is written once: the order of two iterations is not defined."""
    if step.route.loop is None or not step.route.loop.parallel:
        return None
    for key in ctx:
        writer = visit.ctx_writers.get(key)
        if writer is not None and writer != path.indexes:
            message = f"Iterations {writer[0]} and {path.indexes[0]} of a parallel loop both set ctx.{key}."
            return ErrorInfo(CTX_CONFLICT, message, retryable=False, category="plan")
    return None


def _retry(
    playbook: PlaybookContext,
    pipeline: PipelineState,
    rule: PolicyRule,
    scope: dict[str, Any],
    decision: PolicyDecision,
) -> None:
    attempts = int(_number(rule.attempts, scope, "attempts", 1, MAX_ATTEMPTS))
    initial = _number(rule.delay, scope, "delay", 0, MAX_DELAY)
    decision.action |= {"attempts": attempts, "backoff": rule.backoff, "delay": initial}
    if pipeline.attempt >= attempts:
        decision.do = PolicyAction.FAIL
        decision.action |= {"do": PolicyAction.FAIL, "exhausted": True}
        return
    assert pipeline.pending_outcome is not None
    error: dict[str, Any] = pipeline.pending_outcome.details.get("error") or {}
    growth = _GROWTH.get(rule.backoff, Growth.CONSTANT)
    backoff = backoff_delay(initial, growth, pipeline.attempt, MAX_DELAY)
    delay = max(backoff, valid_retry_after(error.get("retry_after"), MAX_DELAY))
    decision.due = playbook.run.now + int(delay * 1e6)


def _number(value: Any, scope: dict[str, Any], name: str, least: float, most: float) -> float:
    evaluated = evaluate(value, scope) if isinstance(value, str) else value
    try:
        number = float(evaluated)
    except (TypeError, ValueError, OverflowError):
        number = -1.0
    if not least <= number <= most:
        raise RunwrightError(ErrorCode.EXPRESSION_ERROR, f"`{name}` must be a number from {least:g} to {most:g}.")
    return number
