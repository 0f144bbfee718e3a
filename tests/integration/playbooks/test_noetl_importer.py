"""Import of NoETL logs: each event once, old names converted to current ones, and exports can be imported."""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

import runwright as rw
from runwright.contract.noetl.checker import NoetlChecker
from runwright.contract.noetl.reader import NoetlReader
from runwright.contract.noetl.schema import noetl_schema
from runwright.contract.noetl.view import noetl_event
from runwright.control.plan_loader import read_any
from runwright.control.run_views import artifacts_of
from runwright.log.noetl_importer import ImportTarget, NoetlImporter
from support.engine import engine
from support.playbooks import arcs_to, noop, otherwise, playbook, python_task, rules, run_playbook, when
from support.server import run_path, running_server

SCHEMA = jsonschema.Draft202012Validator(noetl_schema())
AT = "2026-02-05T23:11:22Z"


def event(number: int, kind: str, **more: Any) -> dict[str, Any]:
    return {"event_id": f"01JH{number:04}", "event_type": kind, "timestamp": AT, "execution_id": "exec_01JH", **more}


def lines(*events: dict[str, Any]) -> list[bytes]:
    return [json.dumps(each).encode() for each in events]


async def import_events(log: Any, *events: dict[str, Any], target: ImportTarget | None = None) -> list[str]:
    outcomes = await NoetlImporter(log, target or ImportTarget()).import_lines(lines(*events))
    return [outcome.status if outcome.status != "refused" else getattr(outcome, "code", "") for outcome in outcomes]


async def log_lines(log: Any, run_id: str = "exec_01JH") -> list[str]:
    found = []
    for record in await log.read(run_id):
        attempt = "" if record.logical_attempt_id == 1 else f" #{record.logical_attempt_id}"
        found.append(" ".join(f"{record.event_type} {record.step_id or ''}{attempt}".split()))
    return found


PLAYBOOK = playbook(
    {
        "step": "a",
        "loop": {"in": [1, 2], "iterator": "n", "spec": {"mode": "parallel", "max_in_flight": 2}},
        "tool": [
            {"try": {**python_task("result = 1 / (n - 1)", n="{{ iter.n }}"),
                     "spec": rules(when("outcome.status == 'error'", "retry", attempts=2), otherwise("continue"))}},
            {"next": {**noop("{{ _prev }}"), "spec": {"result": {"inline_max_bytes": 0}}}},
        ],
        "spec": {"policy": {"failure": {"mode": "best_effort"}}},
        "next": {"arcs": [{"step": "b", "args": {"x": 1}}]},
    },
    {"step": "b", "tool": noop("{{ args.x }}"), "set": {"ctx.k": "{{ (ctx.k | default(0)) + 1 }}"},
     "next": {"arcs": [{"step": "b", "args": {"x": 2}, "when": "{{ ctx.k < 3 }}"}]}},
)  # fmt: skip
MARK = "import runwright as rw\nmark = rw.current_step().checkpoint\nmark({'at': 1})\nmark({'at': 2})"
ODD = playbook(
    {"step": "a", "tool": python_task(MARK), "next": arcs_to("b", "load:iteration:3", mode="inclusive")},
    {"step": "b", "tool": noop(),
     "spec": {"policy": {"admit": {"rules": [{"when": "{{ ctx.ok | default(false) }}", "then": {"allow": True}},
                                             {"else": {"then": {"allow": False}}}]}}},
     "next": {"arcs": [{"step": "b", "when": "{{ not ctx.again | default(false) }}", "set": {"ctx.again": True}}]}},
    {"step": "load:iteration:3", "loop": {"in": [1, 2], "iterator": "n"},
     "tool": [{"x:attempt:3": {**python_task(MARK), "spec": rules(otherwise("continue"))}}], "set": {"ctx.ok": True}},
)  # fmt: skip
"""Checkpoints, a step whose admission is evaluated twice, and names that look like ids."""
PLAN = {
    "plan": "p",
    "onFailure": "continue",
    "steps": [
        {"id": "once", "python": {"code": "result = {'a': 1}"}},
        {"id": "flaky", "python": {"code": "1 / 0"}, "retry": {"maxAttempts": 2, "initial": 0}},
        {
            "id": "many",
            "foreach": {"in": [1, 2]},
            "python": {"code": "1 / 0"},
            "retry": {"maxAttempts": 2, "initial": 0},
        },
        {"id": "marked", "foreach": {"in": [1, 2]}, "python": {"code": MARK}},
        {"id": "slow", "foreach": {"in": [1, 2]}, "wait": "10ms"},
    ],
    "order": "graph",
}


@pytest.mark.parametrize("document", [PLAYBOOK, ODD, PLAN], ids=["playbook", "odd", "plan"])
async def test_exported_noetl_events_can_be_imported(store: str, document: dict[str, Any], tmp_path: Path) -> None:
    async with engine(store) as operations:
        snapshot, _ = await run_playbook(operations, document)
        records = await operations.log.read(snapshot.run_id)
        views = [noetl_event(record) for record in records]
        for each in views:
            SCHEMA.validate(each)
        assert NoetlChecker().check(views) == []
        again = await import_events(operations.log, *views)
        assert set(again) == {"duplicate"}, "the same log has them already"
    async with rw.open_log(f"sqlite:///{tmp_path}/other.db") as log:
        assert set(await import_events(log, *views)) == {"appended"}
        back = await log.read(snapshot.run_id)
        assert [noetl_event(record) for record in back] == views
        assert [(r.event_type, r.step_id, r.logical_attempt_id) for r in back] == [
            (r.event_type, r.step_id, r.logical_attempt_id) for r in records
        ]
        imported = await log.snapshot(snapshot.run_id)
        assert (imported.status, imported.plan_id, imported.plan_version) == (
            snapshot.status,
            snapshot.plan_id,
            snapshot.plan_version,
        )
        assert [(step.step_id, step.status) for step in imported.steps] == [
            (step.step_id, step.status) for step in snapshot.steps
        ]
        assert set(await import_events(log, *views)) == {"duplicate"}


async def test_signals_belong_to_the_run_and_can_be_imported(file_store: str, tmp_path: Path) -> None:
    async with engine(file_store) as operations:
        run_id = await operations.start(
            read_any(playbook({"step": "a", "tool": {"kind": "shell", "command": "sleep 0.5"}}))
        )
        await operations.signal(run_id, "PAUSE", {}, reason="x")
        await operations.signal(run_id, "RESUME", {}, reason="x")
        await operations.wait(run_id)
        records = await operations.log.read(run_id)
    views = [noetl_event(record) for record in records]
    signals = [each for each in views if each["event_type"].startswith("signal.")]
    assert {(each["entity_type"], each["parent_id"], "step_run_id" in each) for each in signals} == {
        ("playbook", run_id, False)
    }
    async with rw.open_log(f"sqlite:///{tmp_path}/other.db") as log:
        await import_events(log, *views)
        assert [noetl_event(record) for record in await log.read(run_id)] == views


STEP, TASK = "step:fetch_all:run:7", "task:fetch_page:run:1"
REF = {
    "kind": "result_ref",
    "store": "nats_object",
    "ref": "noetl://execution/x/page_001.json.gz",
    "meta": {"bytes": 52480, "sha256": "..."},
}
EXAMPLES = [
    event(1, "task.attempt.failed", event_alias="TaskAttemptFailed", source="worker", entity_type="task",
          entity_id="fetch_page", parent_id=STEP, task_run_id=TASK, attempt=2, status="error",
          payload={"outcome": {"status": "error", "error": {"kind": "http", "retryable": True},
                               "meta": {"duration_ms": 312, "http_status": 503}}}),
    event(2, "policy.task.evaluated", event_alias="PolicyTaskEvaluated", source="worker", entity_type="policy",
          entity_id="task:fetch_page", parent_id=TASK, status="success",
          payload={"matched_rule_index": 0,
                   "action": {"do": "retry", "attempts": 10, "backoff": "exponential", "delay": 2.0}}),
    event(3, "result.stored", event_alias="ResultStored", source="worker", entity_type="result",
          entity_id="task:fetch_page:attempt:3", parent_id=TASK, status="success",
          payload={"result_ref": REF, "extracted": {"has_more": True, "page": 1}}),
    event(4, "next.evaluated", event_alias="NextEvaluated", source="server", entity_type="next",
          entity_id="step:fetch_all", parent_id=STEP, status="success",
          payload={"mode": "exclusive", "matched": [{"step": "validate", "when": "event.name == 'loop.done'"}],
                   "selected": [{"step": "validate", "args": {"execution_id": "exec_01JH"}}]}),
]  # fmt: skip


async def read_back(log: Any, *events: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the fields of each sent event as the NoETL view shows them."""
    records = await log.read(str(events[0]["execution_id"]))
    shown = {each["event_id"]: each for each in map(noetl_event, records)}
    return [_as_sent(sent, shown[str(sent["event_id"])]) for sent in events]


def _as_sent(sent: Any, shown: Any) -> Any:
    if not isinstance(sent, dict) or not isinstance(shown, dict):
        return shown
    return {name: _as_sent(value, shown.get(name)) for name, value in sent.items()}


@pytest.mark.parametrize("size", [4, 1], ids=["together", "one by one"])
async def test_examples_of_the_noetl_model_are_imported(store: str, size: int) -> None:
    """Policies and results name only the task's run; earlier events name its step."""
    async with rw.open_log(store) as log:
        for start in range(0, 4, size):
            assert await import_events(log, *EXAMPLES[start : start + size]) == ["appended"] * size
        assert await import_events(log, *EXAMPLES) == ["duplicate"] * 4
        assert await log_lines(log) == [
            "TaskAttemptFailed fetch_all@7/fetch_page #2",
            "PolicyTaskEvaluated fetch_all@7/fetch_page",
            "ResultStored fetch_all@7/fetch_page #3",
            "NextEvaluated fetch_all@7",
        ]
        assert await read_back(log, *EXAMPLES) == EXAMPLES


async def test_unknown_task_keeps_its_ids(store: str) -> None:
    async with rw.open_log(store) as log:
        assert await import_events(log, EXAMPLES[2], EXAMPLES[1]) == ["appended"] * 2
        assert await read_back(log, EXAMPLES[1], EXAMPLES[2]) == EXAMPLES[1:3]
        for record in await log.read("exec_01JH"):
            assert not {"step_run_id", "task_run_id"} & noetl_event(record).keys(), "no event names its step"


async def test_results_belong_to_attempts(store: str) -> None:
    results = [{**EXAMPLES[2], "event_id": f"r{n}", "entity_id": f"task:fetch_page:attempt:{n}"} for n in (1, 2, 2, 3)]
    for number, each in enumerate(results):
        each["event_id"] = f"r{number}"
    async with rw.open_log(store) as log:
        assert await import_events(log, EXAMPLES[0], *results) == ["appended"] * 5
        path = "ResultStored fetch_all@7/fetch_page"
        assert (await log_lines(log))[1:] == [path, f"{path} #2", f"{path} #3", f"{path} #4"]
        assert await read_back(log, *results) == results


async def test_policies_belong_to_their_parallel_iteration(store: str) -> None:
    more: dict[str, Any] = {"source": "worker"}
    started = [
        event(10 + n, "task.started", entity_type="task", entity_id="t", parent_id="step:s:run:1",
              task_run_id="task:t:run:1", iteration=n, **more)
        for n in (0, 1)
    ]  # fmt: skip
    judged = [
        event(20 + n, "policy.task.evaluated", entity_type="policy", entity_id="task:t", parent_id="task:t:run:1",
              iteration=n, payload={"action": {"do": "continue"}}, **more)
        for n in (0, 1)
    ]  # fmt: skip
    async with rw.open_log(store) as log:
        await import_events(log, *started, *judged[:1])
        await import_events(log, *judged[1:])
        assert await log_lines(log) == [
            "TaskStarted s[0]/t",
            "TaskStarted s[1]/t",
            "PolicyTaskEvaluated s[0]/t",
            "PolicyTaskEvaluated s[1]/t",
        ]
        assert await read_back(log, *started, *judged) == [*started, *judged]


@pytest.mark.parametrize("size", [9, 1], ids=["together", "one by one"])
async def test_opaque_ids_are_resolved_by_earlier_events(store: str, size: int) -> None:
    def of(run: str, number: int, kind: str, **more: Any) -> dict[str, Any]:
        return event(number, kind, source="worker", step_run_id=run, **more)

    step: dict[str, Any] = {"entity_type": "step", "entity_id": "s", "parent_id": "wf-1", "workflow_run_id": "wf-1"}
    task: dict[str, Any] = {"entity_type": "task", "entity_id": "t"}
    events = [
        event(29, "playbook.started", source="server", entity_type="playbook", entity_id="p"),
        of("sr-abc", 30, "step.started", **step),
        of("sr-abc", 31, "task.started", parent_id="sr-abc", task_run_id="tr-1", **task),
        of("sr-def", 32, "step.started", **step),
        of("sr-def", 33, "task.started", parent_id="sr-def", task_run_id="tr-2", **task),
        event(34, "policy.task.evaluated", source="worker", entity_type="policy", entity_id="task:t", parent_id="tr-1"),
        of("sr-abc", 35, "task.done", parent_id="sr-abc", task_run_id="tr-1", **task),
        of("sr-abc", 36, "step.done", status="success", **step),
        of("sr-unknown", 37, "task.started", parent_id="sr-unknown", task_run_id="tr-3", **task),
    ]
    async with rw.open_log(store) as log:
        for start in range(0, len(events), size):
            await import_events(log, *events[start : start + size])
        assert await log_lines(log) == [
            "RunStarted",
            "StepStarted s",
            "TaskStarted s/t",
            "StepStarted s@2",
            "TaskStarted s@2/t",
            "PolicyTaskEvaluated s/t",
            "TaskDone s/t",
            "StepCompleted s",
            "TaskStarted /sr-unknown/t",
        ]
        assert await read_back(log, *events) == events


@pytest.mark.parametrize("together", [True, False])
async def test_playbook_name_is_found_anywhere_in_the_first_batch(store: str, together: bool) -> None:
    step = event(1, "step.scheduled", entity_type="step", entity_id="s", parent_id="x")
    asked = event(2, "playbook.execution.requested", entity_type="playbook", entity_id="etl/weather",
                  payload={"meta": {"planVersion": "3"}})  # fmt: skip
    named = event(3, "playbook.paused", entity_type="playbook", entity_id="etl/weather")
    async with rw.open_log(store) as log:
        for batch in ([step, named, asked],) if together else ([step], [named], [asked]):
            await import_events(log, *batch)
        identity = (await log.find_run("exec_01JH")).identity
        expected = ("etl/weather", "3") if together else ("noetl", "noetl")
        assert (identity.plan_id, identity.plan_version) == expected
        assert await read_back(log, step, asked, named) == [step, asked, named]


async def test_import_preserves_every_field(store: str) -> None:
    step: dict[str, Any] = {"entity_type": "step", "entity_id": "s"}
    task: dict[str, Any] = {"entity_type": "task", "entity_id": "t", "parent_id": "step:s:run:1"}
    events = [
        event(1, "step.started", **step, payload={"inputs": {"a": 1}, "meta": {"k": 1}}),
        event(2, "step.done", **step, status="skipped", trace_id="abc", tags=["x"],
              payload={"outcome": {"status": "ok", "result": 5, "meta": {"duration_ms": 3}}, "meta": {"k": 1}}),
        event(3, "step.failed", entity_type="step", entity_id="q",
              payload={"outcome": {"status": "error", "error": {"kind": "http", "retryable": True}}}),
        event(4, "loop.iteration.done", entity_type="loop", entity_id="L", iteration=2, iteration_id="it2",
              parent_id="step:s:run:1", payload={"outcome": {"status": "ok", "meta": {"pages": 3}}}),
        event(5, "loop.done", entity_type="loop", entity_id="s", parent_id="step:s:run:1", status="error"),
        event(6, "task.done", **task, event_alias="Mine", duration_ms=7,
              payload={"inputs": {"a": 1}, "outcome": {"status": "ok", "result": [1]}, "meta": {"k": 1}}),
        event(7, "task.started", **task, payload={"inputs": {"a": 1}, "meta": {"worker": "w1", "k": 2}}),
        event(8, "robot.arm.moved", entity_type="step", entity_id="s", payload={"x": 1, "meta": {"y": 2}}),
        event(9, "playbook.paused", entity_type="playbook", entity_id="p", payload={"meta": {"reason": 5}}),
        event(10, "workflow.finished", entity_type="workflow", entity_id="wf", status="error",
              payload={"error": {"kind": "x"}, "meta": {"a": 1}}),
    ]  # fmt: skip
    odd = event(11, "step.exit", **step, status="completed", duration_ms=-5, attempt=0, payload={"result": {"rows": 3}})
    async with rw.open_log(store) as log, rw.open_log("memory://") as other:
        assert await import_events(log, *events, odd) == ["appended"] * 11
        assert await read_back(log, *events) == events
        views = [noetl_event(record) for record in await log.read("exec_01JH")]
        for each in views:
            SCHEMA.validate(each)
        left = {"status": "completed", "duration_ms": -5, "attempt": 0}
        assert views[-1]["payload"]["noetl"] == left, "the model has no fields for these"
        assert views[-1]["payload"]["outcome"]["result"] == {"rows": 3}
        await import_events(other, *views)
        assert [noetl_event(record) for record in await other.read("exec_01JH")] == views


LEGACY = [
    ("tool.started", {}, "TaskStarted"),
    ("tool.processed", {"status": "success"}, "TaskDone"),
    ("tool.processed", {"status": "error"}, "TaskFailed"),
    ("retry.started", {}, "TaskAttemptStarted"),
    ("retry.processed", {"payload": {"outcome": {"status": "ok"}}}, "TaskAttemptDone"),
    ("retry.processed", {"payload": {"outcome": {"status": "error"}}}, "TaskAttemptFailed"),
    ("sink.started", {}, "TaskStarted"),
    ("sink.done", {}, "TaskDone"),
    ("sink.failed", {}, "TaskFailed"),
    ("sink.finished", {"status": "error"}, "TaskFailed"),
    ("tool.finished", {}, "TaskDone"),
    ("tool.done", {"payload": {"error": {"kind": "http"}}}, "TaskFailed"),
    ("tool.timeout", {"status": "error"}, "TaskFailed"),
    ("tool.progress", {}, "task.progress"),
    ("retry.exhausted", {"status": "error"}, "TaskAttemptFailed"),
    ("retry.scheduled", {"status": "in_progress"}, "task.attempt.scheduled"),
    ("case.evaluated", {"payload": {"selected": [{"step": "b"}]}}, "NextEvaluated"),
    ("case.evaluated", {"payload": {"action": {"do": "retry"}}}, "PolicyTaskEvaluated"),
    ("call.done", {"payload": {"result": 3}}, "TaskDone"),
    ("call.error", {"payload": {"error": "no"}}, "TaskFailed"),
    ("step.enter", {"entity_type": "step"}, "StepStarted"),
    ("step.exit", {"entity_type": "step", "status": "completed"}, "StepCompleted"),
    ("step.exit", {"entity_type": "step", "status": "failed"}, "StepFailed"),
    ("command.issued", {"entity_type": "step"}, "StepScheduled"),
    ("command.claimed", {"entity_type": "step"}, "command.claimed"),
    ("playbook.completed", {"entity_type": "playbook"}, "RunCompleted"),
    ("playbook.failed", {"entity_type": "playbook", "status": "failed"}, "RunFailed"),
    ("playbook.finished", {"entity_type": "playbook", "payload": {"error": {"kind": "cancelled"}}}, "RunCancelled"),
    ("workflow.initialized", {"entity_type": "workflow"}, "WorkflowStarted"),
]


@pytest.mark.parametrize(("kind", "more", "ours"), LEGACY)
def test_old_event_types_are_converted_to_current_ones(kind: str, more: dict[str, Any], ours: str) -> None:
    given = {"entity_type": "task", "entity_id": "t", "parent_id": "step:s:run:1", **more}
    read = NoetlReader().read(event(1, kind, **given))
    assert read.event_type == ours
    assert read.payload.get("legacyType") == (None if kind in ("command.claimed", "playbook.finished") else kind)


@pytest.mark.parametrize(
    ("kind", "entity"), [("tool.started", "tool"), ("sink.started", "sink"), ("retry.started", None)]
)
def test_old_entity_types_follow_the_event_type(kind: str, entity: str | None) -> None:
    given = {"entity_type": entity, "entity_id": "fetch", "parent_id": "step:s:run:1"}
    assert str(NoetlReader().read(event(1, kind, **given)).path) == "s/fetch"


@pytest.mark.parametrize(
    ("kind", "more", "status"),
    [
        ("workflow.failed", {}, "error"),
        ("workflow.finished", {"status": "FAILED"}, "error"),
        ("workflow.completed", {}, "success"),
        ("loop.done", {"status": "failed", "entity_id": "s", "step_run_id": "step:s:run:1"}, "error"),
        ("playbook.processed", {"status": "Failure"}, "error"),
        ("playbook.processed", {"status": "COMPLETED"}, "success"),
    ],
)
async def test_status_synonyms_are_shown_as_error_or_success(kind: str, more: dict[str, Any], status: str) -> None:
    async with rw.open_log("memory://") as log:
        assert await import_events(log, event(1, "playbook.started"), event(2, kind, **more)) == ["appended"] * 2
        shown = [noetl_event(record) for record in await log.read("exec_01JH")]
    assert [each["status"] for each in shown if each["event_id"] == "01JH0002"] == [status]


async def test_iteration_is_identified_by_its_entity_id_alone(store: str) -> None:
    steps = [("loop.started", "s"), *((f"loop.iteration.{verb}", f"step:s:run:1:iteration:{at}")
             for at in (0, 1) for verb in ("scheduled", "started", "done")), ("loop.done", "s")]  # fmt: skip
    async with rw.open_log(store) as log:
        events = [event(number, kind, entity_id=name) for number, (kind, name) in enumerate(steps)]
        assert await import_events(log, *events) == ["appended"] * len(events)
        found = [line for line in await log_lines(log) if line.startswith("LoopIteration")]
    assert found == [f"LoopIteration{verb} s[{at}]" for at in (0, 1) for verb in ("Scheduled", "Started", "Done")]


@pytest.mark.parametrize(
    ("kind", "ids", "place"),
    [
        ("task.started", {"parent_id": "step:a:run:1", "task_run_id": "task:fetch:run:2"}, "a/fetch@2"),
        ("loop.iteration.started", {"iteration_id": "step:a:run:2:iteration:3"}, "a@2[3]"),
        ("next.evaluated", {"parent_id": "step:a:run:2"}, "a@2"),
        ("policy.task.evaluated", {"step_run_id": "step:a:run:1", "parent_id": "task:fetch:run:1"}, "a/fetch"),
        ("task.started", {"task_run_id": "task:fetch:run:1"}, "/task:fetch:run:1"),
        ("task.started", {"parent_id": "workflow:exec_01JH"}, "None"),
    ],
)
def test_path_is_derived_from_ids_without_an_entity(kind: str, ids: dict[str, Any], place: str) -> None:
    assert str(NoetlReader().read(event(1, kind, **ids)).path) == place


async def test_task_event_without_an_entity_stays_a_task_event() -> None:
    async with rw.open_log("memory://") as log:
        assert await import_events(log, event(1, "task.started")) == ["appended"]
        (shown,) = [noetl_event(record) for record in await log.read("exec_01JH")]
    SCHEMA.validate(shown)
    assert (shown["entity_type"], shown["entity_id"]) == ("task", None)


async def test_field_in_payload_and_meta_is_exported_in_both() -> None:
    sent = event(1, "playbook.finished", payload={"reason": "why", "meta": {"reason": "other"}})
    async with rw.open_log("memory://") as log:
        assert await import_events(log, sent) == ["appended"]
        (shown,) = [noetl_event(record) for record in await log.read("exec_01JH")]
    assert shown["payload"]["reason"] == "why"
    assert shown["payload"]["meta"]["reason"] == "other"


def test_node_name_is_read_as_the_entity() -> None:
    assert str(NoetlReader().read(event(1, "step.enter", node_name="fetch")).path) == "fetch"


async def test_log_without_visits_and_attempts_is_imported(store: str) -> None:
    """The events have numbers as ids, no visits and no attempts, and their steps form a cycle."""
    sent = [
        ("playbook.initialized", "playbook", "etl/weather", {}),
        ("command.issued", "step", "fetch", {}),
        ("command.claimed", "step", "fetch", {}),
        ("step.enter", "step", "fetch", {}),
        ("call.done", "task", "get", {"status": "completed", "step_run_id": "step:fetch:run:1"}),
        ("step.exit", "step", "fetch", {"status": "completed", "payload": {"result": {"rows": 3}}}),
        ("command.issued", "step", "fetch", {}),
        ("step.enter", "step", "fetch", {}),
        ("step.exit", "step", "fetch", {"status": "error", "payload": {"error": "timed out"}}),
        ("playbook.failed", "playbook", "etl/weather", {"status": "failed"}),
    ]
    events = [
        {"event_id": 900 + number, "event_type": kind, "timestamp": "2026-02-05T23:11:22.5+01:00", "execution_id": 42,
         "entity_type": entity, "entity_id": name, **more}
        for number, (kind, entity, name, more) in enumerate(sent)
    ]  # fmt: skip
    async with rw.open_log(store) as log:
        for each in events:  # one request per event
            assert await import_events(log, each) == ["appended"]
        for each in events:
            assert await import_events(log, each) == ["duplicate"]
        assert await import_events(log, *events) == ["duplicate"] * 10
        assert await log_lines(log, "42") == [
            "RunQueued",
            "RunStarted",
            "StepScheduled fetch",
            "command.claimed fetch",
            "StepStarted fetch",
            "TaskDone fetch/get",
            "StepCompleted fetch",
            "StepScheduled fetch@2",
            "StepStarted fetch@2",
            "StepFailed fetch@2",
            "RunFailed",
        ]
        row = await log.find_run("42")
        assert (row.identity.plan_id, row.identity.plan_version) == ("etl/weather", "noetl")
        records = await log.read("42")
        assert records[0].foreign_event_id == "900"
        assert records[0].emitted_at == "2026-02-05T22:11:22.500000Z"
        assert (records[9].payload or {})["error"] == {"message": "timed out"}


async def test_repeated_event_gets_the_next_attempt_number(store: str) -> None:
    async with rw.open_log(store) as log:
        first, second = (event(number, "playbook.paused", entity_type="playbook", entity_id="p") for number in (1, 2))
        assert await import_events(log, event(0, "playbook.started", entity_type="playbook", entity_id="p"), first, second, second) == [
            "appended", "appended", "appended", "duplicate"
        ]  # fmt: skip
        assert await log_lines(log) == ["RunStarted", "RunPaused", "RunPaused #2"]
        assert await import_events(log, second, first) == ["duplicate", "duplicate"]


async def test_missing_playbook_started_event_is_implied(store: str) -> None:
    """The first event that implies a start starts the run, which completes without alerts."""
    sent = [
        ("playbook.initialized", "playbook", "etl", {}),
        ("workflow.initialized", "workflow", "etl", {}),
        ("command.issued", "step", "f", {}),
        ("command.started", "step", "f", {}),
        ("step.enter", "step", "f", {}),
        ("call.done", "task", "t", {"parent_id": "step:f:run:1"}),
        ("step.exit", "step", "f", {"status": "COMPLETED"}),
        ("command.completed", "step", "f", {}),
        ("workflow.completed", "workflow", "etl", {"status": "COMPLETED"}),
        ("playbook.completed", "playbook", "etl", {"status": "COMPLETED"}),
    ]
    events = [
        event(number, kind, entity_type=entity, entity_id=name, **more)
        for number, (kind, entity, name, more) in enumerate(sent)
    ]
    async with rw.open_log(store) as log:
        assert await import_events(log, *events[:4]) == ["appended"] * 4
        assert await import_events(log, *events) == ["duplicate"] * 4 + ["appended"] * 6
        assert await import_events(log, *events) == ["duplicate"] * 10
        snapshot = await log.snapshot("exec_01JH")
        assert (snapshot.status, snapshot.inconsistent, await log.alerts("exec_01JH")) == ("COMPLETED", False, [])
        assert (await log_lines(log))[:3] == ["RunQueued", "RunStarted", "WorkflowStarted"]
        start = (await log.read("exec_01JH"))[1]
        assert (start.foreign_event_id, start.payload) == ("playbook.started", {"impliedBy": "01JH0001"})
        views = [noetl_event(record) for record in await log.read("exec_01JH")]
    async with rw.open_log("memory://") as other:
        assert await import_events(other, *views) == ["appended"] * 11
        assert [noetl_event(record) for record in await other.read("exec_01JH")] == views


@pytest.mark.parametrize("ending", ["execution.cancelled", "playbook.cancelled"])
def test_cancel_events_are_read_as_run_cancelled(ending: str) -> None:
    assert NoetlReader().read(event(1, ending, status="CANCELLED")).event_type == "RunCancelled"


async def test_events_are_imported_in_sequence_order(store: str, tmp_path: Path) -> None:
    async with engine(store) as operations:
        snapshot, _ = await run_playbook(operations, PLAYBOOK)
        views = [noetl_event(record) for record in await operations.log.read(snapshot.run_id)]
    shuffled = random.Random(1).sample(views, len(views))
    async with rw.open_log(f"sqlite:///{tmp_path}/other.db") as log:
        outcomes = await NoetlImporter(log, ImportTarget()).import_lines(lines(*shuffled))
        places = [getattr(outcome, "run_seq", None) for outcome in outcomes]
        assert places == [each["seq"] for each in shuffled], "each has its own receipt"
        assert [noetl_event(record) for record in await log.read(snapshot.run_id)] == views
        assert ((await log.snapshot(snapshot.run_id)).status, await log.alerts(snapshot.run_id)) == ("COMPLETED", [])


async def import_concurrently(log: Any, *events: dict[str, Any]) -> list[str]:
    """Import each event with an importer of its own, all at once."""
    return [status for each in await asyncio.gather(*(import_events(log, one) for one in events)) for status in each]


PAUSES = [
    event(number, "playbook.paused", entity_type="playbook", entity_id="p", payload={"meta": {"reason": f"{number}"}})
    for number in range(1, 41)
]


@pytest.mark.parametrize("is_new", [True, False])
async def test_concurrent_events_are_all_imported(store_url: str, is_new: bool) -> None:
    async with rw.open_log(store_url) as log:
        if not is_new:
            await import_events(log, event(0, "playbook.started", entity_type="playbook", entity_id="p"))
        assert await import_concurrently(log, *PAUSES) == ["appended"] * 40
        assert await read_back(log, *PAUSES) == PAUSES
        assert sorted(await import_concurrently(log, *PAUSES[:5], *PAUSES[:5])) == ["duplicate"] * 10
        ordinals = [record.logical_attempt_id for record in await log.read("exec_01JH")]
        assert sorted(ordinals[not is_new :]) == list(range(1, 41))


async def test_two_importers_can_write_to_one_run(file_store: str) -> None:
    """Neither importer knows the events of the other, nor that the run exists."""
    async with rw.open_log(file_store) as log, rw.open_log(file_store) as other_log:
        one, other = NoetlImporter(log, ImportTarget()), NoetlImporter(other_log, ImportTarget())

        async def import_with(importer: NoetlImporter, *events: dict[str, Any]) -> list[str]:
            return [outcome.status for outcome in await importer.import_lines(lines(*events))]

        started = event(0, "playbook.started", entity_type="playbook", entity_id="p")
        assert await import_with(one, started) == ["appended"]
        assert await import_with(other, PAUSES[0], PAUSES[1]) == ["appended"] * 2
        assert await import_with(one, PAUSES[2], PAUSES[1], PAUSES[3]) == ["appended", "duplicate", "appended"]
        assert await import_with(one, started, *PAUSES[:4]) == ["duplicate"] * 5
        assert await log_lines(log) == ["RunStarted", "RunPaused", "RunPaused #2", "RunPaused #3", "RunPaused #4"]


async def test_importers_with_and_without_a_name_share_a_run(store: str) -> None:
    """The first importer creates the run; the others accept it as it is."""
    named = [
        event(1, "playbook.started", entity_type="playbook", entity_id="etl/weather"),
        event(2, "workflow.started"),
    ]
    others = [[event(10 * n, "x.y"), event(10 * n + 1, "x.z")] for n in range(1, 9)]
    async with rw.open_log(store) as log:
        outcomes = await asyncio.gather(*(import_events(log, *batch) for batch in (*others[:4], named, *others[4:])))
        assert outcomes == [["appended"] * 2] * 9


async def test_event_sent_by_several_importers_is_stored_once(store_url: str) -> None:
    """The steps have no visit numbers: the order of arrival decides which visit an end belongs to."""
    ends = [
        event(n, kind, entity_type="step", entity_id="s") for n, kind in enumerate(["step.done", "step.failed"] * 10)
    ]
    async with rw.open_log(store_url) as log:
        outcomes = await import_concurrently(log, *ends, *ends[::-1], *ends)
        assert sorted(outcomes) == ["appended"] * 20 + ["duplicate"] * 40
        ids = [noetl_event(record)["event_id"] for record in await log.read("exec_01JH")]
        assert sorted(ids) == sorted(each["event_id"] for each in ends)


async def test_invalid_event_is_refused_and_stops_its_run(store: str) -> None:
    async with rw.open_log(store) as log:
        good = event(1, "workflow.started", entity_type="workflow")
        bad = {**event(2, "workflow.finished"), "timestamp": "yesterday"}
        other = {**event(4, "workflow.started"), "execution_id": "other"}
        assert await import_events(log, good, bad, event(3, "playbook.processed"), other) == [
            "appended", "SCHEMA_VALIDATION_FAILED", "not_attempted", "appended"
        ]  # fmt: skip
        for wrong in (
            {"event_id": ""},
            {"event_type": None},
            {"execution_id": None},
            {"timestamp": "2026-01-01T00:00:00"},
        ):
            assert await import_events(log, {**event(9, "workflow.started"), **wrong}) == ["SCHEMA_VALIDATION_FAILED"]
        assert await import_events(log, event(5, "step.started")) == ["SCHEMA_VALIDATION_FAILED"]
        (outcome,) = await NoetlImporter(log, ImportTarget()).import_lines([b"[1]"])
        assert outcome.status == "refused"


async def test_invalid_event_id_is_refused_by_every_store(store: str) -> None:
    async with rw.open_log(store) as log:
        assert await import_events(log, event(1, "workflow.started")) == ["appended"]
        odd = {**event(2, "workflow.finished"), "event_id": "a\0b"}
        assert await import_events(log, odd) == ["SCHEMA_VALIDATION_FAILED"]


@pytest.mark.parametrize("refs", ["x", [1], [{}], None, {"a": 1}, [{"uri": 1}]])
async def test_malformed_artifact_references_are_ignored(refs: Any) -> None:
    async with rw.open_log("memory://") as log:
        started = event(2, "step.started", payload={"meta": {"artifactRefs": refs}})
        assert "appended" in await import_events(log, event(1, "playbook.started"), started)
        assert await artifacts_of(log, "exec_01JH") == []


@pytest.mark.parametrize("payload", [b'{"t":1e999}', b'{"t":"\xff\xfe"}'])
async def test_undecodable_playbook_line_is_refused_alone(store: str, payload: bytes) -> None:
    async with rw.open_log(store) as log:
        good, other = event(1, "workflow.started"), {**event(2, "playbook.started"), "execution_id": "other"}
        bad = lines({**other, "payload": {}})[0].replace(b'"payload": {}', b'"payload": ' + payload)
        assert payload in bad
        outcomes = await NoetlImporter(log, ImportTarget()).import_lines([*lines(good), bad])
        assert [outcome.status for outcome in outcomes] == ["appended", "refused"]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"timestamp": "9999-12-31T23:59:59-23:00"}, "years 1 to 9999"),
        ({"timestamp": "0001-01-01T00:00:00+23:00"}, "years 1 to 9999"),
        ({"attempt": 10**18}, "from 1 to 2,147,483,647"),
        ({"attempt": 2**31}, "from 1 to 2,147,483,647"),
    ],
)
async def test_numbers_out_of_range_are_refused(wrong: dict[str, Any], message: str) -> None:
    async with rw.open_log("memory://") as log:
        (outcome,) = await NoetlImporter(log, ImportTarget()).import_lines(
            lines({**event(1, "workflow.started"), **wrong})
        )
        assert (outcome.status, message in getattr(outcome, "detail", "")) == ("refused", True)


@pytest.mark.parametrize("duration", [-5, 1e308, 10**16, True, "long"])
async def test_invalid_durations_are_stored_separately(duration: Any) -> None:
    async with rw.open_log("memory://") as log:
        await import_events(log, event(1, "step.done", entity_type="step", entity_id="s", duration_ms=duration))
        shown = noetl_event((await log.read("exec_01JH"))[0])
        assert ("duration_ms" in shown, shown["payload"]["noetl"]) == (False, {"duration_ms": duration})


async def test_odd_names_and_payloads_are_kept(store: str) -> None:
    async with rw.open_log(store) as log:
        events = [
            event(1, "step.started", entity_type="step", entity_id="a|b[3]"),
            event(2, "step.done", entity_type="step", entity_id="a|b[3]", payload={"meta": {"artifactRefs": "none"}}),
            event(3, "robot.arm.moved", entity_type="robot", entity_id="r2", payload={"x": 1}),
            event(4, "task.done", entity_type="task", entity_id="t", payload={"outcome": "fine"}),
        ]
        assert await import_events(log, *events) == ["appended"] * 4
        records = await log.read("exec_01JH")
        assert [record.step_id for record in records] == ["a¦b[3]", "a¦b[3]", "r2", "/t"]
        assert (records[1].payload or {})["noetl"]["payload"] == {"meta": {"artifactRefs": "none"}}
        assert records[2].event_type == "robot.arm.moved"
        assert (records[3].payload or {})["noetl"]["payload"] == {"outcome": "fine"}
        assert await read_back(log, *events) == [*events[:2], {**events[2], "entity_type": "step"}, events[3]]
        assert (await log.snapshot("exec_01JH")).last_event_seq == 4


async def test_native_append_refuses_old_event_types(store: str) -> None:
    async with rw.open_log(store) as log:
        run = rw.new_run("p", "1")
        for name in ("tool.started", "tool.v2.started", "retry.attempt2"):
            with pytest.raises(rw.RunwrightError, match="earlier model") as error:
                await log.append([rw.new_event(name, run, step_id="a")])
            assert error.value.code == "SCHEMA_VALIDATION_FAILED"


async def test_events_are_imported_over_http(file_store: str) -> None:
    async with running_server(file_store) as server:
        me = server.caller()
        started = event(1, "playbook.started", entity_type="playbook", entity_id="p", source="server")
        answer = await me.post("/v1/events?format=noetl&project=lake", started, expected=201)
        assert (len(answer["appended"]), answer["results"][0]["runSeq"]) == (1, 1)
        answer = await me.post("/v1/events?format=noetl", [started, event(2, "workflow.started")])
        assert (len(answer["appended"]), len(answer["deduped"])) == (1, 1)
        shown = await me.get(run_path("exec_01JH"))
        assert (shown["status"], shown["projectId"]) == ("RUNNING", "lake")
        views = (await me.get(f"{run_path('exec_01JH')}/events?format=noetl"))["events"]
        assert [each["event_id"] for each in views] == ["01JH0001", "01JH0002"]
        await me.post("/v1/events?format=noetl&atomic=true", started, expected=400)
        await me.post("/v1/events?format=cloud", started, expected=400)
        await me.post("/v1/events?tenant=x", started, expected=400)


async def test_import_over_http_enforces_role_and_tenant(file_store: str) -> None:
    async with running_server(file_store) as server:
        worker = await server.caller_with(scopes=("events:worker",), tenant="acme")
        done = event(2, "task.done", entity_type="task", entity_id="t", parent_id="step:s:run:1", source="worker")
        answer = await worker.post("/v1/events?format=noetl", done, expected=201)
        assert answer["results"][0]["status"] == "appended"
        step = event(3, "step.scheduled", entity_type="step", entity_id="s", source="worker")
        await worker.post("/v1/events?format=noetl", step, expected=403)
        await worker.post("/v1/events?format=noetl&tenant=other", done, expected=403)
        other_tenant = await server.caller_with(scopes=("events:server",), tenant="umbrella")
        refused = await other_tenant.post("/v1/events?format=noetl", [event(4, "workflow.started")], expected=207)
        assert refused["results"][0]["code"] == "RUN_CONTEXT_MISMATCH"


def test_events_are_imported_by_command(tmp_path: Path) -> None:
    def runwright(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "runwright", *arguments]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)

    (tmp_path / "p.yaml").write_text(json.dumps(PLAYBOOK))
    assert runwright("run", "p.yaml", "--run-id", "r").returncode == 0
    log = runwright("events", "r", "--format", "noetl").stdout
    (tmp_path / "log.jsonl").write_text(log)
    assert NoetlChecker().check(map(json.loads, log.splitlines())) == []
    arguments = ("import", "log.jsonl", "--format", "noetl", "--store", "sqlite:///other.db", "--tenant", "acme")
    count = len(log.splitlines())
    assert runwright(*arguments).stdout == f"{count} events imported, 0 duplicates, 0 refused\n"
    assert runwright(*arguments).stdout == f"0 events imported, {count} duplicates, 0 refused\n"
    assert runwright("events", "r", "--format", "noetl", "--store", "sqlite:///other.db").stdout == log
    assert '"acme"' in runwright("show", "r", "--json", "--store", "sqlite:///other.db").stdout
    (tmp_path / "log.jsonl").write_text("".join(reversed(log.splitlines(keepends=True))))
    assert runwright(*arguments[:-4], "--store", "sqlite:///third.db").returncode == 0
    assert runwright("events", "r", "--format", "noetl", "--store", "sqlite:///third.db").stdout == log
    wrong = runwright("import", "log.jsonl", "--tenant", "acme")
    assert (wrong.returncode, "require --format noetl" in wrong.stderr) == (2, True)


async def test_refused_event_may_be_repeated_in_the_same_batch() -> None:
    bad = event(1, "playbook.finished", entity_type="step", step_run_id="0")
    async with rw.open_log("memory://") as log:
        assert await import_events(log, bad, bad) == ["SCHEMA_VALIDATION_FAILED", "not_attempted"]
        assert await import_events(log, event(2, "playbook.execution.requested"), bad, bad) == [
            "appended", "SCHEMA_VALIDATION_FAILED", "not_attempted"
        ]  # fmt: skip


_texts = st.text(max_size=8) | st.sampled_from(["a", "b", "step:a:run:1", "step:a:run:2:iteration:3", "task:t:run:1"])
_kinds = st.sampled_from(["step.started", "step.done", "step.exit", "task.done", "case.x", "playbook.finished", "x.y"])
_events = st.fixed_dictionaries(
    {
        "event_id": st.sampled_from(["1", "2", "3"]) | _texts,
        "event_type": _kinds | _texts,
        "execution_id": st.just("r"),
    },
    optional={
        "timestamp": st.sampled_from([AT, "2026-02-05T23:11:22+02:00", "never"]),
        "entity_type": st.sampled_from(["step", "task", "policy", "loop", "result", "playbook", "else"]),
        "entity_id": _texts,
        "parent_id": _texts | st.none(),
        "step_run_id": _texts,
        "task_run_id": _texts | st.integers(),
        "iteration": st.integers(-1, 3) | st.booleans(),
        "attempt": st.integers(-1, 3) | _texts,
        "status": _texts,
        "duration_ms": st.integers() | st.floats(allow_nan=False) | _texts,
        "payload": st.dictionaries(
            st.sampled_from(["meta", "outcome", "error", "result_ref", "selected", "ctx"]),
            st.none() | st.integers() | _texts | st.dictionaries(_texts, _texts, max_size=2),
            max_size=3,
        )
        | _texts,
    },
)


@given(st.lists(_events, max_size=8), st.integers(0, 8))
def test_any_event_is_imported_once_or_refused(events: list[dict[str, Any]], cut: int) -> None:
    """In one request or two, and repeated: an imported event is a duplicate from then on."""

    async def run() -> None:
        async with rw.open_log("memory://") as log:
            first = await import_events(log, *events[:cut]) + await import_events(log, *events[cut:])
            again = []
            for each in events:
                again += await import_events(log, each)
            for before, after in zip(first, again, strict=True):
                assert before not in ("appended", "duplicate") or after == "duplicate", (before, after)
            assert not (await log.rebuild(check=True)).different
            if "appended" in first:
                ids = [noetl_event(record)["event_id"] for record in await log.read("r")]
                assert len(ids) == len(set(ids)), "each event id is stored once"

    asyncio.run(run())


_runs = st.sampled_from(["sr-1", "sr-2", "step:a:run:1", "step:b:run:2"])
_task_runs = st.sampled_from(["tr-1", "tr-2", "task:t:run:1", "task:u:run:2"])
_placed = st.one_of(
    st.fixed_dictionaries(
        {
            "event_type": st.sampled_from(["step.scheduled", "step.started", "step.done", "step.enter", "step.exit"]),
            "entity_type": st.just("step"),
            "entity_id": st.sampled_from(["a", "b"]),
        },
        optional={"step_run_id": _runs},
    ),
    st.fixed_dictionaries(
        {
            "event_type": st.sampled_from(["task.started", "task.attempt.failed", "task.done", "tool.processed"]),
            "entity_type": st.just("task"),
            "entity_id": st.sampled_from(["t", "u"]),
        },
        optional={"parent_id": _runs, "step_run_id": _runs, "task_run_id": _task_runs, "iteration": st.integers(0, 2)},
    ),
    st.fixed_dictionaries(
        {
            "event_type": st.sampled_from(["policy.task.evaluated", "result.stored"]),
            "entity_id": st.sampled_from(["task:t", "task:t:attempt:2", "task:u"]),
            "parent_id": _task_runs,
        },
        optional={"iteration": st.integers(0, 2), "attempt": st.integers(1, 3)},
    ),
)


@given(st.lists(_placed, max_size=12), st.integers(1, 4))
def test_import_does_not_depend_on_the_batch_size(kinds: list[dict[str, Any]], size: int) -> None:
    events = [event(0, "playbook.started", entity_type="playbook", entity_id="p")]
    events += [{**event(number, ""), **each} for number, each in enumerate(kinds, 1)]

    async def views(step: int) -> list[dict[str, Any]]:
        async with rw.open_log("memory://") as log:
            for start in range(0, len(events), step):
                batch = events[start : start + step]
                assert await import_events(log, *batch) == ["appended"] * len(batch)
            assert await read_back(log, *events) == [_with_current_type(each) for each in events]
            return [noetl_event(record) for record in await log.read("exec_01JH")]

    assert asyncio.run(views(len(events))) == asyncio.run(views(size))


_CURRENT_TYPES = {"step.enter": "step.started", "step.exit": "step.done", "tool.processed": "task.done"}


def _with_current_type(sent: dict[str, Any]) -> dict[str, Any]:
    return {**sent, "event_type": _CURRENT_TYPES.get(sent["event_type"], sent["event_type"])}
