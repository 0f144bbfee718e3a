"""`noetl check`: logs that our engine writes pass, and each seeded fault is found."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from engine_kit import engine
from playbook_kit import code, noop, otherwise, play, playbook, rules, to, when
from runwright.contract.noetl import noetl_event
from runwright.contract.noetl_check import NoetlChecker

Log = list[dict[str, Any]]


async def written(store: str) -> Log:
    """A log with all there is: a loop, retries, a jump, arcs, a join."""
    flaky = {
        **code("result = 1 / (attempt - 1)", attempt="{{ _attempt }}"),
        "spec": rules(when("outcome.status == 'error'", "retry", attempts=3), otherwise("continue")),
    }
    loop = {"in": [1, 2], "iterator": "x", "spec": {"mode": "parallel", "max_in_flight": 2}}
    document = playbook(
        {"step": "a", "tool": flaky, "next": to("b", "c", mode="inclusive")},
        {"step": "b", "loop": loop, "tool": [{"one": noop(1)}, {"two": noop(2)}], "next": to("end")},
        {"step": "c", "tool": noop(), "next": to("end")},
        {"step": "end", "tool": noop()},
    )
    async with engine(store) as operations:
        snapshot, story = await play(operations, document)
        assert snapshot.status == "COMPLETED", story
        return [noetl_event(record) for record in await operations.log.read(snapshot.run_id)]


def first(log: Log, name: str) -> int:
    return next(at for at, event in enumerate(log) if event["event_type"] == name)


def swapped(log: Log, one: str, other: str) -> Log:
    a, b = first(log, one), first(log, other)
    log[a], log[b] = log[b], log[a]
    log[a]["seq"], log[b]["seq"] = log[b]["seq"], log[a]["seq"]
    return log


def without(name: str) -> Callable[[Log], Log]:
    return lambda log: [event for event in log if event["event_type"] != name]


def with_field(name: str, field: str, value: Any) -> Callable[[Log], Log]:
    def change(log: Log) -> Log:
        log[first(log, name)][field] = value
        return log

    return change


def again(name: str) -> Callable[[Log], Log]:
    """The same said twice, under a new id."""

    def change(log: Log) -> Log:
        at = first(log, name)
        repeated = {**copy.deepcopy(log[at]), "event_id": "another"}
        log.insert(at + 1, repeated)
        for number, event in enumerate(log, 1):
            event["seq"] = number
        return log

    return change


def at_end(name: str) -> Callable[[Log], Log]:
    def change(log: Log) -> Log:
        moved = log.pop(first(log, name))
        log.append({**moved, "seq": log[-1]["seq"] + 1})
        return log

    return change


FAULTS: list[tuple[str, Callable[[Log], Log]]] = [
    ("MISSING", without("workflow.started")),
    ("NOT_SCHEDULED", without("loop.iteration.scheduled")),
    ("ENVELOPE", with_field("task.started", "event_id", "")),
    ("ENVELOPE", with_field("task.started", "timestamp", "yesterday")),
    ("ENVELOPE", with_field("task.started", "source", "somebody")),
    ("ENVELOPE", with_field("task.attempt.started", "attempt", 0)),
    ("NAME", with_field("task.started", "event_type", "TaskStarted")),
    ("LEGACY_NAME", with_field("task.started", "event_type", "tool.started")),
    ("LEGACY_NAME", with_field("next.evaluated", "event_type", "case.evaluated")),
    ("EMISSION_RIGHT", with_field("next.evaluated", "source", "worker")),
    ("DUPLICATE_EVENT", lambda log: [*log, {**log[3], "seq": log[-1]["seq"] + 1}]),
    ("SEQUENCE", with_field("task.done", "seq", 2)),
    ("NO_ROOT", without("playbook.execution.requested")),
    ("TWO_ROOTS", again("playbook.execution.requested")),
    ("TWO_TERMINALS", again("playbook.finished")),
    ("AFTER_THE_END", at_end("step.done")),
    ("NOT_SCHEDULED", without("step.scheduled")),
    ("NOT_ADMITTED", without("policy.admit.evaluated")),
    ("NO_TOKEN", again("step.scheduled")),
    ("NOT_STARTED", without("step.started")),
    ("STARTED_TWICE", again("step.started")),
    ("ENDED_TWICE", again("step.done")),
    ("TASK_OUTSIDE", lambda log: swapped(log, "step.started", "task.started")),
    ("ATTEMPT_ORDER", without("task.attempt.started")),
    ("POLICY_ORDER", without("task.attempt.failed")),
    ("LOOP_DONE_TWICE", again("loop.done")),
    ("LOOP_OPEN", without("loop.iteration.done")),
    ("ITERATION_OUTSIDE", without("loop.started")),
    ("ROUTED_TWICE", again("next.evaluated")),
    ("ROUTED_EARLY", lambda log: swapped(log, "step.done", "next.evaluated")),
    ("MISSING", without("workflow.finished")),
    ("MISSING", without("playbook.request.evaluated")),
    ("NOT_ROUTED", without("next.evaluated")),
    ("PARENT_UNKNOWN", with_field("task.started", "parent_id", "step:nobody:run:1")),
    ("PAYLOAD", with_field("policy.task.evaluated", "payload", {})),
]


async def test_what_our_engine_writes_is_right(file_store: str) -> None:
    log = await written(file_store)
    assert NoetlChecker().check(log) == []
    root, *rest = log
    assert root["parent_id"] is None
    known = {root["execution_id"]}
    for event in log:
        known |= {str(event.get(name)) for name in ("workflow_run_id", "step_run_id", "iteration_id", "task_run_id")}
    assert all(event["parent_id"] in known for event in rest if event["parent_id"] is not None)


async def test_each_fault_is_found(file_store: str) -> None:
    log = await written(file_store)
    for code_, change in FAULTS:
        found = {finding.code for finding in NoetlChecker().check(change(copy.deepcopy(log)))}
        assert code_ in found, (code_, found)


async def test_a_plan_run_is_held_to_names_and_causes_only(file_store: str) -> None:
    async with engine(file_store) as operations:
        document = {"plan": "p", "steps": [{"id": "a", "noop": {}, "foreach": {"in": [1, 2]}}, {"id": "b", "noop": {}}]}
        snapshot, _ = await play(operations, document)
        log = [noetl_event(record) for record in await operations.log.read(snapshot.run_id)]
    assert NoetlChecker().check(log) == []


@pytest.mark.parametrize("nonsense", [[1], [{}], [{"event_id": 5}], [None], []])
def test_nonsense_is_told_and_harms_nothing(nonsense: list[Any]) -> None:
    assert bool(NoetlChecker().check(nonsense)) is bool(nonsense)
