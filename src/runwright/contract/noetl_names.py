"""What events of NoETL are called: names of earlier models, and of servers that speak none, brought to today's."""

from __future__ import annotations

from typing import Any, cast

from .catalog import CATALOG
from .envelope import LEGACY
from .noetl_rest import BAD

_TODAY = {
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
"""What servers say that speak no model, and what it is in this one."""

_ENDING = {
    *("done", "processed", "completed", "finished", "ended", "succeeded", "success", "executed", "result"),
    *("saved", "stored", "written"),
}
"""How earlier models call ends. Only the status says whether they were good."""

_ENDING_BADLY = {"failed", "error", "timeout", "exhausted", "cancelled"}

UNDER_WAY = frozenset(
    {
        *("workflow.initialized", "command.issued", "command.claimed", "command.started"),
        *("step.enter", "step.exit", "playbook.completed"),
    }
)
"""Names by which a server that never says `playbook.started` shows that it has."""

_ENDS = {"COMPLETED": "RunCompleted", "FAILED": "RunFailed", "CANCELLED": "RunCancelled"}
_OURS = {kind.dotted: name for name, kind in CATALOG.items() if name not in ("RunFailed", "RunCancelled")}


def canonical(name: str, status: str, payload: dict[str, Any]) -> str:
    """The name of today."""
    if name in _TODAY:
        return _TODAY[name]
    if name == "step.exit":
        return "step.failed" if _is_bad(status, payload) else "step.done"
    if LEGACY.fullmatch(name) is None:
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
    if last in _ENDING_BADLY or (last in _ENDING and _is_bad(status, payload)):
        return f"{entity}.failed"
    return f"{entity}.done" if last in _ENDING else f"{entity}.{last}"  # anything else ends nothing


def our_type(given: str, dotted: str, status: str, payload: dict[str, Any]) -> str:
    """The type in our catalogue; one from elsewhere keeps its name. `playbook.finished` is three of ours."""
    if dotted != "playbook.finished":
        return _OURS.get(dotted, dotted)
    meta: Any = payload.get("meta")
    said = cast("dict[str, Any]", meta).get("runStatus") if isinstance(meta, dict) else None
    if isinstance(said, str) and said in _ENDS:
        return _ENDS[said]
    error: Any = payload.get("error")
    kind = cast("dict[str, Any]", error).get("kind") if isinstance(error, dict) else None
    if "cancelled" in (kind, status.lower(), given.rpartition(".")[2]):
        return "RunCancelled"
    return "RunFailed" if given == "playbook.failed" or _is_bad(status, payload) else "RunCompleted"


def _is_bad(status: str, payload: dict[str, Any]) -> bool:
    outcome: Any = payload.get("outcome")
    inner = cast("dict[str, Any]", outcome).get("status") if isinstance(outcome, dict) else None
    return status.lower() in BAD or str(inner).lower() in BAD or payload.get("error") not in (None, {}, "")
