"""Rules for loops: each iteration is scheduled, started and ended once, within the loop, and all are accounted for."""

from __future__ import annotations

from .findings import Findings
from .place import Place, index_in
from .said import Said
from .story import Execution, Loop, Round


def loop_started(findings: Findings, run: Execution, place: Place, said: Said) -> None:
    visit = place.visit
    if visit is None:
        return
    if not visit.is_running:
        findings.tell("NOT_STARTED", "A loop began in a step that is not running.")
    state = None if visit.loop is None else visit.loop.state
    if state == "started" or (state == "done" and run.is_playbook):
        findings.tell("STARTED_TWICE", "The loop of this run of the step began before.")
    most = _count(said, "maxInFlight") or _count(said, "max_in_flight")
    visit.loop = Loop("started", said.entity_id, total=_count(said, "total"), most=most)


def iteration_scheduled(findings: Findings, run: Execution, place: Place, _said: Said) -> None:
    if (found := _within(findings, place)) is None:
        return
    loop, each = found
    if each.state is not None and run.is_playbook:
        findings.tell("SCHEDULED_TWICE", f"The iteration was scheduled before, and is {each.state}.")
        return
    loop.move(each, "scheduled")
    if loop.total is not None and each.index is not None and each.index >= loop.total:
        findings.tell("ITERATION", f"Iteration {each.index} in a loop over {loop.total}.")


def iteration_started(findings: Findings, run: Execution, place: Place, _said: Said) -> None:
    if (found := _within(findings, place)) is None:
        return
    loop, each = found
    if each.state == "started" or (run.is_playbook and each.state in ("done", "failed")):
        findings.tell("STARTED_TWICE", "The iteration has started before.")
    elif each.state is None and run.is_playbook:
        findings.tell("NOT_SCHEDULED", "The iteration started without being scheduled.")
    loop.move(each, "started")
    if run.is_playbook and loop.most is not None and (under_way := loop.states["started"]) > loop.most:
        findings.tell("IN_FLIGHT", f"{under_way} iterations are under way, and the loop allows {loop.most} at once.")


def iteration_ended(findings: Findings, run: Execution, place: Place, said: Said) -> None:
    if (found := _within(findings, place)) is None:
        return
    loop, each = found
    if each.state in ("done", "failed"):
        findings.tell("ENDED_TWICE", "The iteration had ended before.")
    elif each.state != "started":
        findings.tell("NOT_STARTED", "An iteration ended that is not under way.")
    if run.is_playbook:
        _check_inside(findings, each, said)
    loop.move(each, said.verb)


def _check_inside(findings: Findings, each: Round, said: Said) -> None:
    if each.pipeline.is_open:
        findings.tell("TASK_OPEN", "The iteration ended while one of its tasks had not.")
    if said.verb == "failed":
        return
    if each.pipeline.is_failed:
        findings.tell("OUTCOME", "The iteration ended well, and its last task failed.")
    if each.pipeline.is_jumping:
        findings.tell("ACTION", "The iteration ended well, and its last policy said to jump to another task.")


def _within(findings: Findings, place: Place) -> tuple[Loop, Round] | None:
    visit, each = place.visit, place.round
    if visit is None:
        return None
    if visit.loop is None or visit.loop.state != "started":
        findings.tell("ITERATION_OUTSIDE", "An iteration outside of a running loop.")
    if visit.loop is not None and each is None:
        visit.loop.is_vague = True
    return None if visit.loop is None or each is None else (visit.loop, each)


def loop_done(findings: Findings, run: Execution, place: Place, said: Said) -> None:
    visit = place.visit
    if visit is None:
        return
    loop = visit.loop
    if loop is None:
        findings.tell("NOT_STARTED", "A loop was done that never began.")
        visit.loop = Loop("done")
        return
    if None not in (loop.entity_id, said.entity_id) and loop.entity_id != said.entity_id:
        findings.tell("ENTITY", f"The loop that began is {loop.entity_id!r}, and not {said.entity_id!r}.")
    if loop.state == "done":
        findings.tell("LOOP_DONE_TWICE", "The loop was done before.")
    elif loop.state is None:
        findings.tell("NOT_STARTED", "A loop was done that never began.")
    if loop.states["started"] > 0:
        findings.tell("LOOP_OPEN", "The loop was done while one of its iterations was not.")
    if run.is_playbook and not loop.is_vague:
        _check_counts(findings, loop, said)
    if visit.ended is not None:
        findings.tell("LOOP_OPEN", "The loop was done after its step had ended.")
    loop.state = "done"


def _check_counts(findings: Findings, loop: Loop, said: Said) -> None:
    for field, count in (("total", loop.total), ("done", loop.states["done"]), ("failed", loop.states["failed"])):
        given = _count(said, field)
        if given is not None and count is not None and given != count:
            findings.tell("LOOP_COUNTS", f"loop.done says {field}: {given}, and it was {count}.")
    if loop.total is None:
        loop.total = _count(said, "total")


def _count(said: Said, field: str) -> int | None:
    given = said.meta.get(field, said.payload.get(field))
    return given if type(given) is int else None


def check_iteration(findings: Findings, each: Round | None, said: Said) -> None:
    """Whether the number of an iteration, its id, and what is known of it fit each other."""
    if said.iteration is None:
        return
    named = None if said.iteration_id is None else index_in(said.iteration_id)
    known = None if each is None else each.index
    if named not in (None, said.iteration) or known not in (None, said.iteration):
        findings.tell("ITERATION", f"Iteration {said.iteration} is not the one that its ids speak of.")
