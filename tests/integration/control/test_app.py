"""`rw.open()` and `rw.open_async()`: the engine embedded in a program."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import runwright as rw
from runwright.runtimes.settings import EngineSettings
from support.engine import python_inputs, wait_for_file_inputs

PLAN: dict[str, Any] = {
    "plan": "p",
    "params": {"day": 1},
    "steps": [
        {"id": "a", "python": python_inputs("d + 1", d="{{ params.day }}")},
        {"id": "b", "python": python_inputs("x * 10", x="{{ steps.a.result }}")},
    ],
}


@pytest.fixture
def store(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/runs.db"


def test_a_plan_runs_from_a_dict_and_from_files(store: str, tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    file.write_text(json.dumps(PLAN))
    yaml = tmp_path / "plan.yaml"
    yaml.write_text('plan: hello\nsteps:\n  - {id: greet, shell: "echo hello"}\n')
    with rw.open(store) as app:
        first = app.start(PLAN)
        assert first.wait().status == "COMPLETED"
        assert first.result("b") == 20
        assert app.start(file, day=4).wait().status == "COMPLETED"
        assert app.start(str(file), params={"day": 4}).wait().status == "COMPLETED"
        greeted = app.start(yaml)
        assert str(greeted.wait().status) == "COMPLETED"
        assert greeted.result("greet")["stdout"] == "hello\n"


def test_parameters_come_by_name_or_as_a_dict(store: str) -> None:
    with rw.open(store) as app:
        run = app.start(PLAN, day=2)
        assert run.wait().status == "COMPLETED"
        assert run.result("b") == 30
        assert app.start(PLAN, params={"day": 3}).wait().status == "COMPLETED"
        with pytest.raises(rw.RunwrightError) as caught:
            app.start(PLAN, month=1)
        assert caught.value.code == "INVALID_ARGUMENT"


def test_invalid_plan_reports_all_of_its_problems(store: str) -> None:
    bad = {"plan": "p", "steps": [{"id": "a", "shel": "echo"}, {"id": "a", "noop": {}, "dependsOn": ["nosuch"]}]}
    with rw.open(store) as app:
        with pytest.raises(rw.PlanInvalid) as caught:
            app.start(bad)
        assert len(caught.value.problems) >= 2
        assert app.start(PLAN).wait().status == "COMPLETED"


def test_events_can_be_followed_to_the_end(store: str) -> None:
    with rw.open(store) as app:
        run = app.start(PLAN)
        seen = [record.event_type for record in run.events(follow=True)]
        assert seen[0] == "RunQueued"
        assert seen[-1] == "RunCompleted"
        assert [record.event_type for record in run.events()] == seen
        assert [record.event_type for record in run.events(after=len(seen) - 1)] == ["RunCompleted"]
        assert list(run.events(after=len(seen), follow=True)) == []


def test_events_of_a_cancelled_run_can_be_followed_to_the_end(store: str) -> None:
    with rw.open(store) as app:
        run = app.start({"plan": "p", "steps": [{"id": "a", "wait": "100s"}]})
        seen: list[str] = []
        for record in run.events(follow=True):
            seen.append(record.event_type)
            if record.event_type == "StepDelayed":
                assert run.signal("CANCEL", reason="enough").engine_result == "CANCELLED"
        assert "RunCancelled" in seen
        assert run.status == "CANCELLED"


def test_signals_are_sent_and_answered(store: str, tmp_path: Path) -> None:
    go = tmp_path / "go"
    with rw.open(store) as app:
        run = app.start(
            {"plan": "p", "steps": [{"id": "a", "python": wait_for_file_inputs(go)}, {"id": "b", "noop": {}}]}
        )
        assert run.signal("PAUSE").decision == "ACCEPTED"
        assert run.status == "PAUSED"
        assert run.wait(timeout=0.05).status == "PAUSED"
        go.touch()
        assert run.signal("RESUME").engine_result == "RESUMED"
        assert run.wait().status == "COMPLETED"
        assert run.signal("PAUSE").code == "RUN_TERMINAL"
        with pytest.raises(rw.RunwrightError) as caught:
            run.signal("NOSUCH")
        assert caught.value.code == "SIGNAL_INVALID_PAYLOAD"


def test_result_of_a_step_without_one_raises_an_error(store: str) -> None:
    with rw.open(store) as app:
        run = app.start(
            {
                "plan": "p",
                "onFailure": "continue",
                "steps": [{"id": "a", "python": python_inputs("1 / 0")}, {"id": "b", "noop": {}}],
            }
        )
        run.wait()
        with pytest.raises(rw.RunwrightError) as caught:
            run.result("nosuch")
        assert caught.value.code == "STEP_NOT_FOUND"
        with pytest.raises(rw.RunwrightError, match="FAILED"):
            run.result("a")
        assert run.result("b") is None


def test_a_run_is_found_again_by_its_id_or_a_prefix(store: str) -> None:
    with rw.open(store) as app:
        app.start(PLAN, run_id="orders-42").wait()
    with rw.open(store) as app:
        assert app.run("orders-42").status == "COMPLETED"
        assert app.run("orders").result("b") == 20
        assert app.run("orders-42").snapshot().status == "COMPLETED"
        assert app.run("orders-42").snapshot(at=2).status == "RUNNING"
        with pytest.raises(rw.RunwrightError) as caught:
            app.run("nosuch")
        assert caught.value.code == "RUN_NOT_FOUND"


def test_a_rerun_is_a_new_run(store: str) -> None:
    with rw.open(store) as app:
        first = app.start(PLAN)
        first.wait()
        again = app.rerun(first.run_id, from_step="b")
        assert again.run_id != first.run_id
        snapshot = again.wait()
        assert (snapshot.status, snapshot.origin_run_id) == ("COMPLETED", first.run_id)
        assert again.result("a") == 2


def test_closing_the_app_releases_running_runs(store: str, tmp_path: Path) -> None:
    go = tmp_path / "go"
    plan = {"plan": "p", "steps": [{"id": "a", "python": wait_for_file_inputs(go)}, {"id": "b", "noop": {}}]}
    began = time.monotonic()
    with rw.open(store) as app:
        app.start(plan, run_id="run-1")
        app.start(plan, run_id="run-2")
    assert time.monotonic() - began < 10
    go.touch()
    with rw.open(store) as app:
        assert app.start(plan, run_id="run-1").wait().status == "COMPLETED"
        assert app.run("run-2").status == "RUNNING"  # Without `recover`, only a start continues a run.
    with rw.open(store, recover=True) as app:
        assert app.run("run-2").wait(timeout=20).status == "COMPLETED"


def test_an_app_that_is_not_open_raises_store_closed(store: str) -> None:
    app = rw.open(store)
    with pytest.raises(rw.RunwrightError) as caught:
        app.start(PLAN)
    assert caught.value.code == "STORE_CLOSED"
    with app:
        run = app.start(PLAN)
    with pytest.raises(rw.RunwrightError) as caught:
        run.wait()
    assert caught.value.code == "STORE_CLOSED"


def test_store_that_cannot_be_opened_raises_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for url in ("nosuch://x", f"sqlite:///{tmp_path}/file/runs.db"):
        with pytest.raises(rw.RunwrightError), rw.open(url):
            pass


def test_several_threads_use_one_app(store: str) -> None:
    results: list[Any] = []
    with rw.open(store) as app:

        def work(day: int) -> None:
            run = app.start(PLAN, day=day)
            run.wait()
            results.append(run.result("b"))

        threads = [threading.Thread(target=work, args=(day,)) for day in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(results) == [(day + 1) * 10 for day in range(8)]


def test_an_error_in_the_program_closes_the_app(store: str) -> None:
    with pytest.raises(ZeroDivisionError), rw.open(store) as app:
        app.start({"plan": "p", "steps": [{"id": "a", "wait": "100s"}]})
        _ = 1 // 0
    assert [thread.name for thread in threading.enumerate() if thread.name == "runwright-engine"] == []


def test_two_apps_in_one_program_do_not_disturb_each_other(store: str, tmp_path: Path) -> None:
    go = tmp_path / "go"
    plan = {"plan": "p", "steps": [{"id": "a", "python": wait_for_file_inputs(go)}]}
    with rw.open(store) as one, rw.open(store, recover=True) as other:
        run = one.start(plan, run_id="run-1")
        same = other.start(plan, run_id="run-1")
        assert other.run("run-1").signal("PAUSE").engine_result == "PAUSED"
        go.touch()
        run.signal("RESUME")
        assert same.wait(timeout=20).status == "COMPLETED"


async def test_async_app_has_the_same_operations(store: str, tmp_path: Path) -> None:
    go = tmp_path / "go"
    async with rw.open_async(store) as app:
        run = await app.start(PLAN, day=2)
        assert (await run.wait()).status == "COMPLETED"
        assert await run.result("b") == 30
        assert await run.status() == "COMPLETED"
        assert (await run.snapshot()).status == "COMPLETED"
        assert [record.event_type async for record in run.events(follow=True)][-1] == "RunCompleted"
        again = await app.rerun(run.run_id)
        assert (await again.wait()).status == "COMPLETED"
        assert await (await app.run(run.run_id)).status() == "COMPLETED"
        held_run = await app.start({"plan": "p", "steps": [{"id": "a", "python": wait_for_file_inputs(go)}]})
        assert (await held_run.signal("PAUSE", reason="x")).engine_result == "PAUSED"
        go.touch()
        await held_run.signal("RESUME")
        assert (await held_run.wait()).status == "COMPLETED"


async def test_a_program_that_blocks_its_own_loop_loses_no_lease(
    store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(EngineSettings.__init__.__kwdefaults__, "lease_ttl", 1.0)
    go = tmp_path / "go"
    async with rw.open_async(store) as app:
        run = await app.start(
            {"plan": "p", "steps": [{"id": "a", "python": wait_for_file_inputs(go)}, {"id": "b", "noop": {}}]}
        )
        time.sleep(1.5)  # noqa: ASYNC251 - the program's fault, not the engine's
        go.touch()
        snapshot = await run.wait(timeout=20)
    assert snapshot.status == "COMPLETED"
    assert {step.engine_attempt_id for step in snapshot.steps} == {1}


async def test_several_tasks_can_wait_for_one_run(store: str, tmp_path: Path) -> None:
    go = tmp_path / "go"
    async with rw.open_async(store) as app:
        run = await app.start({"plan": "p", "steps": [{"id": "a", "python": wait_for_file_inputs(go)}]})
        waiting = [asyncio.create_task(run.wait()) for _ in range(10)]
        await asyncio.sleep(0.05)
        go.touch()
        assert {(await task).status for task in waiting} == {"COMPLETED"}
