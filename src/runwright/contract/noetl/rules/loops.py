"""Rules for loops: each iteration is scheduled, started and ended once within the loop, and the counts add up."""

from __future__ import annotations

from .event import CheckedEvent, FindingCollector
from .history import CheckedExecution, CheckedIteration, CheckedLoop
from .locate import EventLocation, iteration_index


def check_loop_started(
    findings: FindingCollector, execution: CheckedExecution, location: EventLocation, event: CheckedEvent
) -> None:
    visit = location.visit
    if visit is None:
        return
    if not visit.is_running:
        findings.add("NOT_STARTED", "A loop started in a step that is not running.")
    state = None if visit.loop is None else visit.loop.state
    if state == "started" or (state == "done" and execution.is_playbook):
        findings.add("STARTED_TWICE", "The loop of this step run was already started.")
    max_in_flight = _count(event, "maxInFlight") or _count(event, "max_in_flight")
    visit.loop = CheckedLoop("started", event.entity_id, total=_count(event, "total"), max_in_flight=max_in_flight)


def check_iteration_scheduled(
    findings: FindingCollector, execution: CheckedExecution, location: EventLocation, _event: CheckedEvent
) -> None:
    if (found := _loop_and_iteration(findings, location)) is None:
        return
    loop, iteration = found
    if iteration.state is not None and execution.is_playbook:
        findings.add("SCHEDULED_TWICE", f"The iteration was already scheduled and is {iteration.state}.")
        return
    loop.set_state(iteration, "scheduled")
    if loop.total is not None and iteration.index is not None and iteration.index >= loop.total:
        findings.add("ITERATION", f"Iteration {iteration.index} is out of range: the loop has {loop.total} iterations.")


def check_iteration_started(
    findings: FindingCollector, execution: CheckedExecution, location: EventLocation, _event: CheckedEvent
) -> None:
    if (found := _loop_and_iteration(findings, location)) is None:
        return
    loop, iteration = found
    if iteration.state == "started" or (execution.is_playbook and iteration.state in ("done", "failed")):
        findings.add("STARTED_TWICE", "The iteration was already started.")
    elif iteration.state is None and execution.is_playbook:
        findings.add("NOT_SCHEDULED", "The iteration started without being scheduled.")
    loop.set_state(iteration, "started")
    running = loop.state_counts["started"]
    if execution.is_playbook and loop.max_in_flight is not None and running > loop.max_in_flight:
        findings.add("IN_FLIGHT", f"{running} iterations are running; the loop allows {loop.max_in_flight} at once.")


def check_iteration_ended(
    findings: FindingCollector, execution: CheckedExecution, location: EventLocation, event: CheckedEvent
) -> None:
    if (found := _loop_and_iteration(findings, location)) is None:
        return
    loop, iteration = found
    if iteration.state in ("done", "failed"):
        findings.add("ENDED_TWICE", "The iteration had already ended.")
    elif iteration.state != "started":
        findings.add("NOT_STARTED", "The iteration ended but was not running.")
    if execution.is_playbook:
        _check_pipeline(findings, iteration, event)
    loop.set_state(iteration, event.verb)


def _check_pipeline(findings: FindingCollector, iteration: CheckedIteration, event: CheckedEvent) -> None:
    if iteration.pipeline.is_open:
        findings.add("TASK_OPEN", "The iteration ended while one of its tasks was still running.")
    if event.verb == "failed":
        return
    if iteration.pipeline.is_failed:
        findings.add("OUTCOME", "The iteration succeeded although its last task failed.")
    if iteration.pipeline.has_pending_jump:
        findings.add("ACTION", "The iteration succeeded although its last policy action was a jump to another task.")


def _loop_and_iteration(
    findings: FindingCollector, location: EventLocation
) -> tuple[CheckedLoop, CheckedIteration] | None:
    visit, iteration = location.visit, location.iteration
    if visit is None:
        return None
    if visit.loop is None or visit.loop.state != "started":
        findings.add("ITERATION_OUTSIDE", "The iteration is outside of a running loop.")
    if visit.loop is not None and iteration is None:
        visit.loop.is_ambiguous = True
    return None if visit.loop is None or iteration is None else (visit.loop, iteration)


def check_loop_done(
    findings: FindingCollector, execution: CheckedExecution, location: EventLocation, event: CheckedEvent
) -> None:
    visit = location.visit
    if visit is None:
        return
    loop = visit.loop
    if loop is None:
        findings.add("NOT_STARTED", "The loop ended but was never started.")
        visit.loop = CheckedLoop("done")
        return
    if None not in (loop.entity_id, event.entity_id) and loop.entity_id != event.entity_id:
        findings.add("ENTITY", f"The loop that started is {loop.entity_id!r}, not {event.entity_id!r}.")
    if loop.state == "done":
        findings.add("LOOP_DONE_TWICE", "The loop had already ended.")
    elif loop.state is None:
        findings.add("NOT_STARTED", "The loop ended but was never started.")
    if loop.state_counts["started"] > 0:
        findings.add("LOOP_OPEN", "The loop ended while one of its iterations was still running.")
    if execution.is_playbook and not loop.is_ambiguous:
        _check_counts(findings, loop, event)
    if visit.end_event is not None:
        findings.add("LOOP_OPEN", "The loop ended after its step.")
    loop.state = "done"


def _check_counts(findings: FindingCollector, loop: CheckedLoop, event: CheckedEvent) -> None:
    states = loop.state_counts
    for field, actual in (("total", loop.total), ("done", states["done"]), ("failed", states["failed"])):
        declared = _count(event, field)
        if declared is not None and actual is not None and declared != actual:
            findings.add("LOOP_COUNTS", f"`{field}` of loop.done is {declared}, but the log has {actual}.")
    if loop.total is None:
        loop.total = _count(event, "total")


def _count(event: CheckedEvent, field: str) -> int | None:
    value = event.meta.get(field, event.payload.get(field))
    return value if type(value) is int else None


def check_iteration_ids(findings: FindingCollector, iteration: CheckedIteration | None, event: CheckedEvent) -> None:
    """Check that the iteration's index agrees with its id and with earlier events."""
    if event.iteration is None:
        return
    named = None if event.iteration_id is None else iteration_index(event.iteration_id)
    known = None if iteration is None else iteration.index
    if named not in (None, event.iteration) or known not in (None, event.iteration):
        findings.add("ITERATION", f"`iteration` is {event.iteration}, which does not match the iteration's id.")
