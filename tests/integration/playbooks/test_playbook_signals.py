"""Signals to playbooks: pause, resume, cancel, and those that playbooks do not support."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import runwright as rw
from runwright.contract.noetl.checker import NoetlChecker
from runwright.contract.noetl.view import noetl_event
from support.engine import engine, event_lines, lines_of_types, wait_for_end, wait_for_event
from support.playbooks import WAIT_FOR_FILE, arcs_to, noop, otherwise, playbook, python_task, rules


def waiting_loop(go: Path) -> dict[str, Any]:
    loop = {"in": [1, 2, 3], "iterator": "x", "spec": {"mode": "parallel", "max_in_flight": 2}}
    tasks = [{"first": python_task(WAIT_FOR_FILE, go=str(go))}, {"second": noop()}]
    return playbook({"step": "a", "loop": loop, "tool": tasks, "next": arcs_to("b")}, {"step": "b", "tool": noop()})


async def test_paused_playbook_starts_no_task_until_resumed(store: str, tmp_path: Path) -> None:
    go = tmp_path / "go"
    async with engine(store) as operations:
        run_id = await operations.start(operations.load(waiting_loop(go)))
        await wait_for_event(operations, run_id, "TaskStarted", "a[1]/first")
        await operations.signal(run_id, "PAUSE")
        await wait_for_event(operations, run_id, "RunPaused")
        draining = await operations.log.snapshot(run_id)
        assert (draining.substatus, (draining.message or "").split(" to ")[0][-17:]) == (
            "DRAINING",
            "2 in-flight tasks",
        )
        go.touch()
        await wait_for_event(operations, run_id, "TaskDone", "a[0]/first")
        await wait_for_event(operations, run_id, "TaskDone", "a[1]/first")
        paused = await operations.log.snapshot(run_id)
        assert (paused.status, paused.substatus) == ("PAUSED", None)  # its steps are not done, but nothing is running
        assert "TaskStarted a[0]/second" not in await event_lines(operations, run_id)
        await operations.signal(run_id, "RESUME")
        snapshot = await wait_for_end(operations, run_id)
        assert snapshot.status == "COMPLETED"
        assert len(lines_of_types(await event_lines(operations, run_id), "TaskDone")) == 7


async def test_a_cancelled_playbook_leaves_nothing_open(store: str, tmp_path: Path) -> None:
    async with engine(store) as operations:
        run_id = await operations.start(operations.load(waiting_loop(tmp_path / "never")))
        await wait_for_event(operations, run_id, "TaskStarted", "a[1]/first")
        await operations.signal(run_id, "EMERGENCY_STOP", {"reason": "enough"}, reason="enough")
        snapshot = await wait_for_end(operations, run_id)
        assert snapshot.status == "CANCELLED"
        lines = await event_lines(operations, run_id)
        records = await operations.log.read(run_id)
    assert lines_of_types(lines, "TaskFailed") == ["TaskFailed a[0]/first KILLED", "TaskFailed a[1]/first KILLED"]
    ends = ["WorkflowFinished", "RunCancelled", "RunProcessed"]
    assert [entry for entry in lines if entry in ends] == ends
    assert NoetlChecker().check(map(noetl_event, records)) == []


async def test_cancelled_attempt_ends_before_its_task(store: str, tmp_path: Path) -> None:
    task = {**python_task(WAIT_FOR_FILE, go=str(tmp_path / "never")), "spec": rules(otherwise("continue"))}
    async with engine(store) as operations:
        run_id = await operations.start(operations.load(playbook({"step": "a", "tool": task})))
        await wait_for_event(operations, run_id, "TaskAttemptStarted", "a/a")
        await operations.signal(run_id, "EMERGENCY_STOP", {"reason": "enough"}, reason="enough")
        assert (await wait_for_end(operations, run_id)).status == "CANCELLED"
        lines = lines_of_types(
            await event_lines(operations, run_id), "TaskAttemptFailed", "TaskFailed", "PolicyTaskEvaluated"
        )
        assert lines == ["TaskAttemptFailed a/a", "TaskFailed a/a KILLED"]
        assert NoetlChecker().check(map(noetl_event, await operations.log.read(run_id))) == []


async def test_task_waiting_for_a_retry_ends_with_its_run(store: str) -> None:
    task = {**python_task("1 / 0"), "spec": rules(otherwise("retry", attempts=2, delay=60))}
    async with engine(store) as operations:
        run_id = await operations.start(operations.load(playbook({"step": "a", "tool": task})))
        await wait_for_event(operations, run_id, "PolicyTaskEvaluated", "a/a")
        await operations.signal(run_id, "CANCEL")
        assert (await wait_for_end(operations, run_id)).status == "CANCELLED"
        assert lines_of_types(await event_lines(operations, run_id), "TaskFailed") == ["TaskFailed a/a CANCELLED"]
        assert NoetlChecker().check(map(noetl_event, await operations.log.read(run_id))) == []


@pytest.mark.parametrize(
    ("kind", "payload"),
    [
        ("SKIP_STEP", {"stepId": "b", "reason": "x"}),
        ("RETRY_STEP", {"stepId": "a"}),
        ("UPDATE_PARAMS", {"params": {"x": 1}}),
        ("INJECT_OVERRIDE", {"stepId": "b", "override": {}}),
    ],
)
async def test_signals_unsupported_by_playbooks_are_refused(
    file_store: str, tmp_path: Path, kind: str, payload: dict[str, Any]
) -> None:
    async with engine(file_store) as operations:
        run_id = await operations.start(operations.load(waiting_loop(tmp_path / "never")))
        await wait_for_event(operations, run_id, "TaskStarted", "a[1]/first")
        with pytest.raises(rw.RunwrightError) as caught:
            decision = await operations.signal(run_id, kind, payload, reason="x")
            raise rw.RunwrightError(rw.ErrorCode(decision.code or "INTERNAL_ERROR"), "refused")
        assert caught.value.code == "CAPABILITY_NOT_SUPPORTED"
        await operations.signal(run_id, "EMERGENCY_STOP", {"reason": "enough"}, reason="enough")
        await wait_for_end(operations, run_id)


async def test_a_failed_playbook_is_run_again_from_its_beginning(file_store: str, tmp_path: Path) -> None:
    text = "import os\nassert os.path.exists(go)"
    document = playbook(
        {"step": "a", "tool": noop(), "next": arcs_to("b")},
        {"step": "b", "tool": python_task(text, go=str(tmp_path / "go"))},
    )
    async with engine(file_store) as operations:
        run_id = await operations.start(operations.load(document))
        assert (await wait_for_end(operations, run_id)).status == "FAILED"
        (tmp_path / "go").touch()
        decision = await operations.signal(run_id, "RETRY_RUN", {}, reason="mended")
        again = await wait_for_end(operations, decision.new_run_id)
        assert (again.status, again.origin_run_id) == ("COMPLETED", run_id)
        with pytest.raises(rw.RunwrightError) as caught:
            await operations.rerun(run_id, from_step="b")
        assert caught.value.code == "CAPABILITY_NOT_SUPPORTED"


async def test_drain_waits_for_running_tasks_and_starts_no_more(store: str, tmp_path: Path) -> None:
    tasks = [{"first": python_task(WAIT_FOR_FILE, go=str(tmp_path / "go"))}, {"second": noop()}]
    document = playbook({"step": "a", "tool": tasks})
    async with engine(store) as operations:
        run_id = await operations.start(operations.load(document))
        await wait_for_event(operations, run_id, "TaskStarted", "a/first")
        draining = asyncio.create_task(operations.engine.drain(30))
        await asyncio.sleep(0.1)
        (tmp_path / "go").touch()
        await wait_for_event(operations, run_id, "TaskDone", "a/first")
        async with asyncio.timeout(10):
            await draining
        assert "TaskStarted a/second" not in await event_lines(operations, run_id)
    async with engine(store) as operations:
        await operations.engine.resume(run_id)
        assert (await wait_for_end(operations, run_id)).status == "COMPLETED"
