"""The number of concurrent steps over all runs of a process."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from runwright.contract.plan import StepClass
from runwright.runtimes.executor import executor
from support.engine import (
    engine,
    python_inputs,
    run_plan,
    sleep_inputs,
    wait_for_end,
    wait_for_event,
    wait_for_file_inputs,
)


@pytest.fixture
def store(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/runs.db"


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Capacity for one step of each class."""
    for step_class in StepClass:
        monkeypatch.setitem(executor.DEFAULT_CAPACITY, step_class, 1)


def plan(*steps: dict[str, Any]) -> dict[str, Any]:
    return {"plan": "p", "order": "graph", "steps": list(steps)}


@pytest.mark.parametrize("one_run", [True, False])
async def test_heavy_steps_do_not_exceed_the_processors(store: str, tmp_path: Path, one_run: bool) -> None:
    folder = tmp_path / "running"
    folder.mkdir()

    def step(number: int) -> dict[str, Any]:
        args = {"folder": str(folder), "name": str(number), "seconds": 0.15}
        return {
            "id": f"s{number}",
            "class": "heavy",
            "python": {"call": "support.engine_steps:count_at_once", "args": args},
        }

    async with engine(store) as operations:
        plans = [plan(*map(step, range(8)))] if one_run else [plan(step(n)) for n in range(8)]
        run_ids = await asyncio.gather(*(operations.start(operations.load(document)) for document in plans))
        snapshots = await asyncio.gather(*(wait_for_end(operations, run_id) for run_id in run_ids))
        counts = [
            await operations.result(snapshot.run_id, part.step_id) for snapshot in snapshots for part in snapshot.steps
        ]
    assert max(counts) <= executor.DEFAULT_CAPACITY[StepClass.HEAVY]


@pytest.mark.usefixtures("narrow")
async def test_run_waiting_for_one_class_does_not_block_another(store: str, tmp_path: Path) -> None:
    go = tmp_path / "go"
    async with engine(store) as operations:
        heavy = await operations.start(
            operations.load(
                plan(
                    {"id": "x", "class": "heavy", "python": wait_for_file_inputs(go)},
                    {"id": "y", "class": "heavy", "noop": {}},
                )
            )
        )
        await wait_for_event(operations, heavy, "StepStarted", "x")
        light = await operations.start(operations.load(plan({"id": "x", "python": sleep_inputs(0.3)})))
        await wait_for_event(operations, light, "StepStarted", "x")
        waiting = await operations.start(operations.load(plan({"id": "x", "noop": {}})))
        assert (await wait_for_end(operations, light)).status == "COMPLETED"
        assert (await operations.wait(waiting, 5)).status == "COMPLETED"
        go.touch()
        assert (await wait_for_end(operations, heavy)).status == "COMPLETED"


@pytest.mark.usefixtures("narrow")
async def test_capacity_unused_by_a_wait_is_released(store: str) -> None:
    """A wait occupies no executor; runs that were held back during its append must be notified."""
    async with engine(store) as operations:
        documents = [
            plan({"id": "w", "wait": "50ms"}),
            plan({"id": "x", "noop": {}}),
            plan({"id": "y", "python": python_inputs("1")}),
        ] * 5
        run_ids = await asyncio.gather(*(operations.start(operations.load(document)) for document in documents))
        for run_id in run_ids:
            assert (await operations.wait(run_id, 5)).status == "COMPLETED"


@pytest.mark.usefixtures("narrow")
async def test_engine_with_one_slot_per_class_completes_all_runs(store: str) -> None:
    steps = [{"id": f"s{n}", "class": ("light", "heavy")[n % 2], "python": python_inputs("1")} for n in range(12)]
    async with engine(store) as operations:
        run_ids = await asyncio.gather(*(operations.start(operations.load(plan(*steps))) for _ in range(6)))
        for run_id in run_ids:
            assert (await operations.wait(run_id, 5)).status == "COMPLETED"


@pytest.mark.usefixtures("narrow")
async def test_loop_shares_capacity_with_other_runs(store: str) -> None:
    async with engine(store) as operations:
        loop = await operations.start(
            operations.load(plan({"id": "each", "foreach": list(range(30)), "python": sleep_inputs(0.05)}))
        )
        assert (await run_plan(operations, plan({"id": "x", "noop": {}}))).status == "COMPLETED"
        assert (await operations.log.find_run(loop)).status == "RUNNING"
        assert (await wait_for_end(operations, loop)).status == "COMPLETED"
