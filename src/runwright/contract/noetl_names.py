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
    "step.exit": "step",
    "tool.processed": "task",
    "tool.completed": "task",
    "retry.processed": "task.attempt",
    "sink.processed": "task",
    "sink.done": "task",
    "sink.completed": "task",
}
"""Ends of which only the status says whether they were good."""

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
    entity = _ENDING.get(name)
    if entity is not None:
        return f"{entity}.failed" if _is_bad(status, payload) else f"{entity}.done"
    if LEGACY.fullmatch(name) is None:
        return name
    family, _, verb = name.partition(".")
    if family == "case":
        routes = {"next", "selected", "matched", "arcs", "route"} & payload.keys()
        return "next.evaluated" if routes else "policy.task.evaluated"
    is_end = verb.rpartition(".")[2] in ("failed", "error")
    entity = "task.attempt" if family == "retry" else "task"
    return f"{entity}.failed" if is_end else f"{entity}.started" if "start" in verb else f"{entity}.done"


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
