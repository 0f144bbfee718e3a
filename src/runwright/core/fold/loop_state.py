"""State of a running loop, as its driver needs it: the status and result of every iteration."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import msgspec

from runwright.contract import payloads
from runwright.contract.events import FoldableEvent
from runwright.contract.paths import EntityPath, parse_path

from .payload_reader import NOTHING, StoredResult, micros_or_zero, read_payload, result_of

CTX_CONFLICT = "CTX_CONFLICT"
"""Two iterations of a parallel loop set the same key of `ctx`. This error fails the step even if another iteration
failed before."""

RUNNING, DONE, FAILED, SCHEDULED = 1, 2, 3, 4  # status of an iteration; 0 = not scheduled yet


class LoopState(msgspec.Struct):
    """A running foreach step or playbook loop, by iteration."""

    attempt: int  # of the step
    total: int
    items: StoredResult
    statuses: bytearray  # status of each iteration
    attempts: dict[int, int] = {}  # iterations beyond their first attempt
    results: dict[int, StoredResult] = {}
    running_since: dict[int, int] = {}  # index -> start in microseconds since 1970
    unclaimed_attempts: dict[int, int] = {}  # index -> attempt that workers may claim and none has claimed
    done: int = 0
    failed: int = 0
    first_failure: payloads.LoopIteration | None = None
    next_index: int = 0  # every iteration before it was scheduled or needs no scheduling
    decoded_items: list[Any] | None = None  # `items`, decoded
    max_in_flight: int = 0  # of a playbook's loop: iterations in flight at once


class LoopFields(Protocol):
    """The members of ExecutionState that folding a loop reads and writes."""

    loops: dict[str, LoopState]
    retry_at: dict[str, int]

    @property
    def playbook(self) -> object | None: ...

    def stores_result_of(self, step_id: str) -> bool: ...


def _without_preview(stored: StoredResult) -> StoredResult:
    """Drop the preview of a reference to save memory: a loop can have very many iterations."""
    if stored.ref is None or "preview" not in stored.ref:
        return stored
    return StoredResult(None, {name: part for name, part in stored.ref.items() if name != "preview"}, stored.extracted)


class _LoopStart(payloads.Payload, frozen=True):
    total: int = 0
    items: msgspec.Raw = NOTHING
    items_ref: dict[str, Any] | None = None
    max_in_flight: int = 0


def _on_loop_started(execution: LoopFields, event: FoldableEvent) -> None:
    path = parse_path(event.step_id or "")
    if path is None:
        return
    payload = read_payload(_LoopStart, event)
    items = StoredResult(bytes(payload.items) or None, payload.items_ref)
    earlier = execution.loops.get(path.owner)
    loop = LoopState(path.attempt, payload.total, items, bytearray(payload.total), max_in_flight=payload.max_in_flight)
    if earlier is not None and earlier.items == items and earlier.total == loop.total:
        # Iterations that an earlier attempt of the step completed over the same items are not executed again.
        for index, status in enumerate(earlier.statuses):
            if status == DONE:
                loop.statuses[index] = DONE
        loop.results, loop.done = earlier.results, earlier.done
    execution.loops[path.owner] = loop


def _on_iteration_event(execution: LoopFields, event: FoldableEvent) -> None:
    """Fold an event of an iteration, unless it is of another attempt of the step or the iteration is done."""
    path = parse_path(event.step_id or "")
    loop = None if path is None else execution.loops.get(path.owner)
    if path is None or loop is None or not path.indexes or path.indexes[0] >= loop.total:
        return
    if path.attempt != loop.attempt or loop.statuses[path.indexes[0]] == DONE:
        return
    _ITERATION_HANDLERS[event.event_type](execution, loop, path, event)


def _on_iteration_scheduled(execution: LoopFields, loop: LoopState, path: EntityPath, event: FoldableEvent) -> None:
    index = path.indexes[0]
    loop.statuses[index] = SCHEDULED
    loop.unclaimed_attempts[index] = event.logical_attempt_id
    execution.retry_at.pop(event.step_id or "", None)


def _on_iteration_started(execution: LoopFields, loop: LoopState, path: EntityPath, event: FoldableEvent) -> None:
    index = path.indexes[0]
    loop.unclaimed_attempts.pop(index, None)
    loop.statuses[index] = RUNNING
    loop.running_since[index] = micros_or_zero(event.emitted_at)
    execution.retry_at.pop(event.step_id or "", None)
    if event.logical_attempt_id > 1:
        loop.attempts[index] = event.logical_attempt_id


def _on_iteration_done(execution: LoopFields, loop: LoopState, path: EntityPath, event: FoldableEvent) -> None:
    index = path.indexes[0]
    loop.unclaimed_attempts.pop(index, None)
    loop.running_since.pop(index, None)
    loop.statuses[index] = DONE
    loop.done += 1
    if execution.playbook is None or execution.stores_result_of(path.step):
        loop.results[index] = _without_preview(result_of(event))


def _on_iteration_failed(_execution: LoopFields, loop: LoopState, path: EntityPath, event: FoldableEvent) -> None:
    index = path.indexes[0]
    loop.unclaimed_attempts.pop(index, None)
    loop.running_since.pop(index, None)
    loop.statuses[index] = FAILED
    loop.failed += 1
    failure = read_payload(payloads.LoopIteration, event)
    if loop.first_failure is None or (failure.error is not None and failure.error.code == CTX_CONFLICT):
        loop.first_failure = failure


def _on_retry_scheduled(execution: LoopFields, event: FoldableEvent) -> None:
    """Reset a failed iteration that will be retried."""
    path = parse_path(event.step_id or "")
    if path is None or not path.indexes or (loop := execution.loops.get(path.step)) is None:
        return
    index = path.indexes[0]
    if index < loop.total and loop.statuses[index] == FAILED:
        loop.statuses[index] = 0
        loop.failed -= 1
        if loop.first_failure is not None and loop.first_failure.index == index:
            loop.first_failure = None


_ITERATION_HANDLERS: dict[str, Callable[[LoopFields, LoopState, EntityPath, FoldableEvent], None]] = {
    "LoopIterationScheduled": _on_iteration_scheduled,
    "LoopIterationStarted": _on_iteration_started,
    "LoopIterationDone": _on_iteration_done,
    "LoopIterationFailed": _on_iteration_failed,
}

HANDLERS: dict[str, Callable[[LoopFields, FoldableEvent], None]] = {
    "StepRetryScheduled": _on_retry_scheduled,
    "LoopStarted": _on_loop_started,
    **dict.fromkeys(_ITERATION_HANDLERS, _on_iteration_event),
}
