"""The order of steps, and the reasons of those that are skipped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from support.engine import (
    engine,
    event_lines,
    lines_of_types,
    python_inputs,
    run_plan,
    skip_reasons,
    sleep_inputs,
    statuses,
    wait_for_end,
    wait_for_event,
    wait_for_file_inputs,
)

FAIL = python_inputs("1 / 0")


@pytest.fixture
def store(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/runs.db"


async def test_a_plan_without_dependencies_runs_strictly_as_declared(
    store_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    names = ["late", "b", "a", "zz", "c"]
    steps: list[dict[str, Any]] = [{"id": name, "python": sleep_inputs(0.02)} for name in names]
    steps[2] = {"id": "a", "noop": {}}
    async with engine(store_url) as operations:
        snapshot = await run_plan(operations, {"plan": "p", "steps": steps})
        lines = lines_of_types(await event_lines(operations, snapshot.run_id), "StepStarted", "StepCompleted")
    assert snapshot.status == "COMPLETED"
    assert lines == [f"{kind} {name}" for name in names for kind in ("StepStarted", "StepCompleted")]


async def test_independent_branches_never_wait_for_each_other(
    durable_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While one branch is blocked, the other completes."""
    monkeypatch.chdir(tmp_path)
    go = tmp_path / "go"
    steps = [
        {"id": "slow", "python": wait_for_file_inputs(go)},
        {"id": "after-slow", "dependsOn": ["slow"], "noop": {}},
        {"id": "b1", "noop": {}},
        {"id": "b2", "dependsOn": ["b1"], "python": sleep_inputs(0.01)},
        {"id": "b3", "dependsOn": ["b2"], "noop": {}},
        {"id": "both", "dependsOn": ["b3", "after-slow"], "noop": {}},
    ]
    async with engine(durable_url) as operations:
        run_id = await operations.start(operations.load({"plan": "p", "steps": steps}))
        await wait_for_event(operations, run_id, "StepCompleted", "b3")
        lines = await event_lines(operations, run_id)
        assert "StepCompleted slow" not in lines
        assert "StepStarted both" not in lines
        go.touch()
        snapshot = await wait_for_end(operations, run_id)
        assert snapshot.status == "COMPLETED"


async def test_ready_steps_start_in_the_order_of_declaration(store: str) -> None:
    steps: list[dict[str, Any]] = [{"id": "root", "noop": {}}]
    steps += [{"id": name, "dependsOn": ["root"], "noop": {}} for name in ("z", "m", "a", "k")]
    async with engine(store) as operations:
        snapshot = await run_plan(operations, {"plan": "p", "steps": steps})
        started = lines_of_types(await event_lines(operations, snapshot.run_id), "StepStarted")
    assert started == ["StepStarted root", "StepStarted z", "StepStarted m", "StepStarted a", "StepStarted k"]


async def test_false_condition_skips_the_step_and_its_dependents(store: str) -> None:
    steps = [
        {"id": "a", "python": python_inputs("0")},
        {"id": "b", "dependsOn": ["a"], "when": "{{ steps.a.result > 0 }}", "noop": {}},
        {"id": "c", "dependsOn": ["b"], "noop": {}},
        {"id": "d", "dependsOn": ["c", "a"], "noop": {}},
        {"id": "e", "dependsOn": ["a"], "noop": {}},
    ]
    async with engine(store) as operations:
        snapshot = await run_plan(operations, {"plan": "p", "steps": steps})
        lines = await event_lines(operations, snapshot.run_id)
    assert snapshot.status == "COMPLETED"
    assert skip_reasons(lines) == {"b": "CONDITION_FALSE", "c": "DEPENDENCY_SKIPPED", "d": "DEPENDENCY_SKIPPED"}
    assert statuses(snapshot)["e"] == "SUCCESS"


async def test_sequential_plan_continues_after_a_false_condition(store: str) -> None:
    steps = [
        {"id": "a", "when": False, "noop": {}},
        {"id": "b", "when": "{{ params.go }}", "noop": {}},
        {"id": "c", "noop": {}},
    ]
    async with engine(store) as operations:
        snapshot = await run_plan(operations, {"plan": "p", "params": {"go": "false"}, "steps": steps})
        assert skip_reasons(await event_lines(operations, snapshot.run_id)) == {
            "a": "CONDITION_FALSE",
            "b": "CONDITION_FALSE",
        }
    assert snapshot.status == "COMPLETED"
    assert statuses(snapshot)["c"] == "SUCCESS"


async def test_a_condition_that_cannot_be_evaluated_fails_its_step(store: str) -> None:
    steps = [{"id": "a", "noop": {}}, {"id": "b", "when": "{{ steps.a.result.rows > 0 }}", "noop": {}}]
    async with engine(store) as operations:
        snapshot = await run_plan(operations, {"plan": "p", "steps": steps})
    assert snapshot.status == "FAILED"
    assert snapshot.root_cause is not None
    assert (snapshot.root_cause.step_id, snapshot.root_cause.code) == ("b", "EXPRESSION_ERROR")


def failing_graph(on_failure: str, go: Path) -> dict[str, Any]:
    return {
        "plan": "p",
        "onFailure": on_failure,
        "steps": [
            {"id": "slow", "python": wait_for_file_inputs(go)},
            {"id": "bad", "python": FAIL},
            {"id": "needs-bad", "dependsOn": ["bad"], "noop": {}},
            {"id": "needs-needs-bad", "dependsOn": ["needs-bad", "slow"], "noop": {}},
            {"id": "after-slow", "dependsOn": ["slow"], "noop": {}},
            {"id": "after-that", "dependsOn": ["after-slow"], "noop": {}},
        ],
    }


async def test_on_failure_fail_drains_the_run_and_skips_the_rest(store: str, tmp_path: Path) -> None:
    go = tmp_path / "go"
    async with engine(store) as operations:
        run_id = await operations.start(operations.load(failing_graph("fail", go)))
        await wait_for_event(operations, run_id, "StepFailed", "bad")
        assert (await operations.log.snapshot(run_id)).status == "RUNNING"
        go.touch()
        snapshot = await wait_for_end(operations, run_id)
        lines = await event_lines(operations, run_id)
    assert snapshot.status == "FAILED"
    assert snapshot.root_cause is not None
    assert snapshot.root_cause.step_id == "bad"
    assert statuses(snapshot)["slow"] == "SUCCESS"
    assert skip_reasons(lines) == {
        "needs-bad": "DEPENDENCY_FAILED",
        "needs-needs-bad": "DEPENDENCY_FAILED",
        "after-slow": "RUN_FAILED",
        "after-that": "RUN_FAILED",
    }
    assert len(snapshot.steps) == 6


async def test_on_failure_continue_runs_all_independent_steps(store: str, tmp_path: Path) -> None:
    go = tmp_path / "go"
    go.touch()
    async with engine(store) as operations:
        snapshot = await run_plan(operations, failing_graph("continue", go))
        lines = await event_lines(operations, snapshot.run_id)
    assert snapshot.status == "FAILED"
    assert statuses(snapshot)["after-that"] == "SUCCESS"
    assert skip_reasons(lines) == {"needs-bad": "DEPENDENCY_FAILED", "needs-needs-bad": "DEPENDENCY_FAILED"}


async def test_on_failure_continue_runs_later_sequential_steps(store: str) -> None:
    steps = [{"id": "a", "python": FAIL}, {"id": "b", "noop": {}}, {"id": "c", "python": FAIL}, {"id": "d", "noop": {}}]
    async with engine(store) as operations:
        snapshot = await run_plan(operations, {"plan": "p", "onFailure": "continue", "steps": steps})
    assert snapshot.status == "FAILED"
    assert statuses(snapshot) == {"a": "FAILED", "b": "SUCCESS", "c": "FAILED", "d": "SUCCESS"}
    assert snapshot.root_cause is not None
    assert snapshot.root_cause.step_id == "a"


async def test_on_failure_wait_skips_nothing_before_a_signal(store: str, tmp_path: Path) -> None:
    go = tmp_path / "go"
    go.touch()
    async with engine(store) as operations:
        run_id = await operations.start(operations.load(failing_graph("wait", go)))
        for kind, step in (("StepCompleted", "after-that"), ("StepFailed", "bad")):
            await wait_for_event(operations, run_id, kind, step)
        snapshot = await operations.log.snapshot(run_id)
        assert (snapshot.status, snapshot.substatus) == ("RUNNING", "embedded/WAITING_OPERATOR")
        assert skip_reasons(await event_lines(operations, run_id)) == {}

        skipped = await operations.signal(run_id, "SKIP_STEP", {"stepId": "bad"})
        assert (skipped.decision, skipped.engine_result) == ("ACCEPTED", "SKIPPED")
        snapshot = await wait_for_end(operations, run_id)
        lines = await event_lines(operations, run_id)
    assert snapshot.status == "COMPLETED"
    assert skip_reasons(lines) == {"bad": "OPERATOR_SKIP"}  # An operator skip does not propagate.
    assert "StepSkipped bad #2 OPERATOR_SKIP" in lines
    assert statuses(snapshot)["needs-needs-bad"] == "SUCCESS"


async def test_cancelling_a_waiting_run_skips_the_pending_steps(store: str, tmp_path: Path) -> None:
    go = tmp_path / "go"
    go.touch()
    async with engine(store) as operations:
        run_id = await operations.start(operations.load(failing_graph("wait", go)))
        await wait_for_event(operations, run_id, "StepCompleted", "after-that")
        await operations.signal(run_id, "CANCEL")
        snapshot = await wait_for_end(operations, run_id)
        assert skip_reasons(await event_lines(operations, run_id)) == {
            "needs-bad": "RUN_CANCELLED",
            "needs-needs-bad": "RUN_CANCELLED",
        }
    assert snapshot.status == "CANCELLED"


async def test_a_plan_of_many_steps_runs_each_once(store: str) -> None:
    """More events than fit into one append, and more steps than the capacity allows at once."""
    steps: list[dict[str, Any]] = [{"id": f"s{n}", "noop": {}, "when": n % 3 != 0} for n in range(2500)]
    async with engine(store) as operations:
        snapshot = await run_plan(operations, {"plan": "p", "order": "graph", "steps": steps})
    assert snapshot.status == "COMPLETED"
    assert (snapshot.completed_steps, snapshot.skipped_steps, len(snapshot.steps)) == (1666, 834, 2500)


async def test_ended_runs_verify_and_rebuild_without_differences(
    durable_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    go = tmp_path / "go"
    go.touch()
    async with engine(durable_url) as operations:
        for on_failure in ("fail", "continue"):
            await run_plan(operations, failing_graph(on_failure, go))
        assert [finding async for finding in operations.log.verify()] == []
        assert (await operations.log.rebuild(check=True)).different == []
