"""Select the outgoing arcs of a step that ended."""

from __future__ import annotations

from typing import Any

from runwright.contract.errors import RunwrightError
from runwright.contract.playbook import ArcMode
from runwright.contract.refs import ErrorInfo
from runwright.core.expressions.template import condition_text, evaluate_all, is_true, mentioned_names
from runwright.core.graph.playbook_graph import PlaybookStep

from .event_values import check_event_value


def evaluate_arcs(
    step: PlaybookStep, event_name: str, scope: dict[str, Any] | RunwrightError, *, no_next_is_error: bool
) -> dict[str, Any]:
    """The payload of `NextEvaluated`. An arc without a condition fires unless the step failed. `event_name` is the
    event with which the step ended; `scope` is what the arcs can use, or the error that prevents their evaluation."""
    route, is_failed = step.route, event_name == "step.failed"
    matched: list[dict[str, Any]] = []
    selected: list[dict[str, Any]] = []
    payload: dict[str, Any] = {"mode": route.mode, "matched": matched, "selected": selected}
    try:
        if isinstance(scope, RunwrightError):
            raise scope
        if route.set_ctx and not is_failed:
            payload["ctx"] = evaluate_all(route.set_ctx, scope)
            scope["ctx"] = {**scope["ctx"], **payload["ctx"]}
        for arc in route.arcs:
            if arc.when is None and is_failed:
                continue
            if arc.when is None or _holds(arc.when, scope, step if is_failed else None):
                args = {"args": evaluate_all(arc.args, scope)} if arc.args else {}
                if arc.set_ctx:
                    payload["ctx"] = {**payload.get("ctx", {}), **evaluate_all(arc.set_ctx, scope)}
                matched.append({"step": arc.step} | ({} if arc.when is None else {"when": arc.when}))
                selected.append({"step": arc.step, **args})
                if route.mode is ArcMode.EXCLUSIVE:
                    break
        check_event_value("The arguments of the arcs of this step", [arc["args"] for arc in selected if "args" in arc])
        check_event_value("The value this step sets in ctx", payload.get("ctx"))
    except RunwrightError as error:
        selected.clear()
        payload.pop("ctx", None)
        payload["error"] = ErrorInfo(error.code, error.detail, retryable=False, category="plan")
    if not selected and route.arcs and no_next_is_error and "error" not in payload:
        message = "No arc of the step matches, and the playbook defines that as an error."
        payload["error"] = ErrorInfo("NO_NEXT", message, retryable=False, category="plan")
    return payload


def _holds(when: str | bool, scope: dict[str, Any], failed: PlaybookStep | None) -> bool:
    """Whether the condition of an arc holds. A failed step has no result: a condition that uses it does not hold."""
    try:
        return is_true(when, scope)
    except RunwrightError:
        names = mentioned_names(condition_text(when)) if isinstance(when, str) else frozenset[str]()
        if failed is None or names.isdisjoint({failed.node.step.step_id, "output"}):
            raise
        return False
