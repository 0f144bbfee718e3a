"""The NoETL view of a run: envelopes, payloads and final statuses."""

from __future__ import annotations

from typing import Any

import pytest

import runwright as rw
from runwright.contract.noetl.view import noetl_event
from support.engine import engine, wait_for_end, wait_for_event
from support.playbooks import arcs_to, noop, playbook, python_task, run_playbook


async def noetl_events(log: Any, run_id: str) -> list[dict[str, Any]]:
    return [noetl_event(record) for record in await log.read(run_id)]


def single_event(events: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    (found,) = [each for each in events if each["event_type"] == kind]
    return found


@pytest.mark.parametrize(("body", "status"), [("result = 1", "success"), ("1 / 0", "error")])
async def test_a_workflow_ends_as_its_run_does(file_store: str, body: str, status: str) -> None:
    async with engine(file_store) as operations:
        snapshot, _ = await run_playbook(operations, playbook({"step": "a", "tool": python_task(body)}))
        events = await noetl_events(operations.log, snapshot.run_id)
    finished = single_event(events, "workflow.finished")
    assert (finished["status"], single_event(events, "playbook.finished")["status"]) == (status, status)
    assert finished["payload"] == {"meta": {"runStatus": snapshot.status}}


async def test_a_workflow_that_is_cancelled_did_not_succeed(file_store: str) -> None:
    async with engine(file_store) as operations:
        run_id = await operations.start(
            operations.load(playbook({"step": "a", "tool": {"kind": "shell", "command": "sleep 30"}}))
        )
        await wait_for_event(operations, run_id, "TaskStarted", "a/a")
        await operations.signal(run_id, "CANCEL", {}, reason="x")
        await wait_for_end(operations, run_id)
        finished = single_event(await noetl_events(operations.log, run_id), "workflow.finished")
    assert (finished["status"], finished["payload"]["meta"]["runStatus"]) == ("error", "CANCELLED")


async def test_workflow_end_in_an_old_log_has_no_run_status() -> None:
    async with rw.open_log("memory://") as log:
        await log.append([rw.new_event("WorkflowFinished", rw.new_run("r", "p"))])
        (shown,) = await noetl_events(log, "r")
    assert (shown["status"], shown["payload"]) == ("success", {})


@pytest.mark.parametrize(("mode", "status"), [("best_effort", "success"), ("fail_fast", "error")])
async def test_loop_status_is_error_if_its_step_fails(file_store: str, mode: str, status: str) -> None:
    document = playbook(
        {"step": "a", "loop": {"in": [0, 1], "iterator": "n"}, "tool": python_task("result = 1 / n", n="{{ iter.n }}"),
         "spec": {"policy": {"failure": {"mode": mode}}}},
    )  # fmt: skip
    async with engine(file_store) as operations:
        snapshot, _ = await run_playbook(operations, document)
        events = await noetl_events(operations.log, snapshot.run_id)
    assert single_event(events, "loop.done")["status"] == status
    assert single_event(events, "loop.done")["payload"]["meta"]["failed"] == 1
    failed = [each for each in events if each["event_type"] in ("step.failed", "loop.iteration.failed")]
    assert failed
    assert all(each["payload"]["error"]["kind"] and "outcome" not in each["payload"] for each in failed)


async def test_task_events_have_a_duration(file_store: str) -> None:
    async with engine(file_store) as operations:
        snapshot, _ = await run_playbook(operations, playbook({"step": "a", "tool": noop(1)}))
        done = single_event(await noetl_events(operations.log, snapshot.run_id), "task.done")
    assert done["duration_ms"] == round(done["payload"]["outcome"]["meta"]["duration_ms"])
    assert isinstance(done["duration_ms"], int)


async def test_result_references_name_their_step_and_omit_values(file_store: str) -> None:
    document = playbook(
        {"step": "a", "loop": {"in": [1, 2], "iterator": "n"},
         "tool": {**noop("{{ 'x' * 70000 }}"), "spec": {"result": {"inline_max_bytes": 0}}}, "next": arcs_to("b")},
        {"step": "b", "tool": noop("{{ a | length }}")},
    )  # fmt: skip
    async with engine(file_store) as operations:
        snapshot, _ = await run_playbook(operations, document)
        events = await noetl_events(operations.log, snapshot.run_id)
    manifests = [each for each in events if each["event_type"] == "result.manifest.updated"]
    assert [(each["entity_id"], each["parent_id"]) for each in manifests] == [("step:a", "step:a:run:1")]
    ends = [each["payload"] for each in events if each["event_type"] in ("step.done", "loop.iteration.done")]
    referred = [payload for payload in ends if "result_ref" in payload]
    assert len(referred) == 2
    assert all("result" not in payload["outcome"] for payload in referred)


async def test_a_further_attempt_of_an_iteration_names_the_iteration(file_store: str) -> None:
    step = {
        "id": "many",
        "foreach": {"in": [1]},
        "python": {"code": "1 / 0"},
        "retry": {"maxAttempts": 2, "initial": 0},
    }
    async with engine(file_store) as operations:
        snapshot, _ = await run_playbook(operations, {"plan": "p", "steps": [step]})
        again = single_event(await noetl_events(operations.log, snapshot.run_id), "step.attempt.scheduled")
    assert (again["entity_id"], again["parent_id"]) == ("step:many:run:1:iteration:0", "step:many:run:1")
