"""Sub-runs: steps that are runs of other plans."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import pytest

from runwright.contract.errors import RunwrightError
from runwright.contract.plan import content_hash, plan_body
from runwright.control.plan_loader import read_data, read_plan_file
from runwright.control.subruns import child_id
from runwright.plans.problems import PlanInvalid
from support.engine import (
    engine,
    event_lines,
    fail_once_inputs,
    run_plan,
    sleep_inputs,
    statuses,
    step_of,
    wait_for_end,
    wait_for_event,
)

CHILD = """
plan: child
params: {day: monday}
paramTypes: {day: string}
steps:
  - {id: extract, noop: {result: "{{ params.day }}"}}
  - {id: load, noop: {result: [1, 2]}}
result: {day: "{{ steps.extract.result }}", rows: "{{ steps.load.result }}"}
"""


@pytest.fixture(autouse=True)
def working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("child.yaml").write_text(CHILD)


def parent(**plan: Any) -> dict[str, Any]:
    step = {"id": "sub", "plan": {"path": "child.yaml", **plan}}
    return {"plan": "parent", "steps": [step, {"id": "after", "noop": {"result": "{{ steps.sub.result }}"}}]}


def write_child_plan(**step: Any) -> None:
    """Write the child plan, with one step of this kind."""
    Path("child.yaml").write_text(json.dumps({"plan": "child", "steps": [{"id": "work", **step}]}))


async def test_a_step_is_a_run_with_a_log_of_its_own(store_url: str) -> None:
    async with engine(store_url, stop_grace=0.3) as operations:
        snapshot = await run_plan(operations, parent(params={"day": "tuesday"}), run_id="r")
        assert snapshot.status == "COMPLETED"
        assert await operations.result("r", "after") == {"day": "tuesday", "rows": [1, 2]}
        child = await operations.log.snapshot("r/sub")
        assert (child.status, statuses(child)) == ("COMPLETED", {"extract": "SUCCESS", "load": "SUCCESS"})
        queued = await wait_for_event(operations, "r/sub", "RunQueued")
        assert {"parentRunId": "r", "parentStepId": "sub"}.items() <= (queued.payload or {}).items()
        for run_id in ("r", "r/sub"):
            assert [finding async for finding in operations.log.verify(run_id)] == []


async def test_each_iteration_is_a_run(store_url: str) -> None:
    plan = {
        "plan": "parent",
        "steps": [
            {
                "id": "each",
                "foreach": {"in": ["a", "b"], "as": "day"},
                "plan": {"path": "child.yaml", "params": {"day": "{{ day }}"}},
            }
        ],
    }
    async with engine(store_url, stop_grace=0.3) as operations:
        assert (await run_plan(operations, plan, run_id="r")).status == "COMPLETED"
        assert [part["day"] for part in await operations.result("r", "each")] == ["a", "b"]
        assert (await operations.log.snapshot("r/each[1]")).status == "COMPLETED"


async def test_cancelling_a_run_cancels_its_sub_runs(store_url: str) -> None:
    write_child_plan(python=sleep_inputs(60))
    async with engine(store_url, stop_grace=0.3) as operations:
        run_id = await operations.start(operations.load(parent()), run_id="r")
        await wait_for_event(operations, "r/sub", "StepStarted", "work")
        await operations.signal(run_id, "CANCEL", reason="enough")
        assert (await wait_for_end(operations, "r")).status == "CANCELLED"
        child = await wait_for_end(operations, "r/sub")
        assert child.status == "CANCELLED"
        accepted = next(
            record for record in await operations.log.read("r/sub") if record.event_type == "SignalAccepted"
        )
        assert (accepted.payload or {})["actorId"] == "run:r"


async def test_emergency_stop_cancels_the_sub_runs(store_url: str) -> None:
    write_child_plan(python=sleep_inputs(60))
    async with engine(store_url, stop_grace=0.3) as operations:
        await operations.start(operations.load(parent()), run_id="r")
        await wait_for_event(operations, "r/sub", "StepStarted", "work")
        await operations.signal("r", "EMERGENCY_STOP", {"reason": "fire"})
        assert (await wait_for_end(operations, "r")).status == "CANCELLED"
        assert (await wait_for_end(operations, "r/sub")).status == "CANCELLED"


async def test_step_timeout_cancels_its_sub_run(store_url: str) -> None:
    write_child_plan(python=sleep_inputs(60))
    async with engine(store_url, stop_grace=0.3) as operations:
        plan = parent()
        plan["steps"][0]["timeout"] = "200ms"
        snapshot = await run_plan(operations, plan, run_id="r")
        assert step_of(snapshot, "sub").error.code == "STEP_TIMEOUT"
        assert (await wait_for_end(operations, "r/sub")).status == "CANCELLED"


async def test_failed_sub_run_fails_its_step_and_is_named(store_url: str) -> None:
    write_child_plan(python={"code": "1 / 0"})
    async with engine(store_url, stop_grace=0.3) as operations:
        snapshot = await run_plan(operations, parent(), run_id="r")
        error = step_of(snapshot, "sub").error
        assert error.code == "SUBRUN_FAILED"
        assert "r/sub" in error.message
        assert "ZeroDivisionError" in error.message


async def test_second_attempt_continues_where_the_first_failed(store_url: str, tmp_path: Path) -> None:
    steps = [
        {"id": "first", "python": {"call": "support.engine_steps:note", "args": {"file": str(tmp_path / "notes")}}},
        {"id": "second", "python": fail_once_inputs(tmp_path / "once")},
    ]
    Path("child.yaml").write_text(json.dumps({"plan": "child", "steps": steps}))
    async with engine(store_url, stop_grace=0.3) as operations:
        plan = parent()
        plan["steps"][0]["retry"] = {"maxAttempts": 2, "initial": "10ms"}
        assert (await run_plan(operations, plan, run_id="r")).status == "COMPLETED"
        again = await operations.log.snapshot("r/sub~2")
        assert (again.status, again.origin_run_id) == ("COMPLETED", "r/sub")
        assert step_of(again, "first").reason_code == "CARRIED_OVER"
    assert len((tmp_path / "notes").read_text().splitlines()) == 1


async def test_recovered_run_finds_the_sub_run_of_its_step(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/runs.db"
    write_child_plan(wait={"event": "go"})
    async with engine(store, stop_grace=0.3) as operations:
        await operations.start(operations.load(parent()), run_id="r")
        await wait_for_event(operations, "r/sub", "StepDelayed", "work")
    async with engine(store, stop_grace=0.3) as operations:  # The log cannot distinguish it from another process.
        await operations.resume("r")
        await operations.signal("r/sub", "EVENT", {"name": "go"})  # The event arrives during the recovery or before it.
        assert (await wait_for_end(operations, "r")).status == "COMPLETED"
        assert len([line for line in await event_lines(operations, "r/sub") if line.startswith("RunStarted")]) == 1


async def test_code_next_to_a_child_plan_is_found_after_recovery(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/runs.db"
    apart = tmp_path / "apart"
    apart.mkdir()
    (apart / "childs_own_code.py").write_text("def work():\n    return 42\n")
    steps = [{"id": "work", "python": {"call": "childs_own_code:work"}}]
    (apart / "child.json").write_text(json.dumps({"plan": "child", "steps": steps}))
    sub = {"id": "sub", "plan": {"path": "apart/child.json"}}
    plan = {"plan": "parent", "steps": [{"id": "wait", "wait": {"event": "go"}}, sub]}
    async with engine(store, stop_grace=0.3) as operations:
        await operations.start(operations.load(plan), run_id="r")
        await wait_for_event(operations, "r", "StepDelayed", "wait")
    script = (
        "import sys, runwright as rw\n"
        "with rw.open(sys.argv[1]) as app:\n"
        "    run = app.run('r'); run.signal('EVENT', {'name': 'go'})\n"
        "    app._host.submit(lambda operations: operations.resume('r')).result()\n"
        "    print(run.wait(20).status, app.run('r/sub').result('work'))\n"
    )
    done = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-c", script, store], capture_output=True, text=True, cwd=tmp_path
    )
    assert done.stdout == "COMPLETED 42\n", done.stderr


async def test_cancel_after_a_crash_cancels_the_sub_runs(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/runs.db"
    write_child_plan(wait={"event": "go"})
    async with engine(store, stop_grace=0.3) as operations:
        await operations.start(operations.load(parent()), run_id="r")
        await wait_for_event(operations, "r/sub", "StepDelayed", "work")
    async with engine(store, stop_grace=0.3) as operations:
        await operations.signal("r", "CANCEL", reason="enough")
        assert (await wait_for_end(operations, "r")).status == "CANCELLED"
        assert (await wait_for_end(operations, "r/sub")).status == "CANCELLED"


@pytest.mark.parametrize("method", ["CANCEL", "EMERGENCY_STOP", "accepted before"])
async def test_cancel_of_a_run_without_driver_cancels_all_sub_runs(tmp_path: Path, method: str) -> None:
    """Two sub-runs with a sub-run each; every sub-run ends before its parent."""
    store = f"sqlite:///{tmp_path}/runs.db"
    work = {
        "plan": "grandchild",
        "steps": [{"id": "work", "python": sleep_inputs(60)}, {"id": "after", "noop": {}, "dependsOn": ["work"]}],
    }
    Path("grandchild.yaml").write_text(json.dumps(work))
    write_child_plan(plan={"path": "grandchild.yaml"})
    children = [{"id": name, "plan": {"path": "child.yaml"}} for name in ("a", "b")]
    both = {"plan": "p", "order": "graph", "steps": children}
    parents = {"r": "", "r/a": "r", "r/b": "r", "r/a/work": "r/a", "r/b/work": "r/b"}
    async with engine(store, stop_grace=0.3) as operations:
        await operations.start(operations.load(both), run_id="r")
        for name in ("r/a/work", "r/b/work"):
            await wait_for_event(operations, name, "StepStarted", "work")
    payload = {"reason": "enough"} if method == "EMERGENCY_STOP" else None
    if method == "accepted before":
        async with engine(store, stop_grace=0.3) as operations:
            operations.engine.apply_signals = AsyncMock()  # The engine stops before it applies the signal.
            await operations.signal("r", "CANCEL")
        async with engine(store, stop_grace=0.3) as operations:
            await operations.resume("r")
            await wait_for_end(operations, "r")
    else:
        async with engine(store, stop_grace=0.3) as operations:
            await operations.signal("r", method, payload, reason="enough")
    async with engine(store, stop_grace=0.3) as operations:
        rows = {name: await operations.log.find_run(name) for name in parents}
        assert {row.status for row in rows.values()} == {"CANCELLED"}
        page = await operations.log.read_all(types=["RunCancelled"])
        order = [record.run_id for record in page.records]
    assert all(order.index(name) < order.index(parent_id) for name, parent_id in parents.items() if parent_id)


async def test_wrong_parameters_are_found_before_anything_runs() -> None:
    async with engine("memory://", stop_grace=0.3) as operations:
        for params, message in (
            ({"dya": "x"}, "Step 'sub': Unknown parameter 'dya' of plan child. Did you mean 'day'"),
            ({"day": 7}, "Step 'sub': Parameter 'day' must be a string"),
        ):
            with pytest.raises(RunwrightError, match=message):
                await operations.start(operations.load(parent(params=params)))
        assert (await operations.log.list_runs()).runs == []


async def test_missing_or_invalid_child_plan_is_named_with_its_line() -> None:
    Path("parent.yaml").write_text("plan: parent\nsteps:\n  - {id: sub, plan: nowhere.yaml}\n")
    with pytest.raises(PlanInvalid) as missing:
        read_plan_file(Path("parent.yaml"))
    assert str(missing.value.problems[0]).startswith("parent.yaml:3:")
    assert "Cannot read the plan " in str(missing.value.problems[0])
    assert "nowhere.yaml: No such file" in str(missing.value.problems[0])
    Path("parent.yaml").write_text("plan: parent\nsteps:\n  - {id: sub, plan: child.yaml}\n")
    Path("child.yaml").write_text("plan: child\nsteps:\n  - {id: a, shel: x}\n")
    with pytest.raises(PlanInvalid) as bad:
        read_plan_file(Path("parent.yaml"))
    assert "child.yaml:3" in str(bad.value.problems[0])


async def test_plans_that_run_each_other_are_refused() -> None:
    Path("a.yaml").write_text("plan: a\nsteps:\n  - {id: b, plan: b.yaml}\n")
    Path("b.yaml").write_text("plan: b\nsteps:\n  - {id: a, plan: a.yaml}\n")
    with pytest.raises(PlanInvalid, match=r"Dependency cycle: a\.yaml -> b\.yaml -> a\.yaml"):
        read_plan_file(Path("a.yaml"))


async def test_reference_to_an_unknown_plan_is_refused() -> None:
    async with engine("memory://", stop_grace=0.3) as operations:
        plan = {"plan": "parent", "steps": [{"id": "sub", "plan": {"ref": f"plan:sha256:{'0' * 64}"}}]}
        with pytest.raises(RunwrightError, match=r"Step 'sub' references sub-plan .* which is not in this store"):
            await operations.start(operations.load(plan))


async def test_the_parents_hash_changes_with_the_child() -> None:
    before = read_hash()
    Path("child.yaml").write_text(CHILD.replace("monday", "friday"))
    assert read_hash() != before


def read_hash() -> str:
    return content_hash(plan_body(read_data(parent()).plan))


async def test_unrelated_run_with_the_id_of_a_child_is_left_alone() -> None:
    async with engine("memory://", stop_grace=0.3) as operations:
        await run_plan(operations, {"plan": "other", "steps": [{"id": "a", "noop": {}}]}, run_id="r/sub")
        before = await operations.log.read("r/sub")
        assert (await run_plan(operations, parent(), run_id="r")).status == "COMPLETED"
        assert await operations.log.read("r/sub") == before
        named = await wait_for_event(operations, "r", "ChildRunInitiated", "sub")
        assert (named.payload or {})["childRunId"].startswith("r/sub.")


async def test_run_of_the_child_plan_is_no_child_of_the_parent() -> None:
    """It has the id and the plan of the sub-run, but its log names no parent."""
    async with engine("memory://", stop_grace=0.3) as operations:
        await run_plan(operations, Path("child.yaml"), run_id="r/sub")
        assert (await run_plan(operations, parent(), run_id="r")).status == "COMPLETED"
        named = await wait_for_event(operations, "r", "ChildRunInitiated", "sub")
        assert (named.payload or {})["childRunId"] != "r/sub"


async def test_child_id_taken_after_it_was_named_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    other = {"plan": "other", "steps": [{"id": "a", "noop": {}}]}
    async with engine("memory://", stop_grace=0.3) as operations:
        start_child = operations.start_child
        is_first = True

        async def take_id_first(*args: Any) -> None:
            nonlocal is_first
            if is_first:
                is_first = False
                await run_plan(operations, other, run_id="r/sub")
            await start_child(*args)

        monkeypatch.setattr(operations, "start_child", take_id_first)
        assert (await run_plan(operations, parent(), run_id="r")).status == "COMPLETED"
        events = [event for event in await operations.log.read("r") if event.event_type == "ChildRunInitiated"]
        named = [(event.payload or {})["childRunId"] for event in events]
        assert named[0] == "r/sub"
        assert named[1].startswith("r/sub.")
        assert (await operations.log.snapshot(named[1])).status == "COMPLETED"


def test_a_childs_id_is_never_too_long() -> None:
    assert child_id("r", "s", 1) == "r/s"
    assert child_id("r", "s[3]", 2) == "r/s[3]~2"
    long = {child_id("r" * 500, "step", attempt) for attempt in (1, 2, 3)} | {child_id("r" * 500, "other", 1)}
    assert len(long) == 4
    assert max(map(len, long)) <= 512


async def test_a_secret_cannot_be_a_parameter_of_a_sub_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DB_PASSWORD", "p4ssw0rd-of-the-database")
    async with engine("memory://", stop_grace=0.3) as operations:
        with pytest.raises(RunwrightError, match="they must hold no secret"):
            operations.load(parent(params={"day": {"secret": "DB_PASSWORD"}}))
        plan = parent(params={"day": "monday"})
        plan["steps"].insert(0, {"id": "ok", "approval": "Go on?"})
        await operations.start(operations.load(plan), run_id="r")
        await wait_for_event(operations, "r", "ApprovalRequested", "ok")
        override = {"stepId": "sub", "override": {"params": {"day": {"secret": "DB_PASSWORD"}}}}
        await operations.signal("r", "INJECT_OVERRIDE", override, reason="try it")
        await operations.signal("r", "APPROVE")
        snapshot = await wait_for_end(operations, "r")
        assert "must hold no secret" in step_of(snapshot, "sub").error.message


async def test_start_is_refused_if_a_child_lacks_its_secret() -> None:
    write_child_plan(shell={"command": "true", "env": {"T": {"secret": "NOT_SET_ANYWHERE"}}})
    async with engine("memory://", stop_grace=0.3) as operations:
        with pytest.raises(RunwrightError, match="Step 'sub/work' needs the secret 'NOT_SET_ANYWHERE'"):
            await operations.start(operations.load(parent()))
