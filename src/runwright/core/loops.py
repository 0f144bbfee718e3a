"""A loop as people see it: one step, and counts of its iterations."""

from __future__ import annotations

from runwright.contract import payloads
from runwright.contract.events import FoldableEvent
from runwright.contract.paths import parse_path
from runwright.contract.snapshot import IterationFailure

from .reading import read_payload
from .state import LoopCell, RunState

FIRST_FAILURES = 5


def loop_event(state: RunState, event: FoldableEvent) -> None:
    if not state.detailed:
        return
    path = event.step_id or ""
    place = parse_path(path)
    if place is None:
        return
    if event.event_type == "LoopStarted":
        earlier = state.loops.get(place.owner)
        payload = read_payload(payloads.LoopStarted, event)
        carried = payload.carried_over or 0
        if earlier is None or place.attempt > 1:
            state.loops[place.owner] = LoopCell(payload.total or 0, carried)
        return
    loop = state.loops.get(place.owner)
    if loop is None:
        return
    if event.event_type == "LoopIterationStarted":
        loop.running[path] = None
        return
    if path not in loop.running:
        return
    del loop.running[path]
    if event.event_type == "LoopIterationDone":
        loop.done += 1
        return
    loop.failed += 1
    if len(loop.failures) < FIRST_FAILURES and place.indexes:
        error = read_payload(payloads.LoopIteration, event).error
        loop.failures.append(IterationFailure(place.indexes[-1], error))


def loop_retry(state: RunState, event: FoldableEvent) -> None:
    """An iteration that will be tried again has not failed for good."""
    if not state.loops or (event.step_id or "")[-1:] != "]":
        return
    place = parse_path(event.step_id or "")
    loop = None if place is None else state.loops.get(place.owner)
    if loop is None or place is None or not loop.failed:
        return
    loop.failed -= 1
    loop.failures = [failure for failure in loop.failures if failure.index != place.indexes[-1]]
