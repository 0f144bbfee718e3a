"""Plans in Python that call other plans: each call is a step, and the step is a run."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import runwright as rw
from runwright import testing
from runwright.contract.plan import content_hash, plan_body
from runwright.control.plan_loader import read_data, read_function
from runwright.plans.writer import plan_yaml
from runwright.tools.registry import all_tools

FLOW = """
import runwright as rw

@rw.step
def double(n: int) -> int:
    return 2 * n

@rw.step
def total(numbers: list[int]) -> int:
    return sum(numbers)

@rw.plan
def inner(n: int, more: int = 1) -> int:
    return double(n)

@rw.plan
def outer(n: int):
    first = inner(n)
    second = inner.options(id="again", retries=1)(first, more=2)
    return {"both": [first, second]}

@rw.plan
def each(numbers: list[int]):
    return total(inner.map(numbers, max_parallel=2))

@rw.plan
def endless(n: int):
    return endless(n)

@rw.plan
def wrong():
    return inner(m=1)

@rw.plan
def mistyped():
    return inner("three")
"""


@pytest.fixture(autouse=True)
def working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sub_plan_flow.py").write_text(FLOW)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "sub_plan_flow", raising=False)


def flow(name: str) -> rw.PlanFunction[..., object]:
    import importlib

    return getattr(importlib.import_module("sub_plan_flow"), name)


def test_call_of_a_plan_is_a_run_and_returns_its_result() -> None:
    with rw.open() as app:
        run = app.start(flow("outer"), n=3)
        assert run.wait(20).status == "COMPLETED"
        assert run.result() == {"both": [6, 12]}
        assert run.result("inner") == 6
        assert app.run(f"{run.run_id}/again").snapshot().status == "COMPLETED"


def test_a_plan_can_be_mapped_over_a_list() -> None:
    with rw.open() as app:
        run = app.start(flow("each"), numbers=[1, 2, 3])
        run.wait(20)
        assert run.result() == 12


def test_yaml_of_a_plan_with_sub_plans_is_the_same_plan() -> None:
    plan = read_function(flow("outer")).plan
    again = read_data(__import__("yaml").safe_load(plan_yaml(plan, all_tools()))).plan
    assert content_hash(plan_body(again)) == content_hash(plan_body(plan))
    assert plan.steps[0].inputs["ref"].startswith("plan:sha256:")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("endless", "Dependency cycle"),
        ("wrong", "missing a required argument: 'n'"),
    ],
)
def test_cycle_or_missing_argument_is_refused_at_start(name: str, message: str) -> None:
    with rw.open() as app, pytest.raises(rw.RunwrightError, match=message):
        app.start(flow(name), **({"n": 1} if name == "endless" else {}))


def test_argument_of_the_wrong_type_is_refused_at_start() -> None:
    message = "Step 'inner': Parameter 'n' must be an integer"
    with rw.open() as app, pytest.raises(rw.RunwrightError, match=message):
        app.start(flow("mistyped"))


def test_a_plan_is_not_run_by_calling_it() -> None:
    with pytest.raises(rw.RunwrightError, match="cannot be run by a call"):
        flow("inner")(1)


def test_testing_app_runs_or_scripts_the_inner_plan() -> None:
    with testing.open({"double": 5}) as app:
        run = app.start(flow("outer"), n=1)
        run.wait()
        assert run.result() == {"both": [5, 5]}
    with testing.open({"inner": 7, "again": testing.Fails("NO", retryable=False)}) as app:
        run = app.start(flow("outer"), n=1)
        assert run.wait().status == "FAILED"
        assert run.result("inner") == 7
        assert len(app.operations.engine.driven) == 0
    with (
        pytest.raises(rw.RunwrightError, match="of the script not found in the plan"),
        testing.open({"dubble": 5}) as app,
    ):
        app.start(flow("outer"), n=1)
