"""dbt steps: real dbt on the example project."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from runwright.control.operations import Operations
from runwright.control.plan_loader import read_data
from runwright.plans.dbt_manifest import plan_from_manifest
from support.engine import PATIENCE, engine, event_lines, statuses, step_of, wait_for_event
from support.paths import EXAMPLES
from support.waiting import until

PROJECT = EXAMPLES / "dbt-shop"

pytestmark = [pytest.mark.slow, pytest.mark.dbt]


@pytest.fixture(scope="module")
def parsed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Copy of the example project with its parse results."""
    folder = tmp_path_factory.mktemp("dbt") / "shop"
    shutil.copytree(PROJECT, folder, ignore=shutil.ignore_patterns("target", "logs", "*.duckdb*"))
    dbt = [str(Path(sys.executable).with_name("dbt")), "parse", "--project-dir", ".", "--profiles-dir", "."]
    subprocess.run(dbt, cwd=folder, check=True, capture_output=True)
    return folder


@pytest.fixture
def shop(parsed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "shop"
    shutil.copytree(parsed, folder)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("SHOP_DATABASE", str(folder / "shop.duckdb"))
    return folder


def plan(shop: Path, **options: Any) -> dict[str, Any]:
    return plan_from_manifest((shop / "target" / "manifest.json").read_bytes(), ".", options={}, **options)


async def finished(operations: Operations, document: dict[str, Any], **start: Any) -> Any:
    run_id = await operations.start(read_data(document).plan, **start)
    return await operations.wait(run_id, 3 * PATIENCE)


def broken(shop: Path) -> str:
    """Break a model; return its previous text."""
    file = shop / "models" / "intermediate" / "int_order_amounts.sql"
    before = file.read_text()
    file.write_text("select * from nowhere")
    return before


async def test_ready_nodes_share_an_invocation_in_dependency_order(shop: Path) -> None:
    document = plan(shop)
    async with engine("memory://") as operations:
        snapshot = await finished(operations, document)
        assert snapshot.status == "COMPLETED", snapshot.root_cause
        lines = await event_lines(operations, snapshot.run_id)
        for step in document["steps"]:
            for needed in step["dependsOn"]:
                assert lines.index(f"StepCompleted {needed}") < lines.index(f"StepStarted {step['id']}")
        seeds = ["raw_customers", "raw_orders", "raw_payments"]
        last_start = max(lines.index(f"StepStarted {seed}") for seed in seeds)
        assert last_start < min(lines.index(f"StepCompleted {seed}") for seed in seeds)
        result = await operations.result(snapshot.run_id, "best_customers")
        assert result["status"] == "success"
        assert (await operations.result(snapshot.run_id, "raw_orders"))["rowsAffected"] == 5
        output = "".join(line.text for line in operations.engine.step_logs.read(snapshot.run_id, "raw_orders"))
        assert "main.raw_orders [INSERT 5 in" in output
        kinds = [ref.kind for ref in snapshot.artifacts]
        assert kinds.count("dbt-manifest") == 1
        results = [ref for ref in snapshot.artifacts if ref.kind == "dbt-run-results"]
        nodes: list[str] = []
        assert operations.engine.services.artifacts is not None
        for ref in results:
            operations.engine.services.artifacts.get(ref, shop / "results.json")
            nodes += [each["unique_id"] for each in json.loads((shop / "results.json").read_text())["results"]]
        assert sorted(nodes) == sorted(step["dbt"]["node"] for step in document["steps"]), "each was run once"
        assert len(results) < len(nodes), "those ready together share an invocation"


async def test_broken_model_skips_dependents_and_rerun_runs_only_them(shop: Path) -> None:
    before = broken(shop)
    async with engine("memory://") as operations:
        snapshot = await finished(operations, plan(shop))
        assert snapshot.status == "FAILED"
        error = step_of(snapshot, "int_order_amounts").error
        assert error.code == "DBT_NODE_FAILED"
        assert "nowhere does not exist" in error.message
        after = {"orders", "revenue_by_day", "best_customers", "revenue_by_country"}
        tests = {"unique_orders_order_id", "no_negative_revenue"}
        assert {name for name, status in statuses(snapshot).items() if status == "SKIPPED"} == after | tests
        (shop / "models" / "intermediate" / "int_order_amounts.sql").write_text(before)
        again = await operations.wait(await operations.rerun(snapshot.run_id, from_step="int_order_amounts"))
        assert again.status == "COMPLETED"
        ran = {step.step_id for step in again.steps if step.status == "SUCCESS"}
        assert ran == {"int_order_amounts"} | after | tests


async def test_failed_test_skips_dependents_only_with_gate(shop: Path) -> None:
    with (shop / "seeds" / "raw_orders.csv").open("a") as file:
        file.write("5,4,2026-01-06,open\n")
    async with engine("memory://") as operations:
        snapshot = await finished(operations, plan(shop))
        error = step_of(snapshot, "unique_stg_orders_order_id").error
        assert (error.code, error.facts) == ("DBT_TEST_FAILED", {"failures": 1})
        assert statuses(snapshot)["orders"] == "SUCCESS", step_of(snapshot, "orders").error
        gated = await finished(operations, plan(shop, gate=True))
        assert statuses(gated)["orders"] == "SKIPPED"


async def test_step_runs_a_whole_selection(shop: Path) -> None:
    steps = [{"id": "all", "dbt": {"project": ".", "select": ["+orders"]}}]
    async with engine("memory://") as operations:
        snapshot = await finished(operations, {"plan": "p", "steps": steps})
        assert snapshot.status == "COMPLETED", snapshot.root_cause
        result = await operations.result(snapshot.run_id, "all")
        assert result["nodes"]["model.shop.orders"]["status"] == "success"
        broken(shop)
        failed = await finished(operations, {"plan": "p", "steps": steps})
        assert step_of(failed, "all").error.code == "DBT_NODE_FAILED"


async def test_unparsable_project_fails_its_steps_with_the_reason(shop: Path) -> None:
    (shop / "models" / "marts" / "orders.sql").write_text("select {{ ref('nobody') }}")
    async with engine("memory://") as operations:
        snapshot = await finished(operations, plan(shop))
        error = step_of(snapshot, "raw_orders").error
        assert error.code == "DBT_FAILED"
        assert "nobody" in error.message


async def test_missing_node_is_reported_by_name(shop: Path) -> None:
    document = plan(shop)
    (shop / "models" / "marts" / "payment_methods.sql").unlink()
    async with engine("memory://") as operations:
        snapshot = await finished(operations, document)
        error = step_of(snapshot, "payment_methods").error
        assert (error.code, error.retryable) == ("DBT_NODE_NOT_FOUND", False)


async def test_database_is_released_after_dbt(shop: Path) -> None:
    steps = [
        {"id": "build", "dbt": {"project": ".", "select": ["+orders"]}},
        {"id": "read", "sql": {"connection": "duckdb:///shop.duckdb", "query": "select count(*) as n from orders"}},
    ]
    async with engine("memory://") as operations:
        snapshot = await finished(operations, {"plan": "p", "steps": steps})
        assert snapshot.status == "COMPLETED", snapshot.root_cause
        assert (await operations.result(snapshot.run_id, "read"))["rows"] == [{"n": 5}]


async def test_idle_dbt_process_is_stopped(shop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runwright.tools.dbt.project.IDLE", 0.1)
    steps = [{"id": "build", "dbt": {"project": ".", "select": ["raw_orders"]}}]
    async with engine("memory://") as operations:
        assert (await finished(operations, {"plan": "p", "steps": steps})).status == "COMPLETED"

        async def gone() -> bool:
            return not await _workers()

        await until(gone)
        assert (await finished(operations, {"plan": "p", "steps": steps})).status == "COMPLETED"


def slow_model(shop: Path) -> None:
    """Replace a model by a query that never ends."""
    body = "select count(*) as n from range(100000000) a, range(100000000) b where a.range % 7 = b.range % 5"
    (shop / "models" / "staging" / "stg_customers.sql").write_text(
        "{{ config(materialized='table') }} -- depends on {{ ref('raw_customers') }}\n" + body
    )


async def test_cancelled_run_stops_dbt(shop: Path) -> None:
    slow_model(shop)
    async with engine("memory://") as operations:
        run_id = await operations.start(read_data(plan(shop)).plan)
        await wait_for_event(operations, run_id, "StepStarted", "stg_customers")
        await asyncio.sleep(1)  # dbt executes the model by now.
        await operations.signal(run_id, "CANCEL")
        snapshot = await operations.wait(run_id, PATIENCE)
        assert snapshot.status == "CANCELLED"
        assert not await _workers()


async def test_timed_out_node_does_not_fail_its_invocation(shop: Path) -> None:
    slow_model(shop)
    document = plan(shop)
    for step in document["steps"]:
        if step["id"] == "stg_customers":
            step["timeout"] = "8s"
    async with engine("memory://") as operations:
        snapshot = await finished(operations, document)
        assert step_of(snapshot, "stg_customers").error.code == "STEP_TIMEOUT"
        assert statuses(snapshot)["revenue_by_day"] == "SUCCESS"


async def test_killed_dbt_fails_the_attempt_and_is_retried(shop: Path) -> None:
    document = plan(shop)
    for step in document["steps"]:
        step["retry"] = {"maxAttempts": 3, "initial": "10ms"}
    async with engine("memory://") as operations:
        run_id = await operations.start(read_data(document).plan)
        await wait_for_event(operations, run_id, "StepCompleted", "raw_orders")
        for pid in await _workers():
            os.kill(pid, signal.SIGKILL)
        snapshot = await operations.wait(run_id, 3 * PATIENCE)
        assert snapshot.status == "COMPLETED", await event_lines(operations, run_id)


async def _workers() -> list[int]:
    """Return the dbt processes of this process."""
    command = ["ps", "-eo", "pid,ppid,args"]
    done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, check=True)
    rows = [line.split(None, 2) for line in done.stdout.splitlines()[1:]]
    return [int(pid) for pid, ppid, args in rows if "runwright.tools.dbt.worker" in args and int(ppid) == os.getpid()]


async def test_folder_without_project_is_refused_at_start(tmp_path: Path) -> None:
    steps = [{"id": "all", "dbt": {"project": str(tmp_path)}}]
    async with engine("memory://") as operations:
        with pytest.raises(Exception, match=r"dbt_project\.yml not found"):
            operations.load({"plan": "p", "steps": steps})
