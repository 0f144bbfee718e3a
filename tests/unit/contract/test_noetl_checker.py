"""`noetl check`: logs that our engine writes pass, and each seeded fault is found."""

from __future__ import annotations

import asyncio
import copy
import functools
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from runwright.contract.noetl.checker import NoetlChecker, NoetlFinding
from runwright.contract.noetl.view import noetl_event
from support.commands import runwright
from support.engine import engine
from support.playbooks import arcs_to, noop, otherwise, playbook, python_task, rules, run_playbook, when

Log = list[dict[str, Any]]
Change = Callable[[Log], Log]


async def complete_log(store: str) -> Log:
    """Create a log with a loop, retries, a jump, a result stored by reference, arcs and a join."""
    flaky = {
        **python_task("result = 1 / (attempt - 1)", attempt="{{ _attempt }}"),
        "spec": rules(when("outcome.status == 'error'", "retry", attempts=3), otherwise("continue")),
    }
    jumping = rules(when("iter.n|default(0) < 1", "jump", to="x", set_iter={"n": 1}), otherwise("break"))
    pipeline = [
        {"x": {**noop(1), "spec": {"result": {"inline_max_bytes": 0}}}},
        {"y": {**noop(2), "spec": jumping}},
        {"z": noop()},
    ]
    loop = {"in": [1, 2], "iterator": "x", "spec": {"mode": "parallel", "max_in_flight": 2}}
    document = playbook(
        {"step": "a", "tool": flaky, "next": arcs_to("b", "c", mode="inclusive")},
        {"step": "b", "loop": loop, "tool": [{"one": noop(1)}, {"two": noop(2)}], "next": arcs_to("end")},
        {"step": "c", "tool": pipeline, "next": arcs_to("end")},
        {"step": "end", "tool": noop()},
    )
    return await log_of_run(store, document, "COMPLETED")


async def log_of_run(store: str, document: dict[str, Any], status: str) -> Log:
    async with engine(store) as operations:
        snapshot, history = await run_playbook(operations, document)
        assert snapshot.status == status, history
        return [noetl_event(record) for record in await operations.log.read(snapshot.run_id)]


def nth(log: Log, name: str, number: int = 0) -> int:
    return [at for at, event in enumerate(log) if event["event_type"] == name][number]


def first(log: Log, name: str) -> int:
    return nth(log, name)


def renumbered(log: Log) -> Log:
    for number, event in enumerate(log, 1):
        event["seq"] = number
    return log


def swapped(log: Log, one: str, other: str) -> Log:
    a, b = first(log, one), first(log, other)
    log[a], log[b] = log[b], log[a]
    return renumbered(log)


def without(*names: str) -> Change:
    return lambda log: [event for event in log if event["event_type"] not in names]


def without_any(**fields: Any) -> Change:
    return lambda log: [event for event in log if any(event.get(name) != value for name, value in fields.items())]


def with_field(name: str, field: str, value: Any, number: int = 0) -> Change:
    def change(log: Log) -> Log:
        log[nth(log, name, number)][field] = value
        return log

    return change


def with_payload(name: str, *path: str, value: Any, number: int = 0) -> Change:
    """Change a value in a payload."""

    def change(log: Log) -> Log:
        at = log[nth(log, name, number)]["payload"]
        for part in path[:-1]:
            at = at.setdefault(part, {})
        at[path[-1]] = value
        return log

    return change


def without_payload_field(name: str, field: str) -> Change:
    def change(log: Log) -> Log:
        del log[first(log, name)]["payload"][field]
        return log

    return change


def repeated(name: str, after: str | None = None, number: int = 0) -> Change:
    """Repeat an event under a new id."""

    def change(log: Log) -> Log:
        duplicate = {**copy.deepcopy(log[nth(log, name, number)]), "event_id": f"another {name}"}
        log.insert(first(log, after or name) + 1, duplicate)
        return renumbered(log)

    return change


def moved(name: str, before: str, number: int = 0) -> Change:
    def change(log: Log) -> Log:
        event = log.pop(nth(log, name, number))
        log.insert(first(log, before), event)
        return renumbered(log)

    return change


def in_pipeline(name: str, before: str, number: int) -> Change:
    """Move an event within the step that has several tasks."""

    def change(log: Log) -> Log:
        own = [event for event in log if event.get("step_run_id") == "step:c:run:1"]
        event = own[nth(own, name, number)]
        log.remove(event)
        log.insert(log.index(own[first(own, before)]), event)
        return renumbered(log)

    return change


def with_run_events(*names: str) -> Change:
    """Insert events of the playbook while its steps are running."""

    def change(log: Log) -> Log:
        root = log[first(log, "playbook.started")]
        more = [{**root, "event_id": f"{name} {at}", "event_type": name, "event_alias": None,
                 "status": "paused" if name == "playbook.paused" else "success", "payload": {}}
                for at, name in enumerate(names)]  # fmt: skip
        log[first(log, "step.done") : first(log, "step.done")] = more
        return renumbered(log)

    return change


def at_end(name: str) -> Change:
    def change(log: Log) -> Log:
        log.append(log.pop(first(log, name)))
        return renumbered(log)

    return change


def only_events_of(step: str, *names: str) -> Change:
    """Remove all other events of one step."""

    def change(log: Log) -> Log:
        return [each for each in log if each.get("step_run_id") != f"step:{step}:run:1" or each["event_type"] in names]

    return change


def combined(*changes: Change) -> Change:
    return lambda log: functools.reduce(lambda changed, change: change(changed), changes, log)


FAULTS: list[tuple[str, Change]] = [
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
    ("TWO_ROOTS", repeated("playbook.execution.requested")),
    ("TWO_TERMINALS", repeated("playbook.finished")),
    ("AFTER_THE_END", at_end("step.done")),
    ("NOT_SCHEDULED", without("step.scheduled")),
    ("NOT_ADMITTED", without("policy.admit.evaluated")),
    ("NO_TOKEN", repeated("step.scheduled")),
    ("NOT_STARTED", without("step.started")),
    ("STARTED_TWICE", repeated("step.started")),
    ("ENDED_TWICE", repeated("step.done")),
    ("TASK_OUTSIDE", lambda log: swapped(log, "step.started", "task.started")),
    ("ATTEMPT_ORDER", without("task.attempt.started")),
    ("POLICY_ORDER", without("task.attempt.failed")),
    ("LOOP_DONE_TWICE", repeated("loop.done")),
    ("LOOP_OPEN", without("loop.iteration.done")),
    ("ITERATION_OUTSIDE", without("loop.started")),
    ("ROUTED_TWICE", repeated("next.evaluated")),
    ("ROUTED_EARLY", lambda log: swapped(log, "step.done", "next.evaluated")),
    ("MISSING", without("workflow.finished")),
    ("MISSING", without("playbook.request.evaluated")),
    ("NOT_ROUTED", without("next.evaluated")),
    ("PARENT_UNKNOWN", with_field("task.started", "parent_id", "step:nobody:run:1")),
    ("PAYLOAD", with_field("policy.task.evaluated", "payload", {"action": {}})),
    # Types and values of optional fields
    ("ENVELOPE", with_field("step.started", "parent_id", ["a", "list"])),
    ("ENVELOPE", with_field("task.started", "iteration_id", {"an": "object"}, 1)),
    ("ENVELOPE", with_field("step.started", "entity_id", " ")),
    ("ENVELOPE", with_field("step.started", "entity_id", 7)),
    ("ENVELOPE", with_field("step.started", "workflow_run_id", 7)),
    ("ENVELOPE", with_field("step.started", "event_alias", 7)),
    ("ENVELOPE", with_field("step.started", "event_alias", "StepBegun")),
    ("ENVELOPE", with_field("step.started", "seq", 10**30)),
    ("ENTITY", with_field("step.started", "workflow_run_id", "workflow:another")),
    ("ENTITY", with_field("step.started", "entity_type", "task")),
    ("ENTITY", with_field("step.started", "entity_id", "b")),
    ("ENTITY", with_field("task.done", "entity_id", "b")),
    ("ENTITY", with_field("playbook.started", "entity_id", "another")),
    ("LEGACY_NAME", with_field("task.started", "event_type", "tool.v2.started")),
    ("NAME", with_field("task.started", "event_type", "task.a.b.started")),
    # The lifecycle events of a run, each once and in order
    ("REFUSED", with_payload("playbook.request.evaluated", "meta", "decision", value="REJECT")),
    ("REFUSED", with_field("playbook.request.evaluated", "status", "error")),
    ("MISSING", without("playbook.finished")),
    ("MISSING", without("playbook.started")),
    ("MISSING", without("playbook.processed")),
    ("TWICE", repeated("playbook.request.evaluated")),
    ("TWICE", repeated("playbook.started")),
    ("TWICE", repeated("workflow.started")),
    ("TWICE", repeated("workflow.finished")),
    ("TWICE", repeated("playbook.processed")),
    ("RUN_ORDER", lambda log: swapped(log, "playbook.request.evaluated", "playbook.started")),
    ("RUN_ORDER", lambda log: swapped(log, "workflow.started", "policy.admit.evaluated")),
    ("RUN_ORDER", lambda log: swapped(log, "workflow.finished", "playbook.finished")),
    ("RUN_ORDER", lambda log: swapped(log, "playbook.finished", "playbook.processed")),
    ("STEP_OPEN", moved("workflow.finished", "step.done")),
    ("AFTER_THE_END", lambda log: swapped(log, "workflow.finished", "next.evaluated")),
    ("AFTER_THE_END", at_end("playbook.started")),
    ("AFTER_THE_END", repeated("result.stored", after="playbook.processed")),
    ("NOT_PAUSED", with_field("workflow.started", "event_type", "playbook.resumed")),
    ("NOT_PAUSED", with_run_events("playbook.paused", "playbook.resumed", "playbook.resumed")),
    # Loops
    ("STARTED_TWICE", repeated("loop.started")),
    ("SCHEDULED_TWICE", repeated("loop.iteration.scheduled")),
    ("SCHEDULED_TWICE", repeated("loop.iteration.scheduled", after="loop.iteration.done")),
    ("STARTED_TWICE", repeated("loop.iteration.started", after="loop.iteration.done")),
    ("ENDED_TWICE", repeated("loop.iteration.done")),
    ("LOOP_COUNTS", with_payload("loop.started", "meta", "total", value=9)),
    ("LOOP_COUNTS", with_payload("loop.done", "meta", "done", value=7)),
    ("LOOP_COUNTS", without_any(iteration=1)),
    ("LOOP_OPEN", combined(with_payload("loop.done", "meta", "done", value=1), without_any(iteration=1))),
    ("TASK_OPEN", without_any(event_type="task.done", iteration=1)),
    ("ITERATION", with_field("loop.iteration.started", "iteration", 99)),
    ("ENTITY", with_field("loop.done", "entity_id", "c")),
    ("IN_FLIGHT", with_payload("loop.started", "meta", "maxInFlight", value=1)),
    # Steps, their tokens and arcs
    ("STARTED_TWICE", repeated("step.started", after="next.evaluated")),
    ("NO_TOKEN", repeated("step.scheduled", after="next.evaluated")),
    ("PAYLOAD", with_payload("step.scheduled", "meta", "tokens", value=-5)),
    ("NO_TOKEN", with_payload("step.scheduled", "meta", "tokens", value=5)),
    ("NEVER_STARTED", only_events_of("end", "policy.admit.evaluated", "step.scheduled")),
    ("NEVER_SCHEDULED", only_events_of("end")),
    ("NEVER_SCHEDULED", lambda log: [each for each in log if "step_run_id" not in each]),
    ("PAYLOAD", with_payload("next.evaluated", "matched", value=[])),
    ("PAYLOAD", without_payload_field("next.evaluated", "matched")),
    ("PAYLOAD", without_payload_field("next.evaluated", "selected")),
    ("PAYLOAD", with_payload("next.evaluated", "selected", value=[5])),
    ("PAYLOAD", with_payload("next.evaluated", "mode", value="exclusive")),
    ("PAYLOAD", with_payload("next.evaluated", "mode", value=["exclusive"])),
    ("NO_TOKEN", with_payload("next.evaluated", "selected", value=[{"step": "b"}])),
    ("PAYLOAD", with_payload("policy.admit.evaluated", "allow", value="no")),
    ("ADMITTED_LATE", repeated("policy.admit.evaluated", after="step.scheduled")),
    ("NO_TOKEN", moved("policy.admit.evaluated", "next.evaluated", 1)),
    ("NOT_ADMITTED", with_payload("policy.admit.evaluated", "allow", value=False)),
    # Tasks, attempts and policies
    ("PAYLOAD", with_payload("policy.task.evaluated", "action", "do", value="dance")),
    ("PAYLOAD", with_payload("policy.task.evaluated", "action", "do", value={})),
    ("ACTION", with_payload("policy.task.evaluated", "action", "do", value="retry", number=1)),
    ("ACTION", with_payload("policy.task.evaluated", "action", "do", value="fail", number=1)),
    ("ACTION", with_payload("policy.task.evaluated", "action", "do", value="continue", number=0)),
    ("ACTION", with_payload("policy.task.evaluated", "action", "to", value="z", number=2)),
    ("ACTION", with_payload("policy.task.evaluated", "action", "do", value="jump", number=3)),
    ("TASK_ORDER", with_payload("policy.task.evaluated", "action", "do", value="break", number=2)),
    ("POLICY_ORDER", repeated("policy.task.evaluated", after="task.done", number=1)),
    ("PAYLOAD", with_payload("policy.task.evaluated", "action", value={"do": "jump"})),
    ("PAYLOAD", with_payload("policy.task.evaluated", "matched_rule_index", value="zero")),
    ("PAYLOAD", with_payload("policy.task.evaluated", "matched_rule_index", value=-1)),
    ("ACTION", with_payload("policy.task.evaluated", "action", value={"do": "retry", "attempts": 1}, number=0)),
    ("PAYLOAD", with_payload("task.attempt.done", "outcome", "status", value="maybe")),
    ("STATUS", with_field("workflow.finished", "status", "error")),
    ("ATTEMPT_ORDER", without_any(event_type="task.attempt.done")),
    ("ATTEMPT_ORDER", with_field("policy.task.evaluated", "attempt", 2)),
    ("ATTEMPT_ORDER", with_field("task.started", "attempt", 2)),
    ("ATTEMPT_ORDER", with_field("task.done", "attempt", 1)),
    ("TASK_ORDER", in_pipeline("task.started", "task.done", 1)),
    ("OUTCOME", with_field("task.done", "event_type", "task.failed", -1)),
    ("OUTCOME", with_payload("task.done", "outcome", "status", value="error")),
    ("OUTCOME", with_payload("task.attempt.failed", "outcome", "status", value="ok")),
    ("OUTCOME", with_payload("step.done", "outcome", "status", value="error")),
    ("STATUS", with_field("step.done", "status", "error")),
    ("STATUS", with_field("task.started", "status", "success")),
    ("STATUS", with_field("playbook.finished", "status", "in_progress")),
    ("STATUS", with_payload("playbook.finished", "error", value={"code": "NO"})),
    # Results
    ("PAYLOAD", without_payload_field("result.stored", "result_ref")),
    ("RESULT_ORDER", in_pipeline("task.done", "result.stored", 0)),
    ("ID_UNKNOWN", with_field("result.stored", "step_run_id", "step:nobody:run:1")),
    ("ID_UNKNOWN", with_field("result.stored", "task_run_id", "task:nobody:run:1")),
    ("ATTEMPT_ORDER", with_field("result.stored", "attempt", 9)),
    # Emission rights and parents
    ("EMISSION_RIGHT", with_field("task.done", "source", "server")),
    ("EMISSION_RIGHT", with_field("step.started", "source", "server")),
    ("EMISSION_RIGHT", with_field("step.done", "source", "server")),
    ("EMISSION_RIGHT", with_field("policy.task.evaluated", "source", "server")),
    ("PARENT_WRONG", with_field("step.started", "parent_id", "step:a:run:1")),
    ("PARENT_WRONG", with_field("task.started", "parent_id", "step:a:run:1", 1)),
    ("PARENT_WRONG", with_field("task.started", "parent_id", "task:a:run:1")),
    ("PARENT_UNKNOWN", with_field("task.started", "parent_id", "None")),
    ("PARENT_WRONG", with_field("playbook.started", "parent_id", "p")),
    ("PARENT_MISSING", with_field("step.started", "parent_id", None)),
]

FAULTS_OF_A_FAILURE: list[tuple[str, Change]] = [
    ("NOT_ROUTED", without("next.evaluated")),
    ("OUTCOME", with_field("task.failed", "event_type", "task.done")),
    ("EMISSION_RIGHT", with_field("task.failed", "source", "server")),
    ("STATUS", with_field("playbook.finished", "status", "success")),
]


async def test_logs_of_the_engine_have_no_findings(file_store: str) -> None:
    log = await complete_log(file_store)
    assert NoetlChecker().check(log) == []
    root, *rest = log
    assert root["parent_id"] is None
    known = {root["execution_id"]}
    for event in log:
        known |= {str(event.get(name)) for name in ("workflow_run_id", "step_run_id", "iteration_id", "task_run_id")}
    assert all(event["parent_id"] in known for event in rest if event["parent_id"] is not None)


async def test_each_fault_in_a_completed_run_is_found(file_store: str) -> None:
    missed = missed_faults(await complete_log(file_store), FAULTS)
    assert not missed, "\n".join(missed)


async def test_each_fault_in_a_failed_run_is_found(file_store: str) -> None:
    log = await log_of_run(file_store, playbook({"step": "a", "tool": python_task("1 / 0")}), "FAILED")
    assert NoetlChecker().check(log) == []
    missed = missed_faults(log, FAULTS_OF_A_FAILURE)
    assert not missed, "\n".join(missed)


def missed_faults(log: Log, faults: list[tuple[str, Change]]) -> list[str]:
    missed: list[str] = []
    for number, (expected_code, change) in enumerate(faults):
        found = {finding.code for finding in errors_in(change(copy.deepcopy(log)))}
        if expected_code not in found:
            missed.append(f"fault {number}: {expected_code} is not among {sorted(found)}")
    return missed


def errors_in(log: Iterable[Any]) -> list[NoetlFinding]:
    return [finding for finding in NoetlChecker().check(log) if not finding.is_warning]


PRIVATE = ("step_run_id", "workflow_run_id", "iteration_id")
OPTIONAL = (*PRIVATE, "task_run_id", "iteration", "attempt", "status", "duration_ms", "event_alias", "source", "seq")
MUST = ("event_id", "event_type", "timestamp", "execution_id", "payload")


def without_fields(log: Log, *fields: str) -> Log:
    return [{name: value for name, value in event.items() if name not in fields} for event in log]


def without_meta(log: Log) -> Log:
    return [{**event, "payload": {k: v for k, v in event["payload"].items() if k != "meta"}} for event in log]


async def test_optional_fields_may_be_missing(file_store: str) -> None:
    log = await complete_log(file_store)
    assert errors_in(without_fields(log, *PRIVATE)) == []  # The examples of the model have none of these fields.
    assert errors_in(without_fields(log, *OPTIONAL)) == []
    assert errors_in([{name: event[name] for name in MUST} for event in log]) == []
    assert errors_in(without_meta(log)) == []
    assert errors_in(without_meta(without_fields(log, *OPTIONAL))) == []
    assert errors_in([{**dict.fromkeys(OPTIONAL), **event} for event in log]) == []


CAUSES = {
    *("NOT_SCHEDULED", "NOT_ADMITTED", "NOT_STARTED", "STARTED_TWICE", "ENDED_TWICE", "TASK_OUTSIDE", "LOOP_OPEN"),
    *("ITERATION_OUTSIDE", "ROUTED_EARLY", "NOT_ROUTED", "TASK_OPEN", "ACTION", "NEVER_STARTED", "NO_TOKEN"),
}


async def test_permitted_variations_are_accepted(file_store: str) -> None:
    """Accept numbers from 0, loop events of a worker, requests with status success, and missing policy events."""
    log = await complete_log(file_store)
    for number, event in enumerate(log):
        event["seq"] = number
        if event["event_type"].startswith("loop."):
            event["source"] = "worker"
        if event["event_type"] in ("playbook.execution.requested", "step.scheduled"):
            event["status"] = "success"
    assert errors_in(log) == []
    del log[first(log, "policy.task.evaluated")]
    assert errors_in(log) == []
    assert "POLICY_MISSING" in {finding.code for finding in NoetlChecker().check(log)}


async def test_causality_is_checked_without_run_ids(file_store: str) -> None:
    log = await complete_log(file_store)
    for expected_code, change in FAULTS:
        if expected_code in CAUSES:
            found = errors_in(without_fields(change(copy.deepcopy(log)), *PRIVATE))
            assert found, expected_code


async def test_meta_fields_do_not_hide_faults(file_store: str) -> None:
    """The checker does not trust `meta`: a step that claims to be final is not while other steps are running."""
    log = await complete_log(file_store)
    unasked = with_payload("next.evaluated", "selected", value=[{"step": "b"}])
    forged = combined(unasked, with_payload("next.evaluated", "matched", value=[{"step": "b"}]))
    for value in ({"final": True}, {"final": True, "tokens": 0}, {"tokens": -5}, {"tokens": "all"}, None, 7):
        change = combined(forged, with_payload("step.scheduled", "meta", value=value, number=2))
        assert errors_in(change(copy.deepcopy(log))), value


async def test_an_unknown_event_name_is_only_a_warning(file_store: str) -> None:
    log = await complete_log(file_store)
    for at in range(1, len(log)):
        unknown = {**log[at], "event_id": "new", "event_type": "robot.arm.moved", "event_alias": "RobotArmMoved"}
        found = NoetlChecker().check(
            renumbered([*copy.deepcopy(log[: at + 1]), unknown, *copy.deepcopy(log[at + 1 :])])
        )
        assert [(finding.code, finding.is_warning) for finding in found] == [("UNKNOWN_NAME", True)], at


def example_event(name: str, entity: str, parent: str | None = None, **fields: Any) -> dict[str, Any]:
    return {"event_type": name, "entity_id": entity, "parent_id": parent, **fields}


def routed(step: str, *names: str) -> dict[str, Any]:
    arcs = [{"step": name} for name in names]
    payload = {"mode": "exclusive", "matched": arcs, "selected": arcs}
    return example_event("next.evaluated", f"step:{step}", f"step:{step}:run:1", payload=payload)


def admitted(step: str) -> dict[str, Any]:
    return example_event("policy.admit.evaluated", f"step:{step}", f"step:{step}:run:1", payload={"allow": True})


def foreign_log() -> Log:
    """Create a log in the form of the model's examples: policies and results name only their task, tasks their step."""
    step, one, two = "step:fetch:run:1", "task:page:run:1", "task:page:run:2"
    retry, go_on = {"action": {"do": "retry"}}, {"action": {"do": "continue"}}
    rows = [
        example_event("playbook.execution.requested", "demo"),
        example_event("playbook.request.evaluated", "demo"),
        example_event("playbook.started", "demo"),
        example_event("workflow.started", "main", "exec_1"),
        admitted("fetch"),
        example_event("step.scheduled", "fetch", "wf-9"),
        example_event("step.started", "fetch", "wf-9"),
        example_event("loop.started", "fetch", step),
        example_event("loop.iteration.scheduled", "loop:fetch", step, iteration=0),
        example_event("loop.iteration.scheduled", "loop:fetch", step, iteration=1),
        example_event("loop.iteration.started", "loop:fetch", step, iteration=0),
        example_event("loop.iteration.started", "loop:fetch", step, iteration=1),
        example_event("task.started", "page", step, task_run_id=one),
        example_event("task.started", "page", step, task_run_id=two),
        example_event("task.attempt.started", "page", step, task_run_id=one, attempt=1),
        example_event("task.attempt.failed", "page", step, task_run_id=one, attempt=1, status="error"),
        example_event("policy.task.evaluated", "task:page", one, payload=retry),
        example_event("task.attempt.started", "page", step, task_run_id=one, attempt=2),
        example_event("result.stored", "task:page:attempt:2", one, payload={"result_ref": {"ref": "noetl://1"}}),
        example_event("task.attempt.done", "page", step, task_run_id=one, attempt=2),
        example_event("policy.task.evaluated", "task:page", one, payload=go_on),
        example_event("task.done", "page", step, task_run_id=two),
        example_event("task.done", "page", step, task_run_id=one, payload={"result_ref": {"ref": "noetl://1"}}),
        example_event("loop.iteration.done", "loop:fetch", step, iteration=1),
        example_event("loop.iteration.done", "loop:fetch", step, iteration=0),
        example_event("loop.done", "fetch", step),
        routed("fetch", "validate"),
        example_event("step.done", "fetch", "wf-9"),
        admitted("validate"),
        example_event("step.scheduled", "validate", "wf-9"),
        example_event("step.started", "validate", "wf-9", source="server"),  # The step has no task for a worker.
        example_event("step.done", "validate", "wf-9", source="server"),
        routed("validate"),
        example_event("workflow.finished", "main", "exec_1", status="success"),
        example_event("playbook.finished", "demo", status="success"),
        example_event("playbook.processed", "demo"),
    ]
    always = {"timestamp": "2026-02-05T23:11:22Z", "execution_id": "exec_1"}
    return [{"event_id": f"01JH{at}", **always, **row} for at, row in enumerate(rows)]


def in_loop(event: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {**event, **fields} if event["event_type"].startswith("loop.iteration.") else event


def test_a_valid_foreign_log_has_no_findings() -> None:
    log = foreign_log()
    assert NoetlChecker().check(log) == []
    nameless = [{**event, "task_run_id": None} for event in log]
    assert NoetlChecker().check(nameless) == []
    assert NoetlChecker().check([in_loop(event, iteration=None) for event in nameless]) == []
    named = [in_loop(event, iteration=None, entity_id=f"it-{event.get('iteration')}") for event in log]
    assert NoetlChecker().check(named) == []
    assert NoetlChecker().check([{**event, "parent_id": None} for event in nameless[:5]])[0].is_warning


def test_causality_is_checked_in_a_foreign_log() -> None:
    for name in ("task.started", "task.done", "step.started", "step.scheduled", "loop.started", "loop.iteration.done"):
        log = foreign_log()
        assert errors_in([*log[: first(log, name)], *log[first(log, name) + 1 :]]), name


def test_a_refused_execution_needs_no_further_events() -> None:
    log = [foreign_log()[at] for at in (0, 1, -2, -1)]
    assert errors_in([{**event, "status": "error" if event is log[2] else None} for event in log]) == []


async def test_a_final_step_needs_no_arc(file_store: str) -> None:
    document = playbook({"step": "a", "tool": noop()}, {"step": "z", "tool": noop()})
    log = await log_of_run(file_store, {**document, "executor": {"spec": {"final_step": "z"}}}, "COMPLETED")
    assert NoetlChecker().check(log) == []
    assert errors_in(without_meta(log)) == []


async def test_an_unfinished_log_is_checked_up_to_its_last_event(file_store: str) -> None:
    log = await complete_log(file_store)
    for length in range(1, first(log, "playbook.finished")):
        assert {finding.code for finding in NoetlChecker().check(log[:length])} == {"NO_TERMINAL"}, length
    cut = [event for event in log[:-3] if event["event_type"] != "playbook.started"]
    assert [finding.code for finding in errors_in(cut)] == ["MISSING"]


NONSENSE: list[Any] = [[], [[]], {}, {"a": [1]}, 0, -1, 1.5, True, "", " ", "None", "x" * 5000, 10**40, [[[[{}]]]]]


FIELDS = (*OPTIONAL, *MUST, "entity_type", "entity_id", "parent_id")
PARTS = ("outcome", "error", "result_ref", "action", "meta", "mode", "matched", "selected", "allow")


async def test_any_value_in_any_field_is_reported_without_a_crash(file_store: str) -> None:
    log = await complete_log(file_store)
    for value in NONSENSE:
        for field in FIELDS:
            NoetlChecker().check({**event, field: value} for event in log)
        for part in PARTS:
            NoetlChecker().check({**event, "payload": {**event["payload"], part: value}} for event in log)
    for at in {event["event_type"]: at for at, event in enumerate(log)}.values():
        for field in FIELDS:
            changed = [*log[:at], {**log[at], field: [{}]}, *log[at + 1 :]]
            assert errors_in(changed), (log[at]["event_type"], field)


def test_the_command_checks_every_line(file_store: str, tmp_path: Path) -> None:
    log = asyncio.run(complete_log(file_store))
    lines = [json.dumps(event) for event in log]
    deep = "[" * 5000 + "]" * 5000
    assert run_check(tmp_path, "\n".join(lines)) == (0, [])
    assert run_check(tmp_path, "\ufeff" + "\r\n".join(lines)) == (0, [])
    assert run_check(tmp_path, f"[{','.join(lines)}]") == (0, [])
    spoiled = [*lines[:7], "{no", f'{{"x": {deep}}}', *lines[7:9], '{"x": "\\ud800"}', "5", *lines[9:]]
    assert run_check(tmp_path, "\n".join(spoiled)) == (1, ["NOT_JSON", "NOT_JSON", "NOT_JSON", "ENVELOPE"])
    for text in (deep, f"[{','.join(lines)}", " \n"):
        exit_code, _ = run_check(tmp_path, text)
        assert exit_code not in (0, 1)


def run_check(folder: Path, text: str) -> tuple[int, list[str]]:
    (folder / "log.jsonl").write_bytes(text.encode())
    result = runwright(folder, "noetl", "check", "--json", "log.jsonl")
    assert "Traceback" not in result.stderr, result.stderr
    found = json.loads(result.stdout) if result.returncode in (0, 1) else []
    return result.returncode, [finding["code"] for finding in found]


async def test_the_log_of_a_plan_run_has_no_findings(file_store: str) -> None:
    async with engine(file_store) as operations:
        document = {"plan": "p", "steps": [{"id": "a", "noop": {}, "foreach": {"in": [1, 2]}}, {"id": "b", "noop": {}}]}
        snapshot, _ = await run_playbook(operations, document)
        log = [noetl_event(record) for record in await operations.log.read(snapshot.run_id)]
    assert NoetlChecker().check(log) == []


@pytest.mark.parametrize("nonsense", [[1], [{}], [{"event_id": 5}], [None], []])
def test_invalid_events_are_reported_without_a_crash(nonsense: list[Any]) -> None:
    assert bool(NoetlChecker().check(nonsense)) is bool(nonsense)
