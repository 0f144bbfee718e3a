"""A playbook as YAML that is read back as the same plan, in the canonical spelling."""

from __future__ import annotations

from typing import Any

import msgspec

from runwright.contract.plan import ExecutionPlan, Step
from runwright.contract.playbook import (
    AdmitRule,
    Arc,
    Do,
    FailureMode,
    Join,
    Keeping,
    Mode,
    PipelineLoop,
    Route,
    Rule,
    Spacing,
    Task,
)

from .known import SUB_PLAN
from .playbook_kinds import DIALECT

_OTHERWISE = {"query": "params", "bearer": "auth", "content": "body", "maxBytes": "max_bytes"}
"""Inputs of `http` that playbooks call otherwise."""


def playbook_document(plan: ExecutionPlan) -> dict[str, Any]:
    whole, meta = plan.playbook, plan.metadata
    assert whole is not None
    spec = _given(
        entry_step=None if whole.entry == plan.steps[0].step_id else whole.entry,
        final_step=whole.final_step,
        no_next_is_error=whole.no_next_is_error or None,
    )
    return {
        "apiVersion": "noetl.io/v10",
        "kind": "Playbook",
        "metadata": _given(name=meta.plan_id, version=meta.plan_version or None, description=meta.description),
        **_given(
            executor={"spec": spec} if spec else None, workload=dict(plan.params) or None, ctx=dict(whole.ctx) or None
        ),
        "workflow": [_step(step) for step in plan.steps],
    }


def _given(**fields: Any) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def _step(step: Step) -> dict[str, Any]:
    route = step.route
    assert route is not None
    tools = [_task(task) for task in route.tasks]
    alone = len(tools) == 1 and route.tasks[0].label == step.step_id
    if alone:
        tools[0].pop("name")
    return {
        "step": step.step_id,
        **_given(
            spec=_spec(step, route),
            loop=None if route.loop is None else _loop(route.loop),
            tool=None if not tools else tools[0] if alone else tools,
            set={f"ctx.{name}": value for name, value in route.set_ctx.items()} or None,
            next=_next(route),
        ),
    }


def _spec(step: Step, route: Route) -> dict[str, Any] | None:
    policy = _given(
        admit={"rules": [_admit(rule) for rule in route.admit]} if route.admit else None,
        lifecycle=None if step.timeout is None else {"timeout_s": step.timeout},
        failure=None if route.failure is FailureMode.FAIL_FAST else {"mode": str(route.failure)},
    )
    join = None if route.join is Join.BARRIER else str(route.join)
    return _given(policy=policy or None, join=join) or None


def _admit(rule: AdmitRule) -> dict[str, Any]:
    return _ruled(rule.when, {"allow": rule.allow})


def _ruled(when: str | bool | None, then: dict[str, Any]) -> dict[str, Any]:
    return {"else": {"then": then}} if when is None else {"when": when, "then": then}


def _loop(loop: PipelineLoop) -> dict[str, Any]:
    made: dict[str, Any] = {"in": loop.items, "iterator": loop.iterator}
    if loop.parallel or loop.max_in_flight != 1:
        made["spec"] = {"mode": "parallel" if loop.parallel else "sequential", "max_in_flight": loop.max_in_flight}
    return made


def _next(route: Route) -> dict[str, Any] | None:
    if not route.arcs:
        return None
    mode = {} if route.mode is Mode.EXCLUSIVE else {"spec": {"mode": str(route.mode)}}
    return {**mode, "arcs": [_arc(arc) for arc in route.arcs]}


def _arc(arc: Arc) -> dict[str, Any]:
    settings = {f"ctx.{name}": value for name, value in arc.set_ctx.items()}
    return {"step": arc.step, **_given(when=arc.when, args=dict(arc.args) or None, set=settings or None)}


def _task(task: Task) -> dict[str, Any]:
    inputs = dict(task.inputs)
    kind = task.kind.removeprefix(DIALECT)
    if kind == "sql":
        kind = str(inputs.pop("engine"))
        if isinstance(inputs.get("connection"), dict):
            inputs["auth"] = inputs.pop("connection")["secret"]
        if "maxRows" in inputs:
            inputs["max_rows"] = inputs.pop("maxRows")
    elif kind == "http":
        inputs.pop("idleTimeout", None)  # it follows from the task's time
        inputs = {_OTHERWISE.get(name, name): value for name, value in inputs.items()}
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
    spec = _given(
        timeout=task.timeout,
        policy=None if task.rules is None else {"rules": [_rule(rule) for rule in task.rules]},
        result=_keeping(task.result),
        dispatch=task.dispatch,
    )
    return {"name": task.label, "kind": kind, **inputs, **_given(spec=spec or None)}


def _rule(rule: Rule) -> dict[str, Any]:
    then: dict[str, Any] = {"do": str(rule.do)}
    if rule.do is Do.RETRY:
        then["attempts"] = rule.attempts
    then |= _given(
        backoff=None if rule.backoff is Spacing.NONE else str(rule.backoff),
        delay=rule.delay or None,
        to=rule.to,
        set_ctx=dict(rule.set_ctx) or None,
        set_iter=dict(rule.set_iter) or None,
    )
    return _ruled(rule.when, then)


def _keeping(keeping: Keeping) -> dict[str, Any] | None:
    """As it was written: the names of its parts are those of the playbook."""
    made: dict[str, Any] = msgspec.to_builtins(keeping)
    return {_SNAKE.get(name, name): value for name, value in made.items()} or None


_SNAKE: dict[str, str] = {"inlineMaxBytes": "inline_max_bytes", "previewMaxBytes": "preview_max_bytes"}
