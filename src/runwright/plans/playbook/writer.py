"""Write a playbook in the canonical spelling; it loads as the same plan."""

from __future__ import annotations

from typing import Any

import msgspec

from runwright.contract.plan import ExecutionPlan, Step
from runwright.contract.playbook import (
    AdmitRule,
    Arc,
    ArcMode,
    FailureMode,
    Join,
    PipelineLoop,
    PolicyAction,
    PolicyRule,
    ResultPolicy,
    RetrySpacing,
    Route,
    Task,
)
from runwright.plans.registry import SUB_PLAN

from .task_kinds import PLAYBOOK_TOOL_PREFIX

_HTTP_FIELDS = {"query": "params", "bearer": "auth", "content": "body", "maxBytes": "max_bytes"}
"""Inputs of `http` that have other names in playbooks."""


def playbook_document(plan: ExecutionPlan) -> dict[str, Any]:
    playbook, meta = plan.playbook, plan.metadata
    assert playbook is not None
    spec = without_none(
        entry_step=None if playbook.entry == plan.steps[0].step_id else playbook.entry,
        final_step=playbook.final_step,
        no_next_is_error=playbook.no_next_is_error or None,
    )
    return {
        "apiVersion": "noetl.io/v10",
        "kind": "Playbook",
        "metadata": without_none(name=meta.plan_id, version=meta.plan_version or None, description=meta.description),
        **without_none(
            executor={"spec": spec} if spec else None,
            workload=dict(plan.params) or None,
            ctx=dict(playbook.ctx) or None,
        ),
        "workflow": [_step(step) for step in plan.steps],
    }


def without_none(**fields: Any) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def _step(step: Step) -> dict[str, Any]:
    route = step.route
    assert route is not None
    tools = [_task(task) for task in route.tasks]
    is_single = len(tools) == 1 and route.tasks[0].label == step.step_id
    if is_single:
        tools[0].pop("name")
    return {
        "step": step.step_id,
        **without_none(
            spec=_spec(step, route),
            loop=None if route.loop is None else _loop(route.loop),
            tool=None if not tools else tools[0] if is_single else tools,
            set={f"ctx.{name}": value for name, value in route.set_ctx.items()} or None,
            next=_next(route),
        ),
    }


def _spec(step: Step, route: Route) -> dict[str, Any] | None:
    policy = without_none(
        admit={"rules": [_admit(rule) for rule in route.admit]} if route.admit else None,
        lifecycle=None if step.timeout is None else {"timeout_s": step.timeout},
        failure=None if route.failure is FailureMode.FAIL_FAST else {"mode": str(route.failure)},
    )
    join = None if route.join is Join.BARRIER else str(route.join)
    return without_none(policy=policy or None, join=join) or None


def _admit(rule: AdmitRule) -> dict[str, Any]:
    return _rule_document(rule.when, {"allow": rule.allow})


def _rule_document(when: str | bool | None, then: dict[str, Any]) -> dict[str, Any]:
    return {"else": {"then": then}} if when is None else {"when": when, "then": then}


def _loop(loop: PipelineLoop) -> dict[str, Any]:
    document: dict[str, Any] = {"in": loop.items, "iterator": loop.iterator}
    if loop.parallel or loop.max_in_flight != 1:
        document["spec"] = {"mode": "parallel" if loop.parallel else "sequential", "max_in_flight": loop.max_in_flight}
    return document


def _next(route: Route) -> dict[str, Any] | None:
    if not route.arcs:
        return None
    mode = {} if route.mode is ArcMode.EXCLUSIVE else {"spec": {"mode": str(route.mode)}}
    return {**mode, "arcs": [_arc(arc) for arc in route.arcs]}


def _arc(arc: Arc) -> dict[str, Any]:
    settings = {f"ctx.{name}": value for name, value in arc.set_ctx.items()}
    return {"step": arc.step, **without_none(when=arc.when, args=dict(arc.args) or None, set=settings or None)}


def _task(task: Task) -> dict[str, Any]:
    inputs = dict(task.inputs)
    kind = task.kind.removeprefix(PLAYBOOK_TOOL_PREFIX)
    if kind == "sql":
        kind = str(inputs.pop("engine"))
        if isinstance(inputs.get("connection"), dict):
            inputs["auth"] = inputs.pop("connection")["secret"]
        if "maxRows" in inputs:
            inputs["max_rows"] = inputs.pop("maxRows")
    elif kind == "http":
        inputs.pop("idleTimeout", None)  # derived from the timeout of the task
        inputs = {_HTTP_FIELDS.get(name, name): value for name, value in inputs.items()}
        if "auth" in inputs:
            inputs["auth"] = inputs["auth"]["secret"]
    elif kind == "nats" and isinstance(inputs.get("url"), dict):
        inputs["auth"] = inputs.pop("url")["secret"]
    elif kind == "secrets":
        inputs = {"map": inputs["names"]}
    elif kind == SUB_PLAN:
        kind = "playbook"
        inputs["args"] = inputs.pop("params", {})
    if not inputs.get("args", True):
        del inputs["args"]
    spec = without_none(
        timeout=task.timeout,
        policy=None if task.rules is None else {"rules": [_rule(rule) for rule in task.rules]},
        result=_result_policy(task.result),
        dispatch=task.dispatch,
    )
    return {"name": task.label, "kind": kind, **inputs, **without_none(spec=spec or None)}


def _rule(rule: PolicyRule) -> dict[str, Any]:
    then: dict[str, Any] = {"do": str(rule.do)}
    if rule.do is PolicyAction.RETRY:
        then["attempts"] = rule.attempts
    then |= without_none(
        backoff=None if rule.backoff is RetrySpacing.NONE else str(rule.backoff),
        delay=rule.delay or None,
        to=rule.to,
        set_ctx=dict(rule.set_ctx) or None,
        set_iter=dict(rule.set_iter) or None,
    )
    return _rule_document(rule.when, then)


def _result_policy(policy: ResultPolicy) -> dict[str, Any] | None:
    """Return the policy with the field names of playbooks."""
    document: dict[str, Any] = msgspec.to_builtins(policy)
    return {_SNAKE.get(name, name): value for name, value in document.items()} or None


_SNAKE: dict[str, str] = {"inlineMaxBytes": "inline_max_bytes", "previewMaxBytes": "preview_max_bytes"}
