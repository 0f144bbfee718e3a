"""Which arcs of a step fire, once it has ended."""

from __future__ import annotations

from typing import Any

from runwright.contract.errors import RunwrightError
from runwright.contract.playbook import Mode
from runwright.contract.refs import ErrorInfo

from .expressions import condition_text, fill, is_true, mentioned_names
from .pipeline import check_said
from .playnet import Station


def fired(station: Station, name: str, scope: dict[str, Any] | RunwrightError, *, must_lead_on: bool) -> dict[str, Any]:
    """What `NextEvaluated` says. An arc without a condition fires when all went well. `name` is that of the event with
    which the step ended, `scope` what its arcs see, or why they cannot."""
    route, is_failed = station.route, name == "step.failed"
    matched: list[dict[str, Any]] = []
    selected: list[dict[str, Any]] = []
    payload: dict[str, Any] = {"mode": route.mode, "matched": matched, "selected": selected}
    try:
        if isinstance(scope, RunwrightError):
            raise scope
        if route.set_ctx and not is_failed:
            payload["ctx"] = fill(route.set_ctx, scope)
            scope["ctx"] = {**scope["ctx"], **payload["ctx"]}
        for arc in route.arcs:
            if arc.when is None and is_failed:
                continue
            if arc.when is None or _holds(arc.when, scope, station if is_failed else None):
                args = {"args": fill(arc.args, scope)} if arc.args else {}
                if arc.set_ctx:
                    payload["ctx"] = {**payload.get("ctx", {}), **fill(arc.set_ctx, scope)}
                matched.append({"step": arc.step} | ({} if arc.when is None else {"when": arc.when}))
                selected.append({"step": arc.step, **args})
                if route.mode is Mode.EXCLUSIVE:
                    break
        check_said("What the arcs of this step pass on", [arc["args"] for arc in selected if "args" in arc])
        check_said("What this step sets in ctx", payload.get("ctx"))
    except RunwrightError as error:
        selected.clear()
        payload.pop("ctx", None)
        payload["error"] = ErrorInfo(error.code, error.detail, retryable=False, category="plan")
    if not selected and route.arcs and must_lead_on and "error" not in payload:
        message = "None of its arcs matches, and the playbook says that this is an error."
        payload["error"] = ErrorInfo("NO_NEXT", message, retryable=False, category="plan")
    return payload


def _holds(when: str | bool, scope: dict[str, Any], failed: Station | None) -> bool:
    """Whether an arc's condition does. After a failure there is no result: what asks for it does not hold."""
    try:
        return is_true(when, scope)
    except RunwrightError:
        asked = mentioned_names(condition_text(when)) if isinstance(when, str) else frozenset[str]()
        if failed is None or asked.isdisjoint({failed.node.step.step_id, "output"}):
            raise
        return False
