"""Repeated run ids, engines that close during a run, and several engines on one store."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import runwright as rw
from support.engine import (
    engine,
    event_lines,
    lines_of_types,
    python_inputs,
    run_plan,
    wait_for_end,
    wait_for_event,
    wait_for_file_inputs,
)


@pytest.fixture(autouse=True)
def _working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def plan(go: Path, **more: Any) -> dict[str, Any]:
    return {
        "plan": "p",
        "params": {"day": 1},
        "steps": [
            {"id": "a", "noop": {}},
            {"id": "b", "python": wait_for_file_inputs(go, value="{{ params.day }}")},
            {"id": "c", "noop": {}},
        ],
        **more,
    }


async def test_start_with_the_same_id_continues_the_open_run(durable_url: str, tmp_path: Path) -> None:
    go = tmp_path / "go"
    async with engine(durable_url) as operations:
        await operations.start(operations.load(plan(go)), run_id="run-1")
        await wait_for_event(operations, "run-1", "StepStarted", "b")
    assert not go.exists()
    go.touch()
    async with engine(durable_url) as operations:
        assert await operations.start(operations.load(plan(go)), run_id="run-1") == "run-1"
        snapshot = await wait_for_end(operations, "run-1")
        lines = await event_lines(operations, "run-1")
        done = await wait_for_event(operations, "run-1", "StepCompleted", "b")
    assert snapshot.status == "COMPLETED"
    assert lines_of_types(lines, "StepStarted") == ["StepStarted a", "StepStarted b", "StepStarted c"]
    assert done.engine_attempt_id == 2  # The step ran again in the same logical attempt.
    assert done.logical_attempt_id == 1


async def test_second_start_in_the_driving_process_has_no_effect(durable_url: str, tmp_path: Path) -> None:
    go = tmp_path / "go"
    async with engine(durable_url) as operations:
        await operations.start(operations.load(plan(go)), run_id="run-1")
        await wait_for_event(operations, "run-1", "StepStarted", "b")
        assert await operations.start(operations.load(plan(go)), run_id="run-1") == "run-1"
        go.touch()
        assert (await wait_for_end(operations, "run-1")).status == "COMPLETED"
        assert len(lines_of_types(await event_lines(operations, "run-1"), "RunStarted", "StepStarted")) == 4


async def test_start_with_the_id_of_an_ended_run_returns_it(durable_url: str, tmp_path: Path) -> None:
    go = tmp_path / "go"
    go.touch()
    async with engine(durable_url) as operations:
        before = await run_plan(operations, plan(go), run_id="run-1")
    async with engine(durable_url) as operations:
        after = await run_plan(operations, plan(go), run_id="run-1")
    assert after == before


@pytest.mark.parametrize("state", ["open", "ended"])
@pytest.mark.parametrize("change", ["plan", "params"])
async def test_another_plan_or_other_parameters_are_refused(tmp_path: Path, state: str, change: str) -> None:
    go = tmp_path / "go"
    if state == "ended":
        go.touch()
    async with engine(f"sqlite:///{tmp_path}/runs.db") as operations:
        await operations.start(operations.load(plan(go)), run_id="run-1")
        if state == "ended":
            await wait_for_end(operations, "run-1")
        other = operations.load(plan(go, onFailure="continue") if change == "plan" else plan(go))
        with pytest.raises(rw.RunwrightError) as caught:
            await operations.start(other, run_id="run-1", params={"day": 2} if change == "params" else None)
        assert caught.value.code == "PLAN_MISMATCH"
        go.touch()
        assert (await wait_for_end(operations, "run-1")).status == "COMPLETED"
        assert await operations.result("run-1", "b") == 1


async def test_plan_in_another_notation_is_the_same_plan(tmp_path: Path) -> None:
    """The order of keys and the short or full form do not matter; the content does."""
    async with engine(f"sqlite:///{tmp_path}/runs.db") as operations:
        short = {"plan": "p", "steps": [{"id": "a", "wait": 0}]}
        full = {"steps": [{"kind": "wait", "with": {"duration": 0}, "id": "a"}], "plan": "p"}
        await run_plan(operations, short, run_id="run-1")
        await operations.start(operations.load(full), run_id="run-1")


async def test_concurrent_starts_with_one_id_make_one_run(durable_url: str) -> None:
    small = {"plan": "p", "steps": [{"id": "a", "noop": {}}]}
    async with engine(durable_url) as operations:
        loaded = operations.load(small)
        run_ids = await asyncio.gather(*(operations.start(loaded, run_id="run-1") for _ in range(10)))
        assert set(run_ids) == {"run-1"}
        assert (await wait_for_end(operations, "run-1")).status == "COMPLETED"
        assert len(await event_lines(operations, "run-1")) == 5


async def test_unknown_parameters_are_refused_before_anything_runs(tmp_path: Path) -> None:
    async with engine(f"sqlite:///{tmp_path}/runs.db") as operations:
        with pytest.raises(rw.RunwrightError) as caught:
            await operations.start(operations.load(plan(tmp_path)), params={"dya": 2})
        assert caught.value.code == "INVALID_ARGUMENT"
        assert "'day'" in caught.value.detail
        assert (await operations.log.list_runs()).runs == []


async def test_exactly_one_of_two_engines_drives_a_run(durable_url: str, tmp_path: Path) -> None:
    go, notes = tmp_path / "go", tmp_path / "notes"
    steps = [{"id": "a", "python": wait_for_file_inputs(go)}] + [
        {"id": f"s{n}", "python": {"call": "support.engine_steps:note", "args": {"file": str(notes)}}}
        for n in range(10)
    ]
    async with engine(durable_url, recover=True) as one, engine(durable_url, recover=True) as other:
        loaded = one.load({"plan": "p", "steps": steps})
        await asyncio.gather(one.start(loaded, run_id="run-1"), other.start(loaded, run_id="run-1"))
        await wait_for_event(one, "run-1", "StepStarted", "a")
        assert sorted((one.engine.is_driven("run-1"), other.engine.is_driven("run-1"))) == [False, True]
        go.touch()
        snapshots = await asyncio.gather(wait_for_end(one, "run-1"), wait_for_end(other, "run-1"))
    assert {snapshot.status for snapshot in snapshots} == {"COMPLETED"}
    assert len(notes.read_text().splitlines()) == 10


async def test_run_of_a_closed_engine_is_recovered_by_another(durable_url: str, tmp_path: Path) -> None:
    """Another engine with `recover` claims the run without a request."""
    go = tmp_path / "go"
    async with engine(durable_url, recover=True) as other:
        async with engine(durable_url) as one:
            await one.start(one.load(plan(go)), run_id="run-1")
            await wait_for_event(one, "run-1", "StepStarted", "b")
        go.touch()
        assert (await wait_for_end(other, "run-1")).status == "COMPLETED"


async def test_waiting_run_is_recovered_when_it_is_due(durable_url: str) -> None:
    small = {"plan": "p", "steps": [{"id": "w", "wait": "1s"}, {"id": "a", "noop": {}}]}
    async with engine(durable_url, park_after=0.0) as one:
        await one.start(one.load(small), run_id="run-1")
        await wait_for_event(one, "run-1", "StepDelayed", "w")
    async with engine(durable_url, recover=True) as other:
        assert (await wait_for_end(other, "run-1")).status == "COMPLETED"
        assert lines_of_types(await event_lines(other, "run-1"), "StepStarted", "StepDelayed") == [
            "StepStarted w",
            "StepDelayed w",
            "StepStarted a",
        ]


async def test_paused_run_stays_paused_after_recovery(durable_url: str, tmp_path: Path) -> None:
    go = tmp_path / "go"
    async with engine(durable_url) as one:
        await one.start(one.load(plan(go)), run_id="run-1")
        await wait_for_event(one, "run-1", "StepStarted", "b")
        await one.signal("run-1", "PAUSE")
    go.touch()
    async with engine(durable_url, recover=True) as other:
        await asyncio.sleep(0.3)
        assert (await other.log.snapshot("run-1")).status == "PAUSED"
        await other.signal("run-1", "RESUME")
        assert (await wait_for_end(other, "run-1")).status == "COMPLETED"


async def test_many_runs_complete_concurrently(durable_url: str) -> None:
    small = {
        "plan": "p",
        "params": {"n": 0},
        "steps": [{"id": f"s{k}", "python": python_inputs("n", n="{{ params.n }}")} for k in range(3)],
    }
    async with engine(durable_url) as operations:
        loaded = operations.load(small)
        run_ids = await asyncio.gather(*(operations.start(loaded, params={"n": n}) for n in range(60)))
        await asyncio.gather(*(wait_for_end(operations, run_id) for run_id in run_ids))
        assert [await operations.result(run_id, "s2") for run_id in run_ids] == list(range(60))
        assert operations.engine.driven == []


async def test_wait_returns_when_its_timeout_expires(tmp_path: Path) -> None:
    async with engine(f"sqlite:///{tmp_path}/runs.db") as operations:
        run_id = await operations.start(operations.load({"plan": "p", "steps": [{"id": "w", "wait": "100s"}]}))
        assert (await operations.wait(run_id, 0.05)).status == "RUNNING"
