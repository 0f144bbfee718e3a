"""Loops: what `foreach` steps of plans and loops of playbooks share. Their events are emitted by two modules:
`scheduling.foreach` and `playbook.loops`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from runwright.contract.refs import ErrorInfo
from runwright.core.fold.loop_state import DONE, FAILED, LoopState
from runwright.core.fold.payload_reader import StoredResult

from .context import SchedulingContext
from .stored_values import StoredValues, encode_item, inline_or_ref

_NO_RESULT = StoredResult()


class LoopItems(msgspec.Struct, frozen=True):
    """The items of a loop, as they are stored with its start."""

    total: int
    field: str  # `items` or `itemsRef`
    body: bytes  # the value of that field

    @property
    def stored(self) -> StoredResult:
        if self.field == "items":
            return StoredResult(self.body)
        return StoredResult(ref=msgspec.json.decode(self.body))

    def payload(self) -> dict[str, Any]:
        return {"total": self.total, self.field: msgspec.Raw(self.body)}


def store_items(context: SchedulingContext, items: list[Any], body: bytes) -> LoopItems:
    """Fix the items of a loop: inline, or by reference with the value to be stored before the append."""
    field, value = inline_or_ref("items", body, context.pending_values)
    if field == "itemsRef":
        context.values.cache.add(msgspec.json.decode(value)["sha256"], items, len(body))
    return LoopItems(len(items), field, value)


def loop_items(values: StoredValues, loop: LoopState) -> list[Any]:
    """The items of a started loop. Raises MissingValues if they must be fetched."""
    if loop.decoded_items is None:
        loop.decoded_items = values.load(loop.items)
    return loop.decoded_items or []


def is_full(loop: LoopState, limit: int) -> bool:
    """Whether as many iterations are in flight as may be."""
    return len(loop.running_since) + len(loop.unclaimed_attempts) >= limit


def next_iteration(loop: LoopState, is_waiting: Callable[[int], bool] | None = None) -> int | None:
    """The next iteration to start; None if all were started. `is_waiting`: it waits for a retry, which starts it."""
    while loop.next_index < loop.total:
        index = loop.next_index
        if not loop.statuses[index] and not (is_waiting is not None and is_waiting(index)):
            return index
        loop.next_index += 1
    return None


def loop_error(loop: LoopState) -> ErrorInfo:
    first = loop.first_failure
    error = None if first is None else first.error
    position = "" if first is None else f"; the first is {first.index}"
    cause = "" if error is None else f": {error.code} {error.message}"
    message = f"{loop.failed} of {loop.total} iterations failed{position}{cause}"
    return ErrorInfo("ITERATIONS_FAILED", message, retryable=False, category="user")


def collect_results(loop: LoopState) -> bytes:
    """The results of all iterations in order, as JSON. A result stored by reference stays a reference."""
    parts = [encode_item(loop.results.get(index, _NO_RESULT)) for index in range(loop.total)]
    assert all(state in (DONE, FAILED) for state in loop.statuses), "a loop ends when all of its iterations have"
    return b"[" + b",".join(parts) + b"]"
