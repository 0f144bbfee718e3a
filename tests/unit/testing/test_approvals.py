"""Whatever a plan looks like, and whoever answers when: nothing behind an approval starts before it is granted."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from runwright import testing


@st.composite
def graphs(draw: st.DrawFn) -> tuple[dict[str, Any], dict[str, Any]]:
    """A plan with approvals among its steps, and what happens to each."""
    steps: list[dict[str, Any]] = []
    script: dict[str, Any] = {}
    for number in range(draw(st.integers(2, 9))):
        step_id = f"s{number}"
        needs = draw(st.lists(st.sampled_from([step["id"] for step in steps]), unique=True)) if steps else []
        step: dict[str, Any] = {"id": step_id, "dependsOn": needs}
        after = draw(st.sampled_from(["0s", "1s", "1h", "3d"]))
        kind = draw(st.sampled_from(["approval", "needs", "wait", "work"]))
        if kind in ("approval", "needs"):
            says_yes = draw(st.integers(0, 4)) > 0
            script[step_id] = testing.Approves(after=after) if says_yes else testing.Denies("no", after=after)
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
def test_nothing_behind_an_approval_starts_before_it_is_granted(drawn: tuple[dict[str, Any], dict[str, Any]]) -> None:
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
                behind = {above for above in ancestors(steps, step_id) if _asks(steps[above])}
                assert behind <= granted, run.history()


def _asks(step: dict[str, Any]) -> bool:
    return "approval" in step or bool(step.get("needsApproval"))


def test_two_answers_at_the_same_moment() -> None:
    """The second comes while the run is being taken up for the first; whoever waits for its end does not keep it from that."""
    steps = [{"id": name, "approval": "May it?"} for name in ("a", "b")]
    denied = testing.Denies("no", after="0s")
    with testing.open({"a": denied, "b": denied}) as app:
        run = app.start({"plan": "p", "order": "graph", "steps": steps})
        assert run.wait().status == "FAILED"


def test_an_answer_that_comes_while_the_run_is_being_parked() -> None:
    """The driver has decided that there is nothing to do for a while, and is not gone yet."""
    steps = [{"id": "a", "approval": "May it?"}, {"id": "b", "shell": "true"}]
    with testing.open({"a": testing.Denies("no", after="0s"), "b": testing.Result(took="0s")}) as app:
        run = app.start({"plan": "p", "order": "graph", "steps": steps})
        assert run.wait().status == "FAILED"
