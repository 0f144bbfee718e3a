"""Attempts and timeouts, and their events in the log."""

from __future__ import annotations

from pathlib import Path

import pytest

from runwright.contract.timestamps import to_micros
from support.engine import (
    engine,
    event_lines,
    fail_once_inputs,
    lines_of_types,
    python_inputs,
    run_plan,
    sleep_inputs,
    statuses,
    step_of,
    wait_for_end,
    wait_for_event,
    wait_for_file_inputs,
)


@pytest.fixture
def store(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/runs.db"


async def test_step_is_retried_as_its_policy_specifies(
    store_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    step = {
        "id": "a",
        "retry": {"maxAttempts": 3, "initial": "10ms"},
        "python": {
            "call": "support.engine_steps:fail_times",
            "args": {"file": str(tmp_path / "calls"), "times": 2, "value": 7},
        },
    }
    async with engine(store_url) as operations:
        snapshot = await run_plan(operations, {"plan": "p", "steps": [step]})
        assert await operations.result(snapshot.run_id, "a") == 7
        lines = await event_lines(operations, snapshot.run_id)
        records = await operations.log.read(snapshot.run_id)
    assert lines == [
        "RunQueued",
        "RunStarted",
        "StepStarted a",
        "StepFailed a STEP_RAISED",
        "StepRetryScheduled a",
        "StepStarted a #2",
        "StepFailed a #2 STEP_RAISED",
        "StepRetryScheduled a #2",
        "StepStarted a #3",
        "StepCompleted a #3",
        "RunCompleted",
    ]
    assert snapshot.status == "COMPLETED"
    a = step_of(snapshot, "a")
    assert (a.logical_attempt_id, a.engine_attempt_id) == (3, 1)
    assert a.earlier_attempts == ("FAILED", "FAILED")
    scheduled = [record for record in records if record.event_type == "StepRetryScheduled"]
    for record, following in zip(scheduled, ("StepStarted a #2", "StepStarted a #3"), strict=True):
        payload = record.payload or {}
        assert payload["attempt"] == record.logical_attempt_id + 1
        started = records[lines.index(following)]
        assert to_micros(payload["nextAttemptAt"]) <= to_micros(started.emitted_at)


async def test_a_step_whose_attempts_are_used_up_fails_the_run(store: str) -> None:
    step = {"id": "a", "retry": {"maxAttempts": 3, "initial": 0}, "python": python_inputs("1 / 0")}
    async with engine(store) as operations:
        snapshot = await run_plan(operations, {"plan": "p", "steps": [step]})
        assert len(lines_of_types(await event_lines(operations, snapshot.run_id), "StepStarted")) == 3
    assert snapshot.status == "FAILED"
    assert snapshot.root_cause is not None
    assert (snapshot.root_cause.step_id, snapshot.root_cause.code) == ("a", "STEP_RAISED")
    assert "ZeroDivisionError" in (snapshot.root_cause.message or "")


async def test_non_retryable_error_is_not_retried(store: str) -> None:
    step = {
        "id": "a",
        "retry": {"maxAttempts": 5, "initial": 0},
        "python": {"call": "support.engine_steps:fail_without_retry"},
    }
    async with engine(store) as operations:
        snapshot = await run_plan(operations, {"plan": "p", "steps": [step]})
        failed = await wait_for_event(operations, snapshot.run_id, "StepFailed", "a")
    error = step_of(snapshot, "a").error
    assert error is not None
    assert (error.code, error.message, error.retryable, error.category) == (
        "NO_SUCH_ORDER",
        "it is not there",
        False,
        "data",
    )
    assert (failed.payload or {})["error"]["code"] == "NO_SUCH_ORDER"
    assert step_of(snapshot, "a").logical_attempt_id == 1


async def test_run_that_waits_for_a_retry_has_substatus_retrying(store: str, tmp_path: Path) -> None:
    step = {
        "id": "a",
        "retry": {"maxAttempts": 2, "initial": "30s", "jitter": False},
        "python": fail_once_inputs(tmp_path / "calls"),
    }
    async with engine(store) as operations:
        run_id = await operations.start(operations.load({"plan": "p", "steps": [step]}))
        await wait_for_event(operations, run_id, "StepRetryScheduled", "a")
        snapshot = await operations.log.snapshot(run_id)
        assert (snapshot.status, snapshot.substatus) == ("RUNNING", "RETRYING")
        assert step_of(snapshot, "a").status == "FAILED"
        # The signal brings the retry forward.
        decision = await operations.signal(run_id, "RETRY_STEP", {"stepId": "a"})
        assert (decision.decision, decision.engine_result) == ("ACCEPTED", "RETRYING")
        snapshot = await wait_for_end(operations, run_id)
        started = await wait_for_event(operations, run_id, "StepStarted", "a", 2)
    assert snapshot.status == "COMPLETED"
    assert (started.payload or {})["forcedBy"] == decision.signal_id


@pytest.mark.parametrize("kind", ["python", "shell", "isolation"])
async def test_step_that_times_out_is_stopped_and_retried(store: str, tmp_path: Path, kind: str) -> None:
    first = tmp_path / "first"
    if kind == "shell":
        work = {"shell": f"if [ -e {first} ]; then echo '[\"done\"]'; else touch {first}; sleep 60; fi"}
    else:
        work = {"python": {"call": "support.engine_steps:first_time_hang", "args": {"file": str(first)}}}
    # An isolated step must first start Python, which takes a while on a busy machine.
    step = {
        "id": "a",
        "timeout": "3s" if kind == "isolation" else "0.5s",
        "retry": {"maxAttempts": 2, "initial": 0},
        **work,
    }
    if kind == "isolation":
        step["class"] = "isolation"
    async with engine(store) as operations:
        snapshot = await run_plan(operations, {"plan": "p", "steps": [step]})
        lines = await event_lines(operations, snapshot.run_id)
        assert snapshot.status == "COMPLETED", lines
        assert await operations.result(snapshot.run_id, "a") in ("done", ["done"])
        failed = await wait_for_event(operations, snapshot.run_id, "StepFailed", "a")
    error = (failed.payload or {})["error"]
    assert (error["code"], error["retryable"]) == ("STEP_TIMEOUT", True)


async def test_a_wait_that_is_longer_than_its_timeout_fails(store: str) -> None:
    async with engine(store) as operations:
        snapshot = await run_plan(operations, {"plan": "p", "steps": [{"id": "a", "wait": "60s", "timeout": "0.2s"}]})
    assert snapshot.status == "FAILED"
    assert snapshot.root_cause is not None
    assert snapshot.root_cause.code == "STEP_TIMEOUT"


async def test_wait_with_an_invalid_duration_fails_its_step(store: str) -> None:
    async with engine(store) as operations:
        snapshot = await run_plan(
            operations, {"plan": "p", "params": {"long": "soon"}, "steps": [{"id": "a", "wait": "{{ params.long }}"}]}
        )
    assert snapshot.status == "FAILED"
    assert snapshot.root_cause is not None
    assert snapshot.root_cause.code == "INVALID_INPUT"


async def test_run_timeout_ends_all_steps_before_the_run(store: str, tmp_path: Path) -> None:
    steps = [
        {"id": "slow", "python": wait_for_file_inputs(tmp_path / "never")},
        {"id": "waits", "wait": "60s"},
        {"id": "each", "foreach": [1, 2, 3], "python": wait_for_file_inputs(tmp_path / "never")},
        {"id": "done", "noop": {}},
        {"id": "after", "dependsOn": ["slow"], "noop": {}},
    ]
    async with engine(store) as operations:
        snapshot = await run_plan(operations, {"plan": "p", "timeout": "0.5s", "steps": steps})
        lines = await event_lines(operations, snapshot.run_id)
        records = await operations.log.read(snapshot.run_id)
    assert snapshot.status == "FAILED"
    assert snapshot.root_cause is not None
    assert snapshot.root_cause.code == "RUN_TIMEOUT"
    assert lines[-1] == "RunFailed RUN_TIMEOUT"
    assert statuses(snapshot) == {
        "slow": "FAILED",
        "waits": "FAILED",
        "each": "FAILED",
        "done": "SUCCESS",
        "after": "SKIPPED",
    }
    assert {
        "StepFailed slow TIMEOUT",
        "StepFailed waits TIMEOUT",
        "StepFailed each TIMEOUT",
        "StepSkipped after RUN_FAILED",
    } <= set(lines)
    end = [record for record, entry in zip(records, lines, strict=True) if "TIMEOUT" in entry]
    assert len({record.persisted_at for record in end}) == 1  # All of them are in one append.
    for record in end:
        if record.event_type == "StepFailed":
            assert (record.payload or {})["error"]["retryable"] is False


async def test_run_that_waits_for_an_operator_times_out(store: str) -> None:
    plan = {
        "plan": "p",
        "onFailure": "wait",
        "timeout": "0.4s",
        "steps": [{"id": "a", "python": python_inputs("1 / 0")}],
    }
    async with engine(store, park_after=0.0) as operations:
        snapshot = await run_plan(operations, plan)
    assert snapshot.root_cause is not None
    assert snapshot.root_cause.code == "RUN_TIMEOUT"


async def test_result_after_a_timeout_is_dropped(store: str, tmp_path: Path) -> None:
    """A thread cannot be stopped; a result that it returns after the timeout changes nothing."""
    go = tmp_path / "go"
    step = {
        "id": "a",
        "timeout": "0.2s",
        "python": {"call": "support.engine_steps:ignore_stop", "args": {"file": str(go)}},
    }
    other = {"plan": "q", "steps": [{"id": "b", "python": sleep_inputs(0.01)}]}
    async with engine(store, stop_grace=0.2) as operations:
        run_id = await operations.start(operations.load({"plan": "p", "steps": [step]}))
        assert (await run_plan(operations, other)).status == "COMPLETED"  # Other runs continue meanwhile.
        snapshot = await wait_for_end(operations, run_id)
        count = snapshot.last_event_seq
        go.touch()
        await run_plan(operations, other)
        assert (await operations.log.snapshot(run_id)).last_event_seq == count
    assert snapshot.status == "FAILED"
    assert snapshot.root_cause is not None
    assert snapshot.root_cause.code == "STEP_TIMEOUT"


async def test_abandoned_attempt_writes_no_checkpoints(
    store: str,
) -> None:
    """The current attempt would otherwise receive checkpoints of the abandoned one."""
    work = {"call": "support.engine_steps:checkpoint_in_spite_of_all", "args": {"seconds": 0.5}}
    step = {"id": "a", "timeout": "0.7s", "retry": {"maxAttempts": 2, "initial": 0}, "python": work}
    async with engine(store, stop_grace=0.2) as operations:
        run_id = await operations.start(operations.load({"plan": "p", "steps": [step]}))
        await wait_for_end(operations, run_id)
        lines = await event_lines(operations, run_id)
    after = lines[lines.index("StepFailed a STEP_TIMEOUT") :]
    assert lines_of_types(after, "CheckpointWritten") == []
