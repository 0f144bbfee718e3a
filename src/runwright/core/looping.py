"""`foreach`: one step, many iterations. What it goes over is fixed when it starts, and kept with its start."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from runwright.contract import payloads
from runwright.contract.errors import ErrorCode, RunwrightError
from runwright.contract.paths import EntityPath, parse_path
from runwright.contract.refs import ErrorInfo

from .loopwork import DONE, FAILED, RUNNING, LoopWork, StoredResult
from .node import Node
from .reading import read_payload
from .refer import gathered_part, placed
from .room import Room
from .values import Missing
from .waiting import TOO_LATE, may_retry

if TYPE_CHECKING:
    from .decide import Decider

_NO_RESULT = StoredResult()


def start_loop(decider: Decider, node: Node, attempt: int, started: payloads.StepStarted | None) -> None:
    step_id = node.step.step_id
    try:
        items = decider.values.items(node)
        if not isinstance(items, list):
            raise RunwrightError(ErrorCode.EXPRESSION_ERROR, f"foreach needs a list; this is {type(items).__name__}.")
    except RunwrightError as error:
        decider.say("StepStarted", step_id, attempt, started)
        decider.fail(step_id, attempt, error.code, error.detail)
        return
    decider.say("StepStarted", step_id, attempt, started)
    body = msgspec.json.encode(items)
    name, where = placed("items", body, decider.blobs)
    if name == "itemsRef":
        decider.values.at_hand.add(msgspec.json.decode(where)["sha256"], items, len(body))
    total = len(items)  # pyright: ignore[reportUnknownArgumentType]
    earlier = decider.work.loops.get(step_id)
    stored = StoredResult(body) if name == "items" else StoredResult(ref=msgspec.json.decode(where))
    carried = earlier.done if earlier is not None and earlier.items == stored else 0
    path = str(EntityPath(step_id, attempt=attempt))
    payload = {"total": total, name: msgspec.Raw(where), **({"carriedOver": carried} if carried else {})}
    decider.say("LoopStarted", path, 1, payload)
    decider.loops[node.index] = None


def go_on_with_loops(decider: Decider, room: Room) -> None:
    """Hand out iterations, and end the loops that have no more."""
    retry_iterations(decider)
    waiting = len(decider.due_iterations)
    for _ in range(waiting):
        _take_up_again(decider, decider.due_iterations.popleft(), room)
    for index in list(decider.loops):
        node = decider.net.nodes[index]
        loop = decider.work.loops[node.step.step_id]
        try:
            _hand_out(decider, node, loop, room)
        except Missing as missing:
            decider.missing |= missing.refs
            continue
        except RunwrightError as error:  # what it goes over is gone
            if not loop.running:
                counts = payloads.LoopCounts(loop.total, loop.done, loop.failed, step_failed=True)
                decider.say("LoopDone", str(EntityPath(node.step.step_id, attempt=loop.attempt)), 1, counts)
                decider.fail(node.step.step_id, loop.attempt, error.code, error.detail)
            continue
        _end_if_done(decider, node, loop)


def retry_iterations(decider: Decider) -> None:
    """Schedule the retries that policy asks for; also while the run is paused, or they would be forgotten."""
    if not decider.failed_iterations:
        return
    failed, decider.failed_iterations = decider.failed_iterations, []
    for event in failed:
        place = parse_path(event.step_id or "")
        node = None if place is None else decider.net.node(place.step)
        if node is None:
            continue
        error = read_payload(payloads.LoopIteration, event).error
        if may_retry(error, event.logical_attempt_id, node.step.retry):
            decider.schedule_retry(event.step_id or "", event.logical_attempt_id, node.step.retry)


def end_wait(decider: Decider, path: str) -> None:
    """An iteration that only waited has done so."""
    place = parse_path(path)
    late = path in decider.work.late
    decider.work.due_at.pop(path, None)
    loop = None if place is None else decider.work.loops.get(place.step)
    if place is None or loop is None or loop.attempt != place.attempt or loop.states[place.indexes[0]] != RUNNING:
        return
    index = place.indexes[0]
    attempt, took = loop.attempts.get(index, 1), max(0, decider.now - loop.running[index]) / 1000
    if late:
        decider.say(
            "LoopIterationFailed", path, attempt, payloads.LoopIteration(index, duration_ms=took, error=TOO_LATE)
        )
    else:
        decider.say("LoopIterationDone", path, attempt, payloads.LoopIteration(index, duration_ms=took))


def _take_up_again(decider: Decider, path: str, room: Room) -> None:
    """An iteration that is to be tried again."""
    place = parse_path(path)
    loop = None if place is None else decider.work.loops.get(place.step)
    node = None if place is None else decider.net.node(place.step)
    if place is None or loop is None or node is None or loop.attempt != place.attempt:
        return
    index = place.indexes[0]
    attempt = loop.attempts.get(index, 1)
    assert node.step.foreach is not None
    if loop.failed:
        return
    full = len(loop.running) + len(loop.scheduled) >= node.step.foreach.max_parallel
    if full or (node.queue is None and not room.take(node.step.step_class)):
        decider.due_iterations.append(path)
        return
    _begin(decider, node, path, attempt + 1, index)


def _hand_out(decider: Decider, node: Node, loop: LoopWork, room: Room) -> None:
    assert node.step.foreach is not None
    step_id, limit = node.step.step_id, node.step.foreach.max_parallel
    while loop.next_index < loop.total and not loop.failed:
        index = loop.next_index
        path = str(EntityPath(step_id, attempt=loop.attempt, indexes=(index,)))
        if loop.states[index] or path in decider.work.retry_at:
            loop.next_index += 1
            continue
        if len(loop.running) + len(loop.scheduled) >= limit:
            return
        items_of(decider, loop)  # before room is taken: they may have to be fetched
        if node.queue is None and not room.take(node.step.step_class):
            return
        _begin(decider, node, path, 1, index)
        loop.next_index += 1
        decider.seam()


def _begin(decider: Decider, node: Node, path: str, attempt: int, index: int) -> None:
    if node.queue is None:
        decider.say("LoopIterationStarted", path, attempt, payloads.LoopIteration(index))
    else:
        decider.say("LoopIterationScheduled", path, attempt, payloads.LoopIteration(index, queue=node.queue))


def items_of(decider: Decider, loop: LoopWork) -> list[Any]:
    if loop.listed is None:
        loop.listed = decider.values.of(loop.items)
    return loop.listed or []


def _end_if_done(decider: Decider, node: Node, loop: LoopWork) -> None:
    step_id = node.step.step_id
    if loop.running or (loop.done < loop.total and not loop.failed):
        return
    path = str(EntityPath(step_id, attempt=loop.attempt))
    counts = payloads.LoopCounts(loop.total, loop.done, loop.failed, step_failed=loop.failed > 0)
    decider.say("LoopDone", path, 1, counts)
    cell = decider.state.steps[step_id]
    took = decider.since(cell.started_at)
    if loop.failed:
        decider.say("StepFailed", step_id, cell.attempt, payloads.StepFailed(loop_error(loop), took))
        return
    name, where = placed("result", gathered(loop), decider.blobs)
    decider.say("StepCompleted", step_id, cell.attempt, {name: msgspec.Raw(where), "durationMs": took})


def loop_error(loop: LoopWork) -> ErrorInfo:
    first = loop.first_failure
    error = None if first is None else first.error
    place = "" if first is None else f"; the first is {first.index}"
    why = "" if error is None else f": {error.code} {error.message}"
    message = f"{loop.failed} of {loop.total} iterations failed{place}{why}"
    return ErrorInfo("ITERATIONS_FAILED", message, retryable=False, category="user")


def gathered(loop: LoopWork) -> bytes:
    """The results of all iterations, in order. One that was put aside stays a reference."""
    parts = [gathered_part(loop.results.get(index, _NO_RESULT)) for index in range(loop.total)]
    assert all(state in (DONE, FAILED) for state in loop.states), "a loop ends when all of it has"
    return b"[" + b",".join(parts) + b"]"
