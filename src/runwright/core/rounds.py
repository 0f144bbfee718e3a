"""Loops of a playbook: the same pipeline for each of a list, one after another or several at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from runwright.contract import payloads
from runwright.contract.envelope import value_trouble
from runwright.contract.errors import ErrorCode, RunwrightError
from runwright.contract.paths import EntityPath, parse_path
from runwright.contract.plan import StepClass
from runwright.contract.playbook import FailureMode, Strategy
from runwright.contract.refs import ErrorInfo

from .expressions import evaluate, fill
from .looping import gathered, loop_error
from .loopwork import CTX_CONFLICT, LoopWork
from .playnet import Station
from .playwork import size_of
from .refer import placed
from .room import Room
from .sandbox.kinds import is_whole

if TYPE_CHECKING:
    from .decide import Decider

MOST_IN_FLIGHT = 10_000


class LoopEnd(msgspec.Struct):
    took_ms: float | None
    counts: dict[str, Any]
    result: dict[str, Any] = {}
    gathered: bytes | None = None  # the same, as JSON
    manifest: dict[str, Any] | None = None  # where results lie elsewhere: what there is of them
    error: ErrorInfo | None = None


def start_rounds(decider: Decider, station: Station, path: str, args: dict[str, Any]) -> None:
    loop = station.route.loop
    assert loop is not None
    try:
        scope = decider.scope.of_step(station.loop, args)
        items = evaluate(loop.items, scope) if isinstance(loop.items, str) else fill(loop.items, scope)
        if not isinstance(items, list):
            raise RunwrightError(ErrorCode.EXPRESSION_ERROR, f"loop.in needs a list; this is {type(items).__name__}.")
        limit = _limit(loop.max_in_flight, scope) if loop.parallel else 1
        body = msgspec.json.encode(items)
        if (trouble := value_trouble(body)) is not None:
            raise RunwrightError(ErrorCode.RESULT_NOT_STORABLE, f"loop.in {trouble}.")
    except RunwrightError as error:
        decider.say("StepStarted", path, 1, payloads.StepStarted())
        decider.fail(path, 1, error.code, error.detail)
        return
    decider.say("StepStarted", path, 1, payloads.StepStarted())
    name, where = placed("items", body, decider.blobs)
    if name == "itemsRef":
        decider.values.at_hand.add(msgspec.json.decode(where)["sha256"], items, len(body))
    total = len(items)  # pyright: ignore[reportUnknownArgumentType]
    decider.say("LoopStarted", path, 1, {"total": total, "maxInFlight": limit, name: msgspec.Raw(where)})


def _limit(given: int | str, scope: dict[str, Any]) -> int:
    value = evaluate(given, scope) if isinstance(given, str) else given
    is_text = isinstance(value, str) and value.isdecimal() and len(value) < 10  # parameters come as text
    number = int(value) if is_text or is_whole(value) else 0
    if not 1 <= number <= MOST_IN_FLIGHT:
        raise RunwrightError(
            ErrorCode.EXPRESSION_ERROR, f"`max_in_flight` must be a whole number from 1 to {MOST_IN_FLIGHT:,}."
        )
    return number


def is_stopped(station: Station, loop: LoopWork) -> bool:
    """Whether no more iterations are to begin."""
    if not loop.failed:
        return False
    return station.route.failure is FailureMode.FAIL_FAST or _conflict(loop) is not None


def _conflict(loop: LoopWork) -> ErrorInfo | None:
    error = None if loop.first_failure is None else loop.first_failure.error
    return error if error is not None and error.code == CTX_CONFLICT else None


def hand_out(
    decider: Decider, station: Station, path: str, loop: LoopWork, room: Room, begin: Callable[[str], None]
) -> bool:
    """Hand out as many iterations as may be; False if some wait for room. `begin` begins one."""
    place = parse_path(path)
    assert place is not None
    while loop.next_index < loop.total and not is_stopped(station, loop):
        index = loop.next_index
        if loop.states[index]:
            loop.next_index += 1
            continue
        if len(loop.running) + len(loop.scheduled) >= loop.limit:
            return True
        needs_room = station.labels and station.queue is None
        if room.closed or (needs_room and not room.has(StepClass.LIGHT)):
            room.refuse(StepClass.LIGHT)
            return False
        decider.scope.items(loop)  # they may have to be fetched
        each = str(EntityPath(place.step, place.visit, indexes=(index,)))
        decider.say("LoopIterationScheduled", each, 1, payloads.LoopIteration(index, queue=station.queue))
        loop.next_index += 1
        begin(each)
    return True


def _manifest(loop: LoopWork) -> dict[str, Any] | None:
    results = loop.results.values()
    if all(stored.ref is None for stored in results):
        return None
    total_bytes = sum(map(size_of, results))
    return {"kind": "manifest", "strategy": Strategy.APPEND, "total_parts": len(results), "total_bytes": total_bytes}


def end_of(decider: Decider, station: Station, path: str, loop: LoopWork) -> LoopEnd | None:
    """How all of it has ended; None if it has not. Says nothing yet: values may have to be fetched."""
    if loop.running or (loop.done + loop.failed < loop.total and not is_stopped(station, loop)):
        return None
    name, counts = station.node.step.step_id, {"total": loop.total, "done": loop.done, "failed": loop.failed}
    end = LoopEnd(decider.since(decider.state.steps[path].started_at), counts)
    if loop.failed and is_stopped(station, loop):
        end.error = _conflict(loop) or loop_error(loop)
    elif decider.work.wants(name):
        body = gathered(loop)
        end.gathered = body
        field, where = placed("result", body, decider.blobs)
        end.result = {field: msgspec.Raw(where)}
        end.manifest = _manifest(loop)
    else:
        end.result = {"result": counts}
    return end


def own_results(decider: Decider, station: Station, end: LoopEnd) -> dict[str, Any]:
    """What the iterations came to, where the arcs of the loop itself mention it. May want values fetched."""
    name = station.node.step.step_id
    if name not in station.arcs or end.gathered is None:
        return {}
    return {name: decider.values.parts(msgspec.json.decode(end.gathered))}


def unbegun(decider: Decider) -> list[str]:
    """Iterations that were handed out in an earlier life of the run, and have not begun."""
    return [
        str(msgspec.structs.replace(place, indexes=(index,)))
        for path, loop in decider.work.loops.items()
        if loop.scheduled and (place := parse_path(path)) is not None
        for index in loop.scheduled
    ]
