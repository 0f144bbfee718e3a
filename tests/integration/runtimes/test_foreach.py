"""`foreach`: one step, many iterations."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from support.engine import (
    engine,
    event_lines,
    fail_once_inputs,
    lines_of_types,
    python_inputs,
    run_plan,
    step_of,
    wait_for_end,
    wait_for_event,
    wait_for_file_inputs,
)

BIG = 70_000  # Bytes; a value beyond 64 KiB is stored outside its event.


@pytest.fixture
def store(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/runs.db"


def foreach_step(items: Any, work: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"id": "each", "foreach": items, "python": work, **more}


async def test_results_are_gathered_in_the_order_of_the_items(
    store_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    work = python_inputs(
        "import time\ntime.sleep(0.02 * (5 - number))\nresult = [number * 10, at]",
        number="{{ item }}",
        at="{{ index }}",
    )
    async with engine(store_url) as operations:
        snapshot = await run_plan(operations, {"plan": "p", "steps": [foreach_step([1, 2, 3, 4, 5], work)]})
        assert await operations.result(snapshot.run_id, "each") == [[10, 0], [20, 1], [30, 2], [40, 3], [50, 4]]
    iterations = step_of(snapshot, "each").iterations
    assert iterations is not None
    assert (iterations.total, iterations.done, iterations.failed, iterations.running) == (5, 5, 0, 0)


async def test_concurrent_iterations_do_not_exceed_max_parallel(store: str, tmp_path: Path) -> None:
    folder = tmp_path / "running"
    folder.mkdir()
    work = {
        "call": "support.engine_steps:count_at_once",
        "args": {"folder": str(folder), "name": "{{ item }}", "seconds": 0.05},
    }
    items = {"in": list(range(12)), "maxParallel": 3}
    async with engine(store) as operations:
        snapshot = await run_plan(operations, {"plan": "p", "steps": [foreach_step(items, work)]})
        counts = await operations.result(snapshot.run_id, "each")
    assert max(counts) in (2, 3)


async def test_an_empty_list_is_done_at_once(store: str) -> None:
    async with engine(store) as operations:
        snapshot = await run_plan(operations, {"plan": "p", "steps": [foreach_step([], python_inputs("1 / 0"))]})
        lines = await event_lines(operations, snapshot.run_id)
        done = await wait_for_event(operations, snapshot.run_id, "LoopDone", "each")
        assert await operations.result(snapshot.run_id, "each") == []
    assert snapshot.status == "COMPLETED"
    assert lines[2:] == ["StepStarted each", "LoopStarted each", "LoopDone each", "StepCompleted each", "RunCompleted"]
    assert done.payload == {"total": 0, "done": 0, "failed": 0, "stepFailed": False}


@pytest.mark.parametrize("items", ["{{ params.items }}", "{{ params.text }}", "{{ params.nothing }}"])
async def test_items_that_are_not_a_list_fail_the_step(store: str, items: str) -> None:
    params = {"items": {"a": 1}, "text": "abc", "nothing": None}
    async with engine(store) as operations:
        snapshot = await run_plan(
            operations, {"plan": "p", "params": params, "steps": [foreach_step(items, python_inputs("1"))]}
        )
    assert snapshot.status == "FAILED"
    assert snapshot.root_cause is not None
    assert snapshot.root_cause.code == "EXPRESSION_ERROR"


async def test_an_iteration_is_retried_by_itself(store: str, tmp_path: Path) -> None:
    work = fail_once_inputs(tmp_path / "calls-{{ item }}", value="{{ item }}")
    async with engine(store) as operations:
        snapshot = await run_plan(
            operations,
            {"plan": "p", "steps": [foreach_step(["a", "b"], work, retry={"maxAttempts": 2, "initial": "10ms"})]},
        )
        lines = await event_lines(operations, snapshot.run_id)
        assert await operations.result(snapshot.run_id, "each") == ["a", "b"]
    assert snapshot.status == "COMPLETED"
    assert len(lines_of_types(lines, "StepStarted")) == 1
    for path in ("each[0]", "each[1]"):
        own_lines = [entry for entry in lines if path in entry]
        assert own_lines == [
            f"LoopIterationStarted {path}",
            f"LoopIterationFailed {path} STEP_RAISED",
            f"StepRetryScheduled {path}",
            f"LoopIterationStarted {path} #2",
            f"LoopIterationDone {path} #2",
        ]
    iterations = step_of(snapshot, "each").iterations
    assert iterations is not None
    assert (iterations.done, iterations.failed, iterations.failures) == (2, 0, ())


async def test_retry_of_a_failed_loop_repeats_failed_iterations(
    store_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    args = {"file": str(tmp_path / "log"), "number": "{{ item }}", "bad": [1, 3], "good": str(tmp_path / "good")}
    work = {"call": "support.engine_steps:note_or_fail", "args": args}
    plan = {
        "plan": "p",
        "onFailure": "wait",
        "steps": [
            foreach_step({"in": [0, 1, 2, 3, 4], "maxParallel": 5}, work),
            {"id": "after", "python": python_inputs("sum(r)", r="{{ steps.each.result }}")},
        ],
    }
    async with engine(store_url) as operations:
        run_id = await operations.start(operations.load(plan))
        failed = await wait_for_event(operations, run_id, "StepFailed", "each")
        error = (failed.payload or {})["error"]
        assert error["code"] == "ITERATIONS_FAILED"
        assert "2 of 5" in error["message"]
        iterations = step_of(await operations.log.snapshot(run_id), "each").iterations
        assert iterations is not None
        assert (iterations.total, iterations.done, iterations.failed) == (5, 3, 2)
        assert sorted(failure.index for failure in iterations.failures) == [1, 3]

        (tmp_path / "good").touch()
        await operations.signal(run_id, "RETRY_STEP", {"stepId": "each"})
        snapshot = await wait_for_end(operations, run_id)
        lines = await event_lines(operations, run_id)
        assert await operations.result(run_id, "each") == [0, 1, 2, 3, 4]
        assert await operations.result(run_id, "after") == 10
        again = await wait_for_event(operations, run_id, "LoopStarted", "each~2")
    assert snapshot.status == "COMPLETED"
    assert (again.payload or {})["carriedOver"] == 3
    assert lines_of_types(lines, "LoopIterationStarted")[5:] == [
        "LoopIterationStarted each~2[1]",
        "LoopIterationStarted each~2[3]",
    ]
    assert sorted((tmp_path / "log").read_text().split()) == ["0", "1", "1", "2", "3", "3", "4"]
    iterations = step_of(snapshot, "each").iterations
    assert iterations is not None
    assert (iterations.total, iterations.done, iterations.failed) == (5, 5, 0)


async def test_after_a_failure_no_more_iterations_start(store: str, tmp_path: Path) -> None:
    args = {"file": str(tmp_path / "log"), "number": "{{ item }}", "bad": [2]}
    work = {"call": "support.engine_steps:note_or_fail", "args": args}
    async with engine(store) as operations:
        snapshot = await run_plan(
            operations, {"plan": "p", "steps": [foreach_step({"in": list(range(50)), "maxParallel": 1}, work)]}
        )
    assert snapshot.status == "FAILED"
    assert (tmp_path / "log").read_text().split() == ["0", "1", "2"]


async def test_nested_data_keeps_its_types(store: str) -> None:
    items = [{"name": "a", "rows": [1, 2.5, None, True, {"deep": ["x"]}]}, {"name": "b", "rows": []}]
    work = {
        "call": "support.engine_steps:echo",
        "args": {"whole": "{{ row }}", "rows": "{{ row.rows }}", "text": "{{ row.name }}-{{ index }}"},
    }
    async with engine(store) as operations:
        snapshot = await run_plan(operations, {"plan": "p", "steps": [foreach_step({"in": items, "as": "row"}, work)]})
        results = await operations.result(snapshot.run_id, "each")
    assert [result["whole"] for result in results] == items
    assert [result["rows"] for result in results] == [items[0]["rows"], []]
    assert [result["text"] for result in results] == ["a-0", "b-1"]


async def test_large_gathered_result_is_stored_by_reference(
    store_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    work = {"call": "support.engine_steps:big", "args": {"size": 30_000, "letter": "{{ item }}"}}
    after = {"id": "after", "python": python_inputs("[len(r) for r in rows]", rows="{{ steps.each.result }}")}
    async with engine(store_url) as operations:
        snapshot = await run_plan(operations, {"plan": "p", "steps": [foreach_step(["a", "b", "c"], work), after]})
        assert snapshot.status == "COMPLETED"
        completed = await wait_for_event(operations, snapshot.run_id, "StepCompleted", "each")
        assert await operations.result(snapshot.run_id, "each") == ["a" * 30_000, "b" * 30_000, "c" * 30_000]
        assert await operations.result(snapshot.run_id, "after") == [30_000] * 3
    payload = completed.payload or {}
    assert "result" not in payload
    assert payload["resultRef"]["sizeBytes"] > 90_000


async def test_large_iteration_results_are_passed_as_values(store: str) -> None:
    work = {"call": "support.engine_steps:big", "args": {"size": BIG, "letter": "{{ item }}"}}
    after = {"id": "after", "python": python_inputs("[r[:2] for r in rows]", rows="{{ steps.each.result }}")}
    async with engine(store) as operations:
        snapshot = await run_plan(operations, {"plan": "p", "steps": [foreach_step(["a", "b"], work), after]})
        assert await operations.result(snapshot.run_id, "each") == ["a" * BIG, "b" * BIG]
        assert await operations.result(snapshot.run_id, "after") == ["aa", "bb"]


async def test_loop_over_a_large_list_continues_after_recovery(
    durable_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    go = tmp_path / "go"
    plan = {
        "plan": "p",
        "steps": [
            {"id": "list", "python": python_inputs(f"['x' * {BIG} + str(n) for n in range(3)]")},
            foreach_step(
                {"in": "{{ steps.list.result }}", "maxParallel": 1},
                wait_for_file_inputs(go, value="{{ item[-1:] }}"),
                dependsOn=["list"],
            ),
        ],
    }
    async with engine(durable_url) as operations:
        run_id = await operations.start(operations.load(plan), run_id="run-1")
        started = await wait_for_event(operations, run_id, "LoopStarted", "each")
        assert "itemsRef" in (started.payload or {})
        await wait_for_event(operations, run_id, "LoopIterationStarted", "each[0]")
    go.touch()
    async with engine(durable_url) as operations:
        await operations.start(operations.load(plan), run_id="run-1")
        snapshot = await wait_for_end(operations, run_id)
        assert snapshot.status == "COMPLETED"
        assert await operations.result(run_id, "each") == ["0", "1", "2"]


async def test_a_step_may_use_several_large_results(store: str) -> None:
    steps = [
        {"id": name, "python": {"call": "support.engine_steps:big", "args": {"size": BIG, "letter": name}}}
        for name in "abc"
    ]
    use = {
        "id": "use",
        "python": python_inputs(
            "a[0] + b[0] + c[0]", a="{{ steps.a.result }}", b="{{ steps.b.result }}", c="{{ steps.c.result }}"
        ),
    }
    async with engine(store) as operations:
        snapshot = await run_plan(operations, {"plan": "p", "steps": [*steps, use]})
        assert await operations.result(snapshot.run_id, "use") == "abc"
        assert await operations.result(snapshot.run_id, "a") == "a" * BIG


async def test_a_loop_over_a_large_list_can_be_retried(store: str, tmp_path: Path) -> None:
    plan = {
        "plan": "p",
        "onFailure": "wait",
        "steps": [
            {"id": "list", "python": python_inputs(f"['x' * {BIG}] * 2")},
            foreach_step("{{ steps.list.result }}", fail_once_inputs(tmp_path / "calls-{{ index }}")),
        ],
    }
    async with engine(store) as operations:
        run_id = await operations.start(operations.load(plan))
        await wait_for_event(operations, run_id, "StepFailed", "each")
        decision = await operations.signal(run_id, "RETRY_STEP", {"stepId": "each"})
        assert decision.engine_result == "RETRYING"
        assert (await wait_for_end(operations, run_id)).status == "COMPLETED"


async def test_missing_list_fails_the_step_and_not_the_engine(store: str, tmp_path: Path) -> None:
    go = tmp_path / "go"
    params = {"items": ["x" * BIG, "y"]}
    plan = {
        "plan": "p",
        "params": params,
        "steps": [foreach_step({"in": "{{ params.items }}", "maxParallel": 1}, wait_for_file_inputs(go))],
    }
    async with engine(store) as operations:
        run_id = await operations.start(operations.load(plan))
        await wait_for_event(operations, run_id, "LoopIterationStarted", "each[0]")
    shutil.rmtree(tmp_path / "results")
    go.touch()
    async with engine(store) as operations:
        await operations.resume(run_id)
        snapshot = await wait_for_end(operations, run_id)
    assert snapshot.status == "FAILED"
    assert snapshot.root_cause is not None
    assert "REFERENCE_NOT_AVAILABLE" in f"{snapshot.root_cause.code} {snapshot.root_cause.message}"


async def test_loop_continues_at_the_interrupted_iteration(
    durable_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    log, go = tmp_path / "log", tmp_path / "go"
    work = {
        "call": "support.engine_steps:note_and_hold",
        "args": {"file": str(log), "number": "{{ item }}", "held": 2, "go": str(go)},
    }
    plan = {"plan": "p", "steps": [foreach_step({"in": [0, 1, 2, 3], "maxParallel": 1}, work)]}
    async with engine(durable_url) as operations:
        run_id = await operations.start(operations.load(plan))
        await wait_for_event(operations, run_id, "LoopIterationStarted", "each[2]")
    go.touch()
    async with engine(durable_url) as operations:
        await operations.resume(run_id)
        snapshot = await wait_for_end(operations, run_id)
        assert await operations.result(run_id, "each") == [0, 1, 2, 3]
        done = await wait_for_event(operations, run_id, "LoopIterationDone", "each[2]")
    assert snapshot.status == "COMPLETED"
    assert done.engine_attempt_id == 2
    assert [int(n) for n in log.read_text().split()] in ([0, 1, 2, 2, 3], [0, 1, 2, 3])


async def test_waits_in_a_loop_end_each_at_its_own_time(store: str) -> None:
    step = {"id": "each", "foreach": [0.05, 0, 0.2], "wait": "{{ item }}"}
    async with engine(store) as operations:
        snapshot = await run_plan(operations, {"plan": "p", "steps": [step]})
        done = lines_of_types(await event_lines(operations, snapshot.run_id), "LoopIterationDone")
    assert snapshot.status == "COMPLETED"
    assert done == ["LoopIterationDone each[1]", "LoopIterationDone each[0]", "LoopIterationDone each[2]"]


async def test_a_loop_of_thousands_ends(store: str) -> None:
    step = {"id": "each", "foreach": {"in": "{{ range(3000) | list }}", "maxParallel": 100}, "noop": {}}
    async with engine(store) as operations:
        snapshot = await run_plan(operations, {"plan": "p", "steps": [step]})
    iterations = step_of(snapshot, "each").iterations
    assert iterations is not None
    assert (snapshot.status, iterations.done) == ("COMPLETED", 3000)
