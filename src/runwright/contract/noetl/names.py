"""Map the names of NoETL events, also of earlier models and of servers without a model, to current names and types."""

from __future__ import annotations

from typing import Any, cast

from runwright.contract.catalog import CATALOG
from runwright.contract.envelope import LEGACY_NAME

from .extras import FAILURE_STATUSES

_CURRENT_NAMES = {
    "playbook.initialized": "playbook.execution.requested",
    "playbook.completed": "playbook.finished",
    "playbook.failed": "playbook.finished",
    "playbook.cancelled": "playbook.finished",
    "execution.cancelled": "playbook.finished",
    "workflow.initialized": "workflow.started",
    "workflow.completed": "workflow.finished",
    "workflow.failed": "workflow.finished",
    "command.issued": "step.scheduled",
    "step.enter": "step.started",
    "call.done": "task.done",
    "call.error": "task.failed",
    "call.failed": "task.failed",
}
"""Event names of servers that follow no model."""

_END_VERBS = {
    *("done", "processed", "completed", "finished", "ended", "succeeded", "success", "executed", "result"),
    *("saved", "stored", "written"),
}
"""Verbs of earlier models for an end. Success or failure depends on the status."""

_FAILURE_VERBS = {"failed", "error", "timeout", "exhausted", "cancelled"}

NAMES_IMPLYING_START = frozenset(
    {
        *("workflow.initialized", "command.issued", "command.claimed", "command.started"),
        *("step.enter", "step.exit", "playbook.completed"),
    }
)
"""Event names that imply a started run, for servers that never emit `playbook.started`."""

_END_TYPES = {"COMPLETED": "RunCompleted", "FAILED": "RunFailed", "CANCELLED": "RunCancelled"}
_TYPES = {kind.dotted: name for name, kind in CATALOG.items() if name not in ("RunFailed", "RunCancelled")}


def canonical_name(name: str, status: str, payload: dict[str, Any]) -> str:
    """Return the current name of an event."""
    if name in _CURRENT_NAMES:
        return _CURRENT_NAMES[name]
    if name == "step.exit":
        return "step.failed" if _is_failure(status, payload) else "step.done"
    if LEGACY_NAME.fullmatch(name) is None:
        return name
    family, _, verb = name.partition(".")
    if family == "case":
        routes = {"next", "selected", "matched", "arcs", "route"} & payload.keys()
        return "next.evaluated" if routes else "policy.task.evaluated"
    entity, last = "task.attempt" if family == "retry" else "task", verb.rstrip(".").rpartition(".")[2]
    if not last:
        return name
    if last.startswith("start"):
        return f"{entity}.started"
    if last in _FAILURE_VERBS or (last in _END_VERBS and _is_failure(status, payload)):
        return f"{entity}.failed"
    return f"{entity}.done" if last in _END_VERBS else f"{entity}.{last}"  # other verbs are not ends


def catalog_type(original: str, dotted: str, status: str, payload: dict[str, Any]) -> str:
    """Return the event type in the catalogue, or the name itself. `playbook.finished` maps to one of three types."""
    if dotted != "playbook.finished":
        return _TYPES.get(dotted, dotted)
    meta: Any = payload.get("meta")
    run_status = cast("dict[str, Any]", meta).get("runStatus") if isinstance(meta, dict) else None
    if isinstance(run_status, str) and run_status in _END_TYPES:
        return _END_TYPES[run_status]
    error: Any = payload.get("error")
    kind = cast("dict[str, Any]", error).get("kind") if isinstance(error, dict) else None
    if "cancelled" in (kind, status.lower(), original.rpartition(".")[2]):
        return "RunCancelled"
    return "RunFailed" if original == "playbook.failed" or _is_failure(status, payload) else "RunCompleted"


def _is_failure(status: str, payload: dict[str, Any]) -> bool:
    outcome: Any = payload.get("outcome")
    inner = cast("dict[str, Any]", outcome).get("status") if isinstance(outcome, dict) else None
    return (
        status.lower() in FAILURE_STATUSES
        or str(inner).lower() in FAILURE_STATUSES
        or payload.get("error") not in (None, {}, "")
    )
