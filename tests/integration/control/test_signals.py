"""Signals to runs: each leaves its decision and its effect in the log."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

import runwright as rw
from runwright.control.operations import Operations
from runwright.control.signal_service import SignalService
from support.engine import (
    engine,
    event_lines,
    fail_once_inputs,
    lines_of_types,
    python_inputs,
    run_plan,
    skip_reasons,
    statuses,
    step_of,
    wait_for_alerts,
    wait_for_end,
    wait_for_event,
    wait_for_file_inputs,
)
from support.waiting import until

FAIL = python_inputs("1 / 0")


@pytest.fixture
def store(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/runs.db"


async def start_run(operations: Operations, plan: dict[str, Any], *running: str, **start: Any) -> str:
    """Start a run, and wait until these steps are running."""
    run_id = await operations.start(operations.load({"plan": "p", **plan}), **start)
    for name in running:
        await wait_for_event(operations, run_id, "StepStarted", name)
    return run_id


# PAUSE and RESUME


async def test_a_pause_lets_running_steps_end_and_starts_nothing(
    store_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    go = tmp_path / "go"
    steps = [{"id": name, "python": wait_for_file_inputs(go)} for name in "abc"] + [
        {"id": "after", "dependsOn": ["a"], "noop": {}}
    ]
    async with engine(store_url) as operations:
        run_id = await start_run(operations, {"steps": steps}, "a", "b", "c")
        decision = await operations.signal(run_id, "PAUSE", reason="lunch")
        assert (decision.decision, decision.engine_result) == ("ACCEPTED", "PAUSED")
        snapshot = await operations.log.snapshot(run_id)
        assert (snapshot.status, snapshot.substatus) == ("PAUSED", "DRAINING")
        assert snapshot.message == "Workflow paused. Waiting for 3 in-flight tasks to complete."
        assert snapshot.reason == "lunch"

        go.touch()
        for name in "abc":
            await wait_for_event(operations, run_id, "StepCompleted", name)
        snapshot = await operations.log.snapshot(run_id)
        assert (snapshot.status, snapshot.substatus) == ("PAUSED", None)
        assert "StepStarted after" not in await event_lines(operations, run_id)

        again = await operations.signal(run_id, "PAUSE")
        assert again.engine_result == "ALREADY_PAUSED"
        assert (await operations.signal(run_id, "RESUME")).engine_result == "RESUMED"
        assert (await wait_for_end(operations, run_id)).status == "COMPLETED"
        assert lines_of_types(await event_lines(operations, run_id), "RunPaused", "RunResumed") == [
            "RunPaused",
            "RunResumed",
        ]


async def test_a_second_pause_has_the_ordinal_two(store: str, tmp_path: Path) -> None:
    go = tmp_path / "go"
    async with engine(store) as operations:
        run_id = await start_run(operations, {"steps": [{"id": "a", "python": wait_for_file_inputs(go)}]}, "a")
        sent = [await operations.signal(run_id, kind) for kind in ("PAUSE", "RESUME", "PAUSE", "RESUME")]
        go.touch()
        snapshot = await wait_for_end(operations, run_id)
        lines = lines_of_types(await event_lines(operations, run_id), "RunPaused", "RunResumed")
        second = await wait_for_event(operations, run_id, "RunPaused", None, 2)
    assert lines == ["RunPaused", "RunResumed", "RunPaused #2", "RunResumed #2"]
    assert (second.payload or {})["signalId"] == sent[2].signal_id
    assert (snapshot.status, snapshot.pauses) == ("COMPLETED", 2)


async def test_drain_timeout_raises_an_alert_and_allows_resume(store: str, tmp_path: Path) -> None:
    go = tmp_path / "go"
    async with engine(store, drain_timeout=0.3) as operations:
        run_id = await start_run(
            operations, {"steps": [{"id": "a", "python": wait_for_file_inputs(go)}, {"id": "b", "noop": {}}]}, "a"
        )
        await operations.signal(run_id, "PAUSE")
        await wait_for_event(operations, run_id, "RunDrainTimedOut")
        snapshot = await operations.log.snapshot(run_id)
        assert (snapshot.status, snapshot.substatus) == ("PAUSED", None)
        assert len(await wait_for_alerts(operations, run_id, "PAUSE_DRAIN_TIMEOUT")) == 1
        assert (await operations.signal(run_id, "RESUME")).engine_result == "RESUMED"
        go.touch()
        assert (await wait_for_end(operations, run_id)).status == "COMPLETED"


async def test_paused_loop_starts_no_more_iterations(store: str, tmp_path: Path) -> None:
    go = tmp_path / "go"
    step = {"id": "each", "foreach": {"in": [1, 2, 3], "maxParallel": 1}, "python": wait_for_file_inputs(go)}
    async with engine(store, drain_timeout=0.5) as operations:
        run_id = await start_run(operations, {"steps": [step]})
        await wait_for_event(operations, run_id, "LoopIterationStarted", "each[0]")
        await operations.signal(run_id, "PAUSE")
        go.touch()
        await wait_for_event(operations, run_id, "LoopIterationDone", "each[0]")
        await asyncio.sleep(0.8)
        lines = await event_lines(operations, run_id)
        assert lines_of_types(lines, "LoopIterationStarted") == ["LoopIterationStarted each[0]"]
        assert lines_of_types(lines, "RunDrainTimedOut") == []  # No step is running.
        await operations.signal(run_id, "RESUME")
        assert (await wait_for_end(operations, run_id)).status == "COMPLETED"


async def test_pause_during_many_completions_is_never_lost(store: str) -> None:
    """Pause a run of many short steps at any moment; nothing starts afterwards."""
    steps = [{"id": f"s{n}", "noop": {}} for n in range(300)]
    async with engine(store) as operations:
        run_id = await start_run(operations, {"steps": steps}, "s20")
        for number in range(1, 6):
            paused = await operations.signal(run_id, "PAUSE")
            if paused.decision == "REJECTED" or paused.engine_result == "RUN_TERMINAL":
                break
            assert paused.engine_result == "PAUSED"
            lines = await event_lines(operations, run_id)
            at = lines.index("RunPaused" if number == 1 else f"RunPaused #{number}")
            assert lines_of_types(lines[at:], "StepStarted", "RunCompleted") == []
            await operations.signal(run_id, "RESUME")
        assert (await wait_for_end(operations, run_id)).status == "COMPLETED"


# CANCEL and EMERGENCY_STOP


async def test_cancel_stops_running_steps_and_skips_the_rest(
    store_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    never = tmp_path / "never"
    steps = [
        {"id": "thread", "python": wait_for_file_inputs(never)},
        {"id": "process", "shell": "sleep 100"},
        {"id": "waits", "wait": "100s"},
        {"id": "each", "foreach": [1, 2], "python": wait_for_file_inputs(never)},
        {"id": "after", "dependsOn": ["thread"], "noop": {}},
    ]
    async with engine(store_url) as operations:
        run_id = await start_run(operations, {"steps": steps}, "thread", "process", "waits", "each")
        decision = await operations.signal(run_id, "CANCEL", reason="not today")
        snapshot = await wait_for_end(operations, run_id)
        lines = await event_lines(operations, run_id)
        records = await operations.log.read(run_id)
        end = await wait_for_event(operations, run_id, "RunCancelled")
    assert (snapshot.status, snapshot.reason) == ("CANCELLED", "not today")
    assert decision.engine_result == "CANCELLED"
    assert (end.payload or {})["signalId"] == decision.signal_id
    for name in ("thread", "process", "waits", "each"):
        assert f"StepFailed {name} CANCELLED" in lines
    assert skip_reasons(lines) == {"after": "RUN_CANCELLED"}
    last = [record for record in records if record.persisted_at == end.persisted_at]
    assert {record.step_id for record in last if record.event_type == "StepFailed"} == {
        "thread",
        "process",
        "waits",
        "each",
    }
    assert lines[-1] == "SignalProcessed CANCEL CANCELLED"
    for record in last:
        if record.event_type == "StepFailed":
            assert (record.payload or {})["error"]["retryable"] is False


async def test_step_that_completes_during_a_cancel_is_successful(store: str, tmp_path: Path) -> None:
    steps = [
        {"id": "a", "cancellable": False, "python": wait_for_file_inputs(tmp_path / "go", value=5)},
        {"id": "b", "noop": {}},
    ]
    async with engine(store) as operations:
        run_id = await start_run(operations, {"steps": steps}, "a")
        cancelling = asyncio.create_task(operations.signal(run_id, "CANCEL"))
        await until(lambda: has_signal(operations, run_id))
        (tmp_path / "go").touch()
        snapshot = await wait_for_end(operations, run_id)
        await cancelling
        assert await operations.result(run_id, "a") == 5
    assert snapshot.status == "CANCELLED"
    assert statuses(snapshot) == {"a": "SUCCESS", "b": "SKIPPED"}


async def has_signal(operations: Operations, run_id: str, count: int = 1) -> bool:
    return len(lines_of_types(await event_lines(operations, run_id), "SignalAccepted")) >= count


async def test_process_that_ignores_a_cancel_is_killed(store: str, tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    work = {"call": "support.engine_steps:ignore_sigterm", "args": {"file": str(pid)}}
    shell = f"trap '' TERM; echo $$ > {pid}-2; while true; do sleep 0.1; done"
    steps = [{"id": "a", "class": "isolation", "python": work}, {"id": "b", "shell": shell}]
    async with engine(store, stop_grace=0.3) as operations:
        run_id = await start_run(operations, {"order": "graph", "steps": steps}, "a", "b")
        await until(lambda: has_content(pid))
        await until(lambda: has_content(tmp_path / "pid-2"))
        await operations.signal(run_id, "CANCEL")
        snapshot = await wait_for_end(operations, run_id)
    assert snapshot.status == "CANCELLED"
    await until(lambda: is_gone(int(pid.read_text())))
    await until(lambda: is_gone(int((tmp_path / "pid-2").read_text())))


async def has_content(file: Path) -> bool:
    return file.exists() and bool(file.read_text().strip())


async def is_gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


async def test_cancel_waits_for_uncancellable_steps_up_to_deadline(store: str, tmp_path: Path) -> None:
    steps = [{"id": "a", "cancellable": False, "shell": "sleep 100"}]
    async with engine(store, cancel_deadline=0.3) as operations:
        run_id = await start_run(operations, {"steps": steps}, "a")
        await operations.signal(run_id, "CANCEL")
        assert (await wait_for_end(operations, run_id)).status == "CANCELLED"


async def test_an_emergency_stop_kills_and_raises_a_p1_alert(
    store_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    steps = [{"id": "a", "cancellable": False, "shell": "trap '' TERM; sleep 100"}, {"id": "b", "noop": {}}]
    async with engine(store_url) as operations:
        run_id = await start_run(operations, {"steps": steps}, "a")
        decision = await operations.signal(run_id, "EMERGENCY_STOP", {"reason": "fire"})
        snapshot = await wait_for_end(operations, run_id)
        lines = await event_lines(operations, run_id)
        raised = await wait_for_alerts(operations, run_id, "EMERGENCY_STOP")
    assert (snapshot.status, snapshot.reason) == ("CANCELLED", "fire")
    assert "StepFailed a KILLED" in lines
    assert skip_reasons(lines) == {"b": "RUN_CANCELLED"}
    assert decision.engine_result == "CANCELLED"
    assert [alert.severity for alert in raised] == ["P1"]


async def test_emergency_stop_does_not_wait_for_a_running_cancel(store: str) -> None:
    async with engine(store) as operations:
        run_id = await start_run(operations, {"steps": [{"id": "a", "cancellable": False, "shell": "sleep 100"}]}, "a")
        cancelling = asyncio.create_task(operations.signal(run_id, "CANCEL"))
        await until(lambda: has_signal(operations, run_id))
        await operations.signal(run_id, "EMERGENCY_STOP", {"reason": "now"})
        snapshot = await wait_for_end(operations, run_id)
        await cancelling
        assert len(await wait_for_alerts(operations, run_id, "EMERGENCY_STOP")) == 1
        assert "StepFailed a KILLED" in await event_lines(operations, run_id)
    assert (snapshot.status, snapshot.reason) == ("CANCELLED", "now")


@pytest.mark.parametrize("state", ["paused", "waiting for an operator", "driven by nobody"])
async def test_emergency_stop_of_an_idle_run_raises_its_alert(store: str, state: str) -> None:
    plan = {
        "onFailure": "wait",
        "steps": [{"id": "w", "wait": "100s"}] if state == "paused" else [{"id": "w", "python": FAIL}],
    }
    async with engine(store) as operations:
        run_id = await start_run(operations, plan, "w")
        if state == "paused":
            await operations.signal(run_id, "PAUSE")
        else:
            await wait_for_event(operations, run_id, "StepFailed", "w")
        if state != "driven by nobody":
            await operations.signal(run_id, "EMERGENCY_STOP", {"reason": "fire"})
            assert len(await wait_for_alerts(operations, run_id, "EMERGENCY_STOP")) == 1
            return
    async with engine(store) as operations:
        await operations.signal(run_id, "EMERGENCY_STOP", {"reason": "fire"})
        assert len(await wait_for_alerts(operations, run_id, "EMERGENCY_STOP")) == 1
        assert (await operations.log.snapshot(run_id)).status == "CANCELLED"


# RETRY_STEP and SKIP_STEP


async def test_a_failed_step_is_retried_and_the_run_completes(
    store_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    steps = [{"id": "a", "python": fail_once_inputs(tmp_path / "calls")}, {"id": "b", "noop": {}}]
    async with engine(store_url) as operations:
        run_id = await start_run(operations, {"onFailure": "wait", "steps": steps})
        await wait_for_event(operations, run_id, "StepFailed", "a")
        decision = await operations.signal(run_id, "RETRY_STEP", {"stepId": "a"})
        snapshot = await wait_for_end(operations, run_id)
        lines = await event_lines(operations, run_id)
    assert (decision.decision, decision.engine_result) == ("ACCEPTED", "RETRYING")
    assert snapshot.status == "COMPLETED"
    at = lines.index("StepFailed a STEP_RAISED")
    assert lines[at + 1 :] == [
        "SignalAccepted RETRY_STEP",
        "StepRetryScheduled a",
        "SignalProcessed RETRY_STEP RETRYING",
        "StepStarted a #2",
        "StepCompleted a #2",
        "StepStarted b",
        "StepCompleted b",
        "RunCompleted",
    ]


async def test_several_failed_steps_can_be_retried_at_once(store: str, tmp_path: Path) -> None:
    names = [f"s{n}" for n in range(8)]
    steps = [{"id": name, "python": fail_once_inputs(tmp_path / name)} for name in names]
    async with engine(store, park_after=0.0) as operations:
        run_id = await start_run(operations, {"order": "graph", "onFailure": "wait", "steps": steps})
        for name in names:
            await wait_for_event(operations, run_id, "StepFailed", name)
        decisions = await asyncio.gather(*(operations.signal(run_id, "RETRY_STEP", {"stepId": name}) for name in names))
        assert {decision.engine_result for decision in decisions} == {"RETRYING"}
        assert (await wait_for_end(operations, run_id)).status == "COMPLETED"


async def test_parked_run_counts_as_driven_while_it_is_reloaded(store: str) -> None:
    """A second signal would otherwise claim the run, apply both signals, and release a driven run."""
    async with engine(store, park_after=0.0) as operations:
        run_id = await start_run(operations, {"onFailure": "wait", "steps": [{"id": "a", "python": FAIL}]})
        await wait_for_event(operations, run_id, "StepFailed", "a")

        async def is_parked() -> bool:
            return run_id not in operations.engine._drivers

        await until(is_parked)
        operations.engine.on_signal(run_id)
        for _ in range(20):
            assert operations.engine.is_driven(run_id)
            await asyncio.sleep(0)


async def test_force_runs_a_step_again_that_succeeded(store: str, tmp_path: Path) -> None:
    go, notes = tmp_path / "go", tmp_path / "notes"
    note = {"call": "support.engine_steps:note", "args": {"file": str(notes)}}
    async with engine(store) as operations:
        run_id = await start_run(
            operations,
            {"order": "graph", "steps": [{"id": "a", "python": note}, {"id": "b", "python": wait_for_file_inputs(go)}]},
        )
        await wait_for_event(operations, run_id, "StepCompleted", "a")
        await wait_for_event(operations, run_id, "StepStarted", "b")
        refused = await operations.signal(run_id, "RETRY_STEP", {"stepId": "a"})
        assert (refused.decision, refused.code) == ("REJECTED", "STEP_TERMINAL")
        forced = await operations.signal(run_id, "RETRY_STEP", {"stepId": "a", "force": True})
        assert forced.engine_result == "RETRYING"
        await wait_for_event(operations, run_id, "StepCompleted", "a", 2)
        go.touch()
        snapshot = await wait_for_end(operations, run_id)
    assert snapshot.status == "COMPLETED"
    assert step_of(snapshot, "a").logical_attempt_id == 2
    assert len(notes.read_text().splitlines()) == 2


async def test_skip_of_a_pending_step_keeps_the_order(store: str, tmp_path: Path) -> None:
    go = tmp_path / "go"
    steps = [{"id": "a", "python": wait_for_file_inputs(go)}, {"id": "b", "python": FAIL}, {"id": "c", "noop": {}}]
    async with engine(store) as operations:
        run_id = await start_run(operations, {"steps": steps}, "a")
        decision = await operations.signal(run_id, "SKIP_STEP", {"stepId": "b", "reason": "not needed"})
        assert decision.engine_result == "SKIPPED"
        skipped = await wait_for_event(operations, run_id, "StepSkipped", "b")
        assert (skipped.payload or {}) == {
            "reasonCode": "OPERATOR_SKIP",
            "reason": "not needed",
            "signalId": decision.signal_id,
        }
        assert "StepStarted c" not in await event_lines(operations, run_id)  # Step a is still running.
        go.touch()
        snapshot = await wait_for_end(operations, run_id)
    assert snapshot.status == "COMPLETED"
    assert statuses(snapshot) == {"a": "SUCCESS", "b": "SKIPPED", "c": "SUCCESS"}


# UPDATE_PARAMS and INJECT_OVERRIDE


async def test_updated_parameters_apply_from_the_next_step(
    store_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    go = tmp_path / "go"
    steps = [
        {"id": "a", "python": wait_for_file_inputs(go, value="{{ params.day }}")},
        {
            "id": "b",
            "python": {
                "call": "support.engine_steps:echo",
                "args": {"day": "{{ params.day }}", "other": "{{ params.other }}"},
            },
        },
    ]
    async with engine(store_url) as operations:
        run_id = await start_run(operations, {"params": {"day": 1, "other": "x"}, "steps": steps}, "a")
        first = await operations.signal(run_id, "UPDATE_PARAMS", {"params": {"day": 2}}, reason="late data")
        second = await operations.signal(run_id, "UPDATE_PARAMS", {"params": {"day": 3}}, reason="later data")
        assert (first.engine_result, second.engine_result) == ("UPDATED", "UPDATED")
        go.touch()
        assert (await wait_for_end(operations, run_id)).status == "COMPLETED"
        assert await operations.result(run_id, "a") == 1
        assert await operations.result(run_id, "b") == {"day": 3, "other": "x"}
        updated = await wait_for_event(operations, run_id, "RunParamsUpdated", None, 2)
    assert (updated.payload or {}) == {"params": {"day": 3, "other": "x"}, "signalId": second.signal_id}


async def test_override_replaces_inputs_of_a_pending_step(store: str, tmp_path: Path) -> None:
    go = tmp_path / "go"
    steps = [
        {"id": "a", "python": wait_for_file_inputs(go, value=20)},
        {"id": "b", "python": {"call": "support.engine_steps:echo", "args": {"x": 1}}},
    ]
    async with engine(store) as operations:
        run_id = await start_run(operations, {"steps": steps}, "a")
        running = await operations.signal(
            run_id, "INJECT_OVERRIDE", {"stepId": "a", "override": {"args": {}}}, reason="try"
        )
        assert (running.decision, running.code) == ("REJECTED", "STEP_NOT_TERMINAL")
        decision = await operations.signal(
            run_id, "INJECT_OVERRIDE", {"stepId": "b", "override": {"args": {"x": 2}}}, reason="fix"
        )
        assert decision.engine_result == "OVERRIDDEN"
        go.touch()
        assert (await wait_for_end(operations, run_id)).status == "COMPLETED"
        assert await operations.result(run_id, "b") == {"x": 2}


async def test_override_with_an_unretained_result_is_rejected(store: str, tmp_path: Path) -> None:
    go = tmp_path / "go"
    steps = [
        {"id": "a", "python": python_inputs("20")},
        {"id": "hold", "python": wait_for_file_inputs(go)},
        {"id": "b", "python": {"call": "support.engine_steps:echo", "args": {"x": 1}}},
    ]
    async with engine(store) as operations:
        run_id = await start_run(operations, {"steps": steps}, "hold")
        override = {"args": {"x": "{{ steps.a.result + 1 }}"}}
        decision = await operations.signal(
            run_id, "INJECT_OVERRIDE", {"stepId": "b", "override": override}, reason="fix"
        )
        assert (decision.decision, decision.code) == ("REJECTED", "SIGNAL_INVALID_PAYLOAD")
        go.touch()
        assert (await wait_for_end(operations, run_id)).status == "COMPLETED"
        assert await operations.result(run_id, "b") == {"x": 1}


# RETRY_RUN and rerun


async def test_interrupted_retry_run_is_completed_by_same_signal(
    store_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    steps = [{"id": "a", "python": fail_once_inputs(tmp_path / "calls", value=1)}]
    async with engine(store_url) as operations:
        old = await run_plan(operations, {"plan": "p", "steps": steps})
        append = operations.log.append

        async def fail(*_: Any, **__: Any) -> Any:
            raise RuntimeError("killed between the new run and the note of it")

        signal_id = operations.log.ids.event_id()
        original = SignalService._record

        async def record(self: SignalService, *arguments: Any) -> bool:
            written = await original(self, *arguments)
            monkeypatch.setattr(operations.log, "append", fail)
            return written

        monkeypatch.setattr(SignalService, "_record", record)
        with pytest.raises(RuntimeError):
            await operations.signal(old.run_id, "RETRY_RUN", signal_id=signal_id)
        monkeypatch.setattr(operations.log, "append", append)
        monkeypatch.setattr(SignalService, "_record", original)
        decision = await operations.signal(old.run_id, "RETRY_RUN", signal_id=signal_id)
        runs = (await operations.log.list_runs()).runs
    assert decision.engine_result == "NEW_RUN"
    assert {row.identity.run_id for row in runs} == {old.run_id, decision.new_run_id}


async def test_retry_run_starts_a_new_run_that_names_the_old_one(
    store_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    notes = tmp_path / "notes"
    steps = [
        {
            "id": "a",
            "python": {"call": "support.engine_steps:note", "args": {"file": str(notes), "value": {"rows": 3}}},
        },
        {"id": "b", "python": fail_once_inputs(tmp_path / "calls", value="{{ steps.a.result.rows }}")},
        {"id": "c", "python": python_inputs("n", n="{{ steps.b.result }}")},
    ]
    async with engine(store_url) as operations:
        old = await run_plan(operations, {"plan": "p", "steps": steps})
        assert old.status == "FAILED"
        decision = await operations.signal(old.run_id, "RETRY_RUN")
        assert (decision.decision, decision.engine_result) == ("ACCEPTED", "NEW_RUN")
        assert decision.new_run_id not in (None, old.run_id)
        assert decision.new_run_id is not None
        snapshot = await wait_for_end(operations, decision.new_run_id)
        queued = await wait_for_event(operations, decision.new_run_id, "RunQueued")
        carried = await wait_for_event(operations, decision.new_run_id, "StepSkipped", "a")
        assert await operations.result(decision.new_run_id, "c") == 3
        assert await operations.result(decision.new_run_id, "a") == {"rows": 3}
        again = await operations.signal(old.run_id, "RETRY_RUN", signal_id=decision.signal_id)
        assert again.new_run_id == decision.new_run_id  # The same signal makes no second run.
        assert (await operations.log.snapshot(old.run_id)).status == "FAILED"
    assert snapshot.status == "COMPLETED"
    assert snapshot.origin_run_id == old.run_id
    assert (queued.payload or {})["originRunId"] == old.run_id
    assert (queued.payload or {})["forkedFromSeq"] >= old.last_event_seq
    assert (carried.payload or {})["reasonCode"] == "CARRIED_OVER"
    assert (carried.payload or {})["originRunId"] == old.run_id
    assert len(notes.read_text().splitlines()) == 1


async def test_id_of_a_retried_run_cannot_be_known_before(tmp_path: Path) -> None:
    """It does not follow from what the sender chooses: no other caller can take it first."""
    signal_id, new_ids = str(uuid4()), set[str | None]()
    for number in range(2):
        async with engine(f"sqlite:///{tmp_path}/{number}.db") as operations:
            plan = operations.load({"plan": "p", "steps": [{"id": "a", "python": python_inputs("1 / 0")}]})
            await operations.start(plan, run_id="r")
            await wait_for_end(operations, "r")
            new_ids.add((await operations.signal("r", "RETRY_RUN", signal_id=signal_id)).new_run_id)
    assert len(new_ids - {None}) == 2


async def test_retry_run_with_force_carries_nothing_over(store: str, tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    steps = [
        {"id": "a", "python": {"call": "support.engine_steps:note", "args": {"file": str(notes)}}},
        {"id": "b", "python": fail_once_inputs(tmp_path / "calls")},
    ]
    async with engine(store) as operations:
        old = await run_plan(operations, {"plan": "p", "steps": steps})
        decision = await operations.signal(old.run_id, "RETRY_RUN", {"force": True})
        assert decision.new_run_id is not None
        snapshot = await wait_for_end(operations, decision.new_run_id)
    assert statuses(snapshot) == {"a": "SUCCESS", "b": "SUCCESS"}
    assert len(notes.read_text().splitlines()) == 2


async def test_a_run_is_rerun_from_a_step(store: str, tmp_path: Path) -> None:
    steps = [
        {"id": "a", "python": {"call": "support.engine_steps:big", "args": {"size": 70_000}}},
        {"id": "b", "dependsOn": ["a"], "python": python_inputs("len(a)", a="{{ steps.a.result }}")},
        {"id": "c", "dependsOn": ["b"], "noop": {}},
        {"id": "side", "noop": {}},
    ]
    async with engine(store) as operations:
        old = await run_plan(operations, {"plan": "p", "steps": steps})
        new_id = await operations.rerun(old.run_id, from_step="b")
        snapshot = await wait_for_end(operations, new_id)
        lines = await event_lines(operations, new_id)
        assert await operations.result(new_id, "b") == 70_000
        assert await operations.result(new_id, "a") == "x" * 70_000
        with pytest.raises(rw.RunwrightError) as caught:
            await operations.rerun(old.run_id, from_step="nosuch")
        assert caught.value.code == "STEP_NOT_FOUND"
    assert snapshot.status == "COMPLETED"
    assert skip_reasons(lines) == {"a": "CARRIED_OVER", "side": "CARRIED_OVER"}
    assert lines_of_types(lines, "StepStarted") == ["StepStarted b", "StepStarted c"]


async def test_a_rerun_of_a_sequential_plan_keeps_its_order(store: str, tmp_path: Path) -> None:
    steps = [
        {"id": "a", "python": fail_once_inputs(tmp_path / "a")},
        {"id": "b", "noop": {}},
        {"id": "c", "python": fail_once_inputs(tmp_path / "c")},
    ]
    async with engine(store) as operations:
        old = await run_plan(operations, {"plan": "p", "onFailure": "continue", "steps": steps})
        assert statuses(old) == {"a": "FAILED", "b": "SUCCESS", "c": "FAILED"}
        new_id = await operations.rerun(old.run_id)
        assert (await wait_for_end(operations, new_id)).status == "COMPLETED"
        lines = lines_of_types(await event_lines(operations, new_id), "StepStarted", "StepCompleted")
    assert lines == ["StepStarted a", "StepCompleted a", "StepStarted c", "StepCompleted c"]


async def test_a_running_run_cannot_be_rerun(store: str) -> None:
    async with engine(store) as operations:
        run_id = await start_run(operations, {"steps": [{"id": "a", "wait": "100s"}]}, "a")
        with pytest.raises(rw.RunwrightError) as caught:
            await operations.rerun(run_id)
        assert caught.value.code == "RUN_NOT_TERMINAL"
        refused = await operations.signal(run_id, "RETRY_RUN")
        assert (refused.decision, refused.code) == ("REJECTED", "RUN_NOT_TERMINAL")


# Runs without a driver, and other processes


async def test_signal_to_a_run_without_driver_is_applied(
    durable_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    steps = [
        {"id": "a", "python": FAIL},
        {"id": "b", "foreach": ["x" * 40_000, "y" * 40_000], "python": python_inputs("len(i)", i="{{ item }}")},
    ]
    plan = {"onFailure": "wait", "steps": steps}
    async with engine(durable_url) as operations:
        run_id = await start_run(operations, plan, "a", run_id="run-1")
        await wait_for_event(operations, run_id, "StepFailed", "a")
    async with engine(durable_url) as operations:
        decision = await operations.signal(run_id, "SKIP_STEP", {"stepId": "a"})
        assert decision.engine_result == "SKIPPED"
        assert (await operations.log.find_run(run_id)).owner is None
        assert lines_of_types(await event_lines(operations, run_id), "StepStarted") == [
            "StepStarted a"
        ]  # No other step was started.
    async with engine(durable_url, recover=True) as operations:
        snapshot = await wait_for_end(operations, run_id)
        assert snapshot.status == "COMPLETED"
        assert await operations.result(run_id, "b") == [40_000, 40_000]


async def test_cancel_of_a_run_without_driver_ends_the_run(
    durable_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    async with engine(durable_url) as operations:
        run_id = await start_run(
            operations,
            {"steps": [{"id": "a", "python": wait_for_file_inputs(tmp_path / "never")}, {"id": "b", "noop": {}}]},
            "a",
        )
    async with engine(durable_url) as operations:
        decision = await operations.signal(run_id, "CANCEL")
        assert decision.engine_result == "CANCELLED"
        snapshot = await wait_for_end(operations, run_id)
        assert "StepFailed a CANCELLED" in await event_lines(operations, run_id)
    assert snapshot.status == "CANCELLED"


async def test_concurrent_signals_without_driver_are_all_applied(store: str) -> None:
    plan = {"params": dict.fromkeys("abcd", 0), "steps": [{"id": "w", "wait": "100s"}]}
    async with engine(store) as operations:
        run_id = await start_run(operations, plan, "w")
    async with engine(store) as operations:
        sent = [operations.signal(run_id, "UPDATE_PARAMS", {"params": {name: 1}}, reason="r") for name in "abcd"]
        decisions = await asyncio.gather(*sent)
        assert {decision.engine_result for decision in decisions} == {"UPDATED"}
        last = await wait_for_event(operations, run_id, "RunParamsUpdated", None, 4)
    assert (last.payload or {})["params"] == dict.fromkeys("abcd", 1)


async def test_concurrent_signal_and_resume_leave_the_run_driven(store: str, tmp_path: Path) -> None:
    plan = {"onFailure": "wait", "steps": [{"id": "a", "python": fail_once_inputs(tmp_path / "calls")}]}
    async with engine(store) as operations:
        run_id = await start_run(operations, plan)
        await wait_for_event(operations, run_id, "StepFailed", "a")
    async with engine(store) as operations:
        await asyncio.gather(operations.signal(run_id, "RETRY_STEP", {"stepId": "a"}), operations.resume(run_id))
        assert (await wait_for_end(operations, run_id)).status == "COMPLETED"


async def test_signal_from_another_engine_acts_within_a_second(
    durable_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another engine on the same store; tests/faults has the case of another process."""
    monkeypatch.chdir(tmp_path)
    go = tmp_path / "go"
    async with engine(durable_url) as driving, engine(durable_url) as other:
        run_id = await start_run(
            driving, {"steps": [{"id": "a", "python": wait_for_file_inputs(go)}, {"id": "b", "noop": {}}]}, "a"
        )
        began = time.monotonic()
        decision = await other.signal(run_id, "PAUSE")
        assert decision.engine_result == "PAUSED"
        assert time.monotonic() - began < 1.0
        go.touch()
        assert (await other.signal(run_id, "RESUME")).engine_result == "RESUMED"
        assert (await wait_for_end(other, run_id)).status == "COMPLETED"


async def test_parked_run_receives_signals(store: str, tmp_path: Path) -> None:
    go = tmp_path / "go"
    go.touch()
    async with engine(store, park_after=0.0) as operations:
        run_id = await start_run(
            operations, {"steps": [{"id": "w", "wait": "100s"}, {"id": "a", "python": wait_for_file_inputs(go)}]}
        )
        await wait_for_event(operations, run_id, "StepDelayed", "w")
        assert (await operations.signal(run_id, "PAUSE")).engine_result == "PAUSED"
        assert (await operations.signal(run_id, "RESUME")).engine_result == "RESUMED"
        assert (await operations.signal(run_id, "CANCEL")).engine_result == "CANCELLED"
        assert (await wait_for_end(operations, run_id)).status == "CANCELLED"


async def test_following_ends_when_the_run_is_cancelled(store: str) -> None:
    async with engine(store) as operations:
        run_id = await start_run(operations, {"steps": [{"id": "a", "wait": "100s"}]}, "a")

        async def follow(after: int = 0) -> list[str]:
            return [record.event_type async for record in operations.events(run_id, after, follow=True)]

        following = asyncio.create_task(follow())
        await operations.signal(run_id, "CANCEL")
        seen = await asyncio.wait_for(following, 10)
        assert "RunCancelled" in seen
        await operations.signal(run_id, "PAUSE")  # The refusal is in the log after the end of the run.
        assert (await asyncio.wait_for(follow(), 10))[-1] == "SignalRejected"
