"""The testing kit: simulated time, scripted results of steps, and comparison of histories."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

import runwright as rw
from runwright import testing
from runwright.testing import Approves, Denies, Fails, Result, Sends

RELEASE: dict[str, Any] = {
    "plan": "release",
    "params": {"name": "shop"},
    "steps": [
        {"id": "build", "shell": "make {{ params.name | quote }}", "retry": {"maxAttempts": 3}},
        {"id": "settle", "wait": "3d"},
        {"id": "ok", "approval": {"prompt": "Release?", "fields": {"share": "integer"}}},
        {
            "id": "ship",
            "python": {"call": "operator:neg", "args": {"share": "{{ steps.ok.result.answer.share }}"}},
        },
    ],
}
HISTORY = """
RunQueued
RunStarted
StepStarted build
StepFailed build: FLAKY
StepRetryScheduled build
StepStarted build attempt 2
StepCompleted build attempt 2
StepStarted settle
StepDelayed settle
StepCompleted settle
StepStarted ok
ApprovalRequested ok
SignalAccepted a signal: APPROVE
ApprovalGranted ok: {'share': 20}
StepCompleted ok
SignalProcessed a signal: APPROVE, APPROVED
StepStarted ship
StepCompleted ship
RunCompleted
"""


def test_retries_waits_and_approvals_take_no_real_time() -> None:
    started = time.perf_counter()
    script = {
        "build": [Fails("FLAKY"), {"version": 7}],
        "ok": Approves({"share": 20}, after="2h", by="jane"),
        "ship": lambda share: f"shipped to {share} percent",
    }
    with testing.open(script) as app:
        run = app.start(RELEASE, name="market")
        assert run.wait().status == "COMPLETED"
        assert run.result("ship") == "shipped to 20 percent"
        assert run.result("ok")["approvedBy"] == "jane"
        assert run.result("build") == {"version": 7}
        assert 3 * 86400 + 7200 <= run.took < 3 * 86400 + 7300
        run.assert_history(HISTORY)
        run.assert_happened("StepFailed build: FLAKY", "StepCompleted build attempt 2", "RunCompleted")
    assert time.perf_counter() - started < 10


def test_denials_and_failures_can_be_scripted() -> None:
    with testing.open({"ok": Denies("not today")}) as app:
        snapshot = app.start(RELEASE).wait()
    assert snapshot.status == "FAILED"
    assert snapshot.root_cause is not None
    assert snapshot.root_cause.code == "APPROVAL_DENIED"
    with testing.open({"build": Fails("BROKEN", retryable=False)}) as app:
        assert app.start(RELEASE).wait().status == "FAILED"


def test_steps_take_the_scripted_time() -> None:
    plan = {"plan": "p", "steps": [{"id": "slow", "shell": "x", "timeout": "1h", "retry": {"maxAttempts": 1}}]}
    with testing.open({"slow": Result("done", took="59m")}) as app:
        run = app.start(plan)
        assert run.wait().status == "COMPLETED"
        assert 3540 <= run.took < 3541
    with testing.open({"slow": Result("done", took="2h")}) as app:
        snapshot = app.start(plan).wait()
        assert snapshot.steps[0].error is not None
        assert snapshot.steps[0].error.code == "STEP_TIMEOUT"


def test_iterations_can_have_their_own_results() -> None:
    plan = {
        "plan": "p",
        "steps": [
            {"id": "each", "foreach": [1, 2, 3], "python": {"call": "operator:neg", "args": {"n": "{{ item }}"}}}
        ],
    }
    with testing.open({"each": lambda n: n * 10, "each[1]": [Fails(retryable=False)]}) as app:
        run = app.start(plan)
        assert run.wait().status == "FAILED"
    with testing.open({"each": lambda n: n * 10}) as app:
        run = app.start(plan)
        run.wait()
        assert run.result("each") == [10, 20, 30]


def test_events_can_be_sent_by_the_script_or_the_test() -> None:
    plan = {"plan": "p", "steps": [{"id": "w", "wait": {"event": "paid"}}, {"id": "x", "wait": {"event": "shipped"}}]}
    with testing.open({"w": Sends({"amount": 5}, after="1d")}) as app:
        run = app.start(plan)
        assert run.wait("2d").status == "RUNNING"
        run.signal("EVENT", {"name": "shipped", "payload": 1})
        assert run.wait().status == "COMPLETED"
        assert run.result("w")["payload"] == {"amount": 5}


def test_waiting_for_a_run_that_cannot_continue_fails() -> None:
    with testing.open() as app:
        run = app.start(RELEASE)
        with pytest.raises(AssertionError, match="waits forever"):
            run.wait()
        assert run.snapshot().substatus == "WAITING_APPROVAL"
    with testing.open({"ok": Approves({"share": "many"})}) as app:
        run = app.start(RELEASE)
        with pytest.raises(AssertionError, match="an integer"):
            run.wait()


def test_a_script_for_an_unknown_step_is_refused() -> None:
    with testing.open({"bild": 1}) as app, pytest.raises(rw.RunwrightError, match="'bild'"):
        app.start(RELEASE)


def test_steps_without_a_script_can_be_executed() -> None:
    plan = {
        "plan": "p",
        "steps": [
            {"id": "a", "python": {"code": "n + 1", "args": {"n": 1}}},
            {"id": "b", "python": {"code": "n * 10", "args": {"n": "{{ steps.a.result }}"}}},
        ],
    }
    with testing.open({"b": lambda n: -n}, real=True) as app:
        run = app.start(plan)
        run.wait()
        assert (run.result("a"), run.result("b")) == (2, -2)


@rw.step
def fetch(day: str) -> list[int]:
    raise AssertionError("the step was executed")


@rw.step
def total(rows: list[int]) -> int:
    return sum(rows)


@rw.plan
def sums(day: str) -> Any:
    return total(fetch(day))


def test_python_plans_can_be_scripted() -> None:
    with testing.open({"fetch": [[1, 2, 3]]}, real=True) as app:
        run = app.start(sums, day="monday")
        assert run.wait().status == "COMPLETED"
        assert run.result() == 6


def test_a_history_file_is_compared_and_updated_on_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    golden = tmp_path / "release.history"
    script = {"build": [Fails("FLAKY"), 1], "ok": Approves({"share": 20})}
    with testing.open(script) as app:
        run = app.start(RELEASE)
        run.wait()
        with pytest.raises(AssertionError, match="RUNWRIGHT_UPDATE_HISTORIES=1"):
            run.assert_history(golden)
        monkeypatch.setenv("RUNWRIGHT_UPDATE_HISTORIES", "1")
        run.assert_history(golden)
        monkeypatch.delenv("RUNWRIGHT_UPDATE_HISTORIES")
        run.assert_history(golden)
        run.assert_history(HISTORY.strip().splitlines())
        golden.write_text(golden.read_text().replace("FLAKY", "OTHER"))
        with pytest.raises(AssertionError, match=r"\+StepFailed build: FLAKY"):
            run.assert_history(golden)


def test_replay_compares_a_recorded_run_with_the_plan(tmp_path: Path) -> None:
    store, recorded = f"sqlite:///{tmp_path}/runs.db", tmp_path / "run.jsonl"
    plan = {
        "plan": "p",
        "params": {"n": 2},
        "steps": [
            {"id": "a", "python": {"code": "n", "args": {"n": "{{ params.n }}"}}},
            {"id": "big", "when": "{{ steps.a.result > 1 }}", "noop": {}},
            {"id": "each", "foreach": [1, 2], "noop": {"result": "{{ item }}"}},
        ],
    }
    with rw.open(store) as app:
        run = app.start(plan, n=5)
        assert run.wait().status == "COMPLETED"
        lines = [export_line(record) for record in run.events()]
    recorded.write_text("".join(lines))
    testing.replay(recorded, plan)
    changed = {
        **plan,
        "steps": [*plan["steps"][:1], {**plan["steps"][1], "when": "{{ steps.a.result > 9 }}"}, plan["steps"][2]],
    }
    with pytest.raises(AssertionError, match=r"-StepStarted big"):
        testing.replay(recorded, changed)


def export_line(record: rw.RunEventRecord) -> str:
    import msgspec

    return msgspec.json.encode(record).decode() + "\n"
