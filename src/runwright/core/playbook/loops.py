"""Loops of a playbook: the same pipeline for each item of a list, sequentially or in parallel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from runwright.contract import payloads
from runwright.contract.envelope import value_problem
from runwright.contract.errors import ErrorCode, RunwrightError
from runwright.contract.paths import EntityPath, parse_path
from runwright.contract.plan import StepClass
from runwright.contract.playbook import FailureMode, ManifestStrategy
from runwright.contract.refs import ErrorInfo
from runwright.core.expressions.template import evaluate, evaluate_all
from runwright.core.expressions.value_types import is_integer
from runwright.core.fold.loop_state import CTX_CONFLICT, LoopState
from runwright.core.fold.playbook_state import size_of
from runwright.core.graph.playbook_graph import PlaybookStep
from runwright.core.scheduling.context import Capacity
from runwright.core.scheduling.loops import (
    collect_results,
    is_full,
    loop_error,
    loop_items,
    next_iteration,
    store_items,
)
from runwright.core.scheduling.stored_values import inline_or_ref

from .context import PlaybookContext

MAX_IN_FLIGHT = 10_000


class LoopEnd(msgspec.Struct):
    duration_ms: float | None
    counts: dict[str, Any]
    result: dict[str, Any] = {}  # the payload field with the result
    collected: bytes | None = None  # the collected results as JSON
    manifest: dict[str, Any] | None = None  # describes results that are stored by reference
    error: ErrorInfo | None = None


def start_loop(playbook: PlaybookContext, step: PlaybookStep, path: str, args: dict[str, Any]) -> None:
    run, loop = playbook.run, step.route.loop
    assert loop is not None
    try:
        scope = playbook.scope.of_step(step.loop_mentions, args)
        items = evaluate(loop.items, scope) if isinstance(loop.items, str) else evaluate_all(loop.items, scope)
        if not isinstance(items, list):
            raise RunwrightError(ErrorCode.EXPRESSION_ERROR, f"loop.in needs a list; this is {type(items).__name__}.")
        limit = _limit(loop.max_in_flight, scope) if loop.parallel else 1
        body = msgspec.json.encode(items)
        if (problem := value_problem(body)) is not None:
            raise RunwrightError(ErrorCode.RESULT_NOT_STORABLE, f"loop.in {problem}.")
    except RunwrightError as error:
        run.emit("StepStarted", path, 1, payloads.StepStarted())
        run.fail_step(path, 1, error.code, error.detail)
        return
    run.emit("StepStarted", path, 1, payloads.StepStarted())
    stored = store_items(run, items, body)  # pyright: ignore[reportUnknownArgumentType]
    run.emit("LoopStarted", path, 1, {"total": stored.total, "maxInFlight": limit, **stored.payload()})


def _limit(max_in_flight: int | str, scope: dict[str, Any]) -> int:
    value = evaluate(max_in_flight, scope) if isinstance(max_in_flight, str) else max_in_flight
    is_text = isinstance(value, str) and value.isdecimal() and len(value) < 10  # parameters of the command line
    number = int(value) if is_text or is_integer(value) else 0
    if not 1 <= number <= MAX_IN_FLIGHT:
        message = f"`max_in_flight` must be a whole number from 1 to {MAX_IN_FLIGHT:,}."
        raise RunwrightError(ErrorCode.EXPRESSION_ERROR, message)
    return number


def is_stopped(step: PlaybookStep, loop: LoopState) -> bool:
    """Whether no more iterations start."""
    if not loop.failed:
        return False
    return step.route.failure is FailureMode.FAIL_FAST or _ctx_conflict(loop) is not None


def _ctx_conflict(loop: LoopState) -> ErrorInfo | None:
    error = None if loop.first_failure is None else loop.first_failure.error
    return error if error is not None and error.code == CTX_CONFLICT else None


def schedule_iterations(
    playbook: PlaybookContext,
    step: PlaybookStep,
    path: EntityPath,
    loop: LoopState,
    capacity: Capacity,
    start: Callable[[str], None],
) -> bool:
    """Schedule as many iterations as the limits allow, and `start` each. False if some wait for capacity, or for the
    next decision."""
    while not is_stopped(step, loop) and (index := next_iteration(loop)) is not None:
        if is_full(loop, loop.max_in_flight):
            return True
        if playbook.run.cost.is_spent:
            return False
        needs_slot = step.labels and step.queue is None
        if capacity.closed or (needs_slot and not capacity.has(StepClass.LIGHT)):
            capacity.mark_short(StepClass.LIGHT)
            return False
        loop_items(playbook.run.values, loop)  # they may have to be fetched
        iteration = str(EntityPath(path.step, path.visit, indexes=(index,)))
        scheduled = payloads.LoopIteration(index, queue=step.queue)
        playbook.run.emit("LoopIterationScheduled", iteration, 1, scheduled)
        loop.next_index += 1
        start(iteration)
    return True


def _manifest(loop: LoopState) -> dict[str, Any] | None:
    results = loop.results.values()
    if all(stored.ref is None for stored in results):
        return None
    total_bytes = sum(map(size_of, results))
    return {
        "kind": "manifest",
        "strategy": ManifestStrategy.APPEND,
        "total_parts": len(results),
        "total_bytes": total_bytes,
    }


def loop_end(playbook: PlaybookContext, step: PlaybookStep, path: str, loop: LoopState) -> LoopEnd | None:
    """How the loop ended; None while it runs. Emits nothing: values may have to be fetched first."""
    if loop.running_since or (loop.done + loop.failed < loop.total and not is_stopped(step, loop)):
        return None
    run, name = playbook.run, step.node.step.step_id
    counts = {"total": loop.total, "done": loop.done, "failed": loop.failed}
    end = LoopEnd(run.ms_since(run.state.steps[path].started_at), counts)
    if loop.failed and is_stopped(step, loop):
        end.error = _ctx_conflict(loop) or loop_error(loop)
    elif run.execution.stores_result_of(name):
        end.collected = collect_results(loop)
        field, value = inline_or_ref("result", end.collected, run.pending_values)
        end.result = {field: msgspec.Raw(value)}
        end.manifest = _manifest(loop)
    else:
        end.result = {"result": counts}
    return end


def collected_results(playbook: PlaybookContext, step: PlaybookStep, end: LoopEnd) -> dict[str, Any]:
    """The results of the loop under its name, if its own arcs use them. Raises MissingValues to have them fetched."""
    name = step.node.step.step_id
    if name not in step.arc_mentions or end.collected is None:
        return {}
    return {name: playbook.run.values.load_items(msgspec.json.decode(end.collected))}


def scheduled_iterations(playbook: PlaybookContext) -> list[str]:
    """Iterations that were scheduled before a recovery and have not started."""
    return [
        str(msgspec.structs.replace(parsed, indexes=(index,)))
        for path, loop in playbook.run.execution.loops.items()
        if loop.unclaimed_attempts and (parsed := parse_path(path)) is not None
        for index in loop.unclaimed_attempts
    ]
