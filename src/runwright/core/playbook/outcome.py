"""Outcome of a task attempt: how it ended, as policies and arcs see it, and where its result is stored."""

from __future__ import annotations

from typing import Any, cast

import msgspec
from msgspec.structs import replace

from runwright.contract.envelope import value_problem
from runwright.contract.paths import EntityPath
from runwright.contract.playbook import HTTP, ResultScope, Task
from runwright.contract.refs import ErrorInfo
from runwright.contract.result_ref import ResultAddress
from runwright.core.scheduling.result_refs import PlacedResult, place_result
from runwright.core.scheduling.scheduler import AttemptEnd

from .context import PlaybookContext

MAX_HELPER_SIZE = 32 * 1024  # bytes


class TaskOutcome(msgspec.Struct, frozen=True):
    fields: dict[str, Any]  # as they stand in the event, without the result
    body: bytes  # the result as JSON


class _HttpResult(msgspec.Struct):
    """The result of an http task."""

    status: int
    headers: dict[str, Any]
    data: msgspec.Raw


def build_outcome(end: AttemptEnd, kind: str) -> TaskOutcome:
    """The canonical outcome of an attempt."""
    error = end.error
    facts = dict((error.facts if error is not None else None) or {})
    body = b"null" if end.result is None else end.result
    outcome: dict[str, Any] = {"status": "ok" if error is None else "error"}
    if error is None:
        facts = _http_helper(body) if kind == HTTP else {}
    elif "result" in facts:
        body = msgspec.json.encode(facts.pop("result"))
    for name in ("http", "pg", "py"):
        if (part := _helper(facts.get(name))) is not None:
            outcome[name] = part
    if error is not None:
        outcome["error"] = {
            "kind": facts["kind"] if isinstance(facts.get("kind"), str) else error.category,
            "retryable": error.retryable,
            "code": error.code,
            "message": error.message,
        }
        if (retry_after := facts.get("retryAfter")) is not None:
            outcome["error"]["retry_after"] = retry_after
    outcome["meta"] = {"attempt": end.attempt, "duration_ms": end.duration_ms}
    return TaskOutcome(outcome, body)


def _helper(part: Any) -> dict[str, Any] | None:
    """Facts that a tool reports with its outcome, as far as an event can hold them."""
    if not isinstance(part, dict):
        return None
    facts = cast("dict[str, Any]", part)
    body = msgspec.json.encode(facts)
    if len(body) > MAX_HELPER_SIZE:
        facts = {name: value for name, value in facts.items() if isinstance(value, int | bool)}
    return None if value_problem(body) is not None else facts


def _http_helper(body: bytes) -> dict[str, Any]:
    if b'"status"' not in body[:64]:
        return {}
    try:
        result = msgspec.json.decode(body, type=_HttpResult)
    except msgspec.MsgspecError:
        return {}
    return {"http": {"status": result.status, "headers": result.headers}}


def store_result(playbook: PlaybookContext, task: Task, path: EntityPath, attempt: int, body: bytes) -> PlacedResult:
    """Decide where the result is stored. If not inline, the value is stored before the events are appended."""
    run, policy = playbook.run, task.result
    address = ResultAddress(run.run.run_id, path, attempt)
    if run.execution.is_child and policy.store.scope is ResultScope.EXECUTION:
        store = replace(
            policy.store, scope=ResultScope.WORKFLOW
        )  # the parent reads the result after this run has ended
        policy = replace(policy, store=store)
    placed = place_result(policy, address, body, run.graph.store, run.now)
    if placed.ref is not None and placed.key is not None:
        run.pending_values[placed.key] = body
        run.values.cache.add(placed.ref.meta.sha256, msgspec.json.decode(body), len(body))
    return placed


def error_of(outcome: dict[str, Any]) -> ErrorInfo:
    """The error of a failed task, as its step reports it."""
    error: dict[str, Any] = outcome.get("error") or {}
    http: dict[str, Any] = outcome.get("http") or {}
    return ErrorInfo(
        str(error.get("code") or "TASK_FAILED"),
        str(error.get("message") or "The policy of the task declared it failed."),
        retryable=bool(error.get("retryable")),
        category=str(error.get("kind") or "user"),
        facts={"status": http["status"]} if isinstance(http.get("status"), int) else None,
    )
