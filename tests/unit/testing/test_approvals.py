"""Approvals in any plan, answered at any time: no dependent step starts before its approval is granted."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from runwright import testing


@st.composite
def graphs(draw: st.DrawFn) -> tuple[dict[str, Any], dict[str, Any]]:
    """A plan with approvals among its steps, and a script for each step."""
    steps: list[dict[str, Any]] = []
    script: dict[str, Any] = {}
    for number in range(draw(st.integers(2, 9))):
        step_id = f"s{number}"
        needs = draw(st.lists(st.sampled_from([step["id"] for step in steps]), unique=True)) if steps else []
        step: dict[str, Any] = {"id": step_id, "dependsOn": needs}
        after = draw(st.sampled_from(["0s", "1s", "1h", "3d"]))
        kind = draw(st.sampled_from(["approval", "needs", "wait", "work"]))
        if kind in ("approval", "needs"):
            is_approved = draw(st.integers(0, 4)) > 0
            script[step_id] = testing.Approves(after=after) if is_approved else testing.Denies("no", after=after)
            step |= {"approval": "May it?"} if kind == "approval" else {"shell": "true", "needsApproval": True}
        elif kind == "wait":
            step["wait"] = after
        else:
            step["shell"] = "true"
            script[step_id] = testing.Result(took=after) if draw(st.booleans()) else testing.Fails(took=after)
        steps.append(step)
    failure = draw(st.sampled_from(["fail", "continue"]))
    return {"plan": "p", "order": "graph", "onFailure": failure, "steps": steps}, script


def ancestors(steps: dict[str, dict[str, Any]], step_id: str) -> set[str]:
    needs = set(steps[step_id]["dependsOn"])
    return needs.union(*(ancestors(steps, need) for need in needs)) if needs else needs


@given(graphs())
def test_dependents_of_an_approval_start_after_it_is_granted(drawn: tuple[dict[str, Any], dict[str, Any]]) -> None:
    plan, script = drawn
    steps = {step["id"]: step for step in plan["steps"]}
    with testing.open(script) as app:
        run = app.start(plan)
        assert run.wait().status in ("COMPLETED", "FAILED")
        granted: set[str] = set()
        for record in run.events():
            step_id = record.step_id or ""
            if record.event_type == "ApprovalGranted":
                granted.add(step_id)
            if record.event_type == "StepStarted":
                required = {ancestor for ancestor in ancestors(steps, step_id) if _needs_approval(steps[ancestor])}
                assert required <= granted, run.history()


def _needs_approval(step: dict[str, Any]) -> bool:
    return "approval" in step or bool(step.get("needsApproval"))


def test_two_simultaneous_denials_fail_the_run() -> None:
    """The second answer arrives while the run resumes for the first; waiting for the end must not block it."""
    steps = [{"id": name, "approval": "May it?"} for name in ("a", "b")]
    denied = testing.Denies("no", after="0s")
    with testing.open({"a": denied, "b": denied}) as app:
        run = app.start({"plan": "p", "order": "graph", "steps": steps})
        assert run.wait().status == "FAILED"


def test_a_denial_while_the_run_is_parked_fails_the_run() -> None:
    """The driver has decided to park the run, but has not stopped yet."""
    steps = [{"id": "a", "approval": "May it?"}, {"id": "b", "shell": "true"}]
    with testing.open({"a": testing.Denies("no", after="0s"), "b": testing.Result(took="0s")}) as app:
        run = app.start({"plan": "p", "order": "graph", "steps": steps})
        assert run.wait().status == "FAILED"
