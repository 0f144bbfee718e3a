"""A foreach step under way, as its driver needs it: what each iteration came to, folded from the log."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from runwright.contract import payloads
from runwright.contract.events import FoldableEvent
from runwright.contract.paths import parse_path
from runwright.contract.timestamps import is_utc, to_micros

from .reading import read_payload

if TYPE_CHECKING:
    from .workings import Workings

NOTHING = msgspec.Raw()

CTX_CONFLICT = "CTX_CONFLICT"
"""Two iterations of a parallel loop set the same key: whatever else failed, this fails the step."""

RUNNING, DONE, FAILED, SCHEDULED = 1, 2, 3, 4  # what has become of an iteration; 0 = nothing yet


class StoredResult(msgspec.Struct, frozen=True):
    """A result as an event carries it: the value's JSON, or where it is kept."""

    raw: bytes | None = None
    ref: dict[str, Any] | None = None
    extracted: dict[str, Any] = {}
    """Fields of it that a playbook selects; those of a reference stand in it."""


class LoopWork(msgspec.Struct):
    """A foreach step under way, by iteration."""

    attempt: int  # of the step
    total: int
    items: StoredResult
    states: bytearray
    attempts: dict[int, int] = {}  # iterations beyond their first attempt
    results: dict[int, StoredResult] = {}
    running: dict[int, int] = {}  # since when
    scheduled: dict[int, int] = {}  # attempts that workers may take, and none has
    done: int = 0
    failed: int = 0
    first_failure: payloads.LoopIteration | None = None
    next_index: int = 0  # everything before it was handed out, or need not be
    listed: list[Any] | None = None  # `items`, decoded
    limit: int = 0  # of a playbook's loop: iterations at once


def moment(text: str | None) -> int:
    return to_micros(text) if text is not None and is_utc(text) else 0


class _Result(payloads.Payload, frozen=True):
    """Where an end event has its result, left undecoded."""

    result: msgspec.Raw = NOTHING
    result_ref: dict[str, Any] | None = None
    extracted: dict[str, Any] = msgspec.field(default_factory=dict[str, Any])


def result_of(event: FoldableEvent) -> StoredResult:
    payload = read_payload(_Result, event)
    return stored_result(bytes(payload.result) or None, payload.result_ref, payload.extracted)


def stored_result(raw: bytes | None, ref: dict[str, Any] | None, extracted: dict[str, Any]) -> StoredResult:
    if ref is None:
        return StoredResult(raw, None, extracted)
    inside: Any = ref.get("extracted")
    return StoredResult(raw, ref, inside if isinstance(inside, dict) else {})  # pyright: ignore[reportUnknownArgumentType]


def _without_preview(stored: StoredResult) -> StoredResult:
    """There may be very many of them."""
    if stored.ref is None or "preview" not in stored.ref:
        return stored
    return StoredResult(None, {name: part for name, part in stored.ref.items() if name != "preview"}, stored.extracted)


class _LoopStart(payloads.Payload, frozen=True):
    total: int = 0
    items: msgspec.Raw = NOTHING
    items_ref: dict[str, Any] | None = None
    max_in_flight: int = 0


def loop_started(work: Workings, event: FoldableEvent) -> None:
    place = parse_path(event.step_id or "")
    if place is None:
        return
    payload = read_payload(_LoopStart, event)
    items = StoredResult(bytes(payload.items) or None, payload.items_ref)
    earlier = work.loops.get(place.owner)
    loop = LoopWork(place.attempt, payload.total, items, bytearray(payload.total), limit=payload.max_in_flight)
    if earlier is not None and earlier.items == items and earlier.total == loop.total:
        for index, state in enumerate(earlier.states):  # what an earlier attempt did need not be done again
            if state == DONE:
                loop.states[index] = DONE
        loop.results, loop.done = earlier.results, earlier.done
    work.loops[place.owner] = loop


def iteration(work: Workings, event: FoldableEvent) -> None:
    place = parse_path(event.step_id or "")
    loop = None if place is None else work.loops.get(place.owner)
    if place is None or loop is None or not place.indexes or place.indexes[0] >= loop.total:
        return
    index = place.indexes[0]
    if place.attempt != loop.attempt or loop.states[index] == DONE:
        return
    if event.event_type == "LoopIterationScheduled":
        loop.states[index] = SCHEDULED
        loop.scheduled[index] = event.logical_attempt_id
        work.retry_at.pop(event.step_id or "", None)
        return
    loop.scheduled.pop(index, None)
    if event.event_type == "LoopIterationStarted":
        loop.states[index] = RUNNING
        loop.running[index] = moment(event.emitted_at)
        work.retry_at.pop(event.step_id or "", None)
        if event.logical_attempt_id > 1:
            loop.attempts[index] = event.logical_attempt_id
        return
    loop.running.pop(index, None)
    if event.event_type == "LoopIterationDone":
        loop.states[index] = DONE
        loop.done += 1
        if work.play is None or work.wants(place.step):
            loop.results[index] = _without_preview(result_of(event))
        return
    loop.states[index] = FAILED
    loop.failed += 1
    failure = read_payload(payloads.LoopIteration, event)
    if loop.first_failure is None or (failure.error is not None and failure.error.code == CTX_CONFLICT):
        loop.first_failure = failure
