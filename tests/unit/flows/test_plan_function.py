"""Plans in Python: tracing a plan function into a plan."""

from __future__ import annotations

import datetime
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest

import runwright as rw
from runwright.contract.plan import ExecutionPlan, ParamType, content_hash, plan_body
from runwright.flows.plan_function import param_type_of_hint
from runwright.plans.loader import load_plan, plan_from_dict
from runwright.plans.writer import plan_yaml
from runwright.tools.registry import builtin_tools

TOOLS = builtin_tools()


@rw.step(retries=3, timeout="30s")
def extract(day: str) -> dict[str, Any]:
    return {"day": day, "rows": [1, 2, 3]}


@rw.step
def load(rows: Any, table: str = "orders", *, dry: bool = False) -> int:
    return len(rows) + dry + len(table)


@rw.step
async def check(n: int) -> bool:
    return n > 0


def traced_plan(plan: Any) -> ExecutionPlan:
    return plan_from_dict(plan.traced.document, TOOLS).plan


def steps_of(plan: Any) -> dict[str, dict[str, Any]]:
    return {step["id"]: step for step in plan.traced.document["steps"]}


def test_a_step_outside_a_plan_is_a_plain_function() -> None:
    assert load([1, 2]) == 8
    assert extract.map(["a", "b"]) == [extract("a"), extract("b")]
    assert extract.__name__ == "extract"


def test_step_calls_are_traced_and_values_create_dependencies() -> None:
    @rw.plan(version="3")
    def orders(day: str) -> Any:
        rows = extract(day)
        return load(rows["rows"], dry=True)

    plan = traced_plan(orders)
    assert (plan.plan_id, plan.metadata.plan_version, plan.order) == ("orders", "3", "graph")
    first, second = plan.steps
    assert (first.step_id, first.retry.max_attempts, first.timeout) == ("extract", 4, 30.0)
    assert first.inputs == {"call": f"{__name__}:extract", "args": {"day": "{{ params.day }}"}}
    assert second.depends_on == ("extract",)
    assert second.inputs["args"] == {"rows": "{{ steps.extract.result.rows }}", "dry": True}
    assert plan.result == "{{ steps.load.result }}"


def test_a_python_plan_written_as_yaml_is_the_same_plan() -> None:
    @rw.plan
    def orders(day: str, many: int = 4, tags: list[str] | None = None) -> Any:
        rows = extract(day)
        counts = load.map(rows.rows, table=f"t_{day}", max_parallel=2)
        with rw.when((rows.day != "monday") & (many > 3)):
            check.options(id="really", after=[counts])(counts[0])
        return {"counts": counts, "tags": tags}

    plan = traced_plan(orders)
    again = load_plan(plan_yaml(plan, TOOLS), tools=TOOLS).plan
    assert content_hash(plan_body(again)) == content_hash(plan_body(plan))


def test_repeated_steps_are_numbered_unless_they_have_an_id() -> None:
    @rw.plan
    def twice() -> None:
        extract("a")
        extract("b")
        extract.options(id="third")("c")
        extract("d")

    assert list(steps_of(twice)) == ["extract", "extract_2", "third", "extract_3"]


def test_map_iterates_over_the_first_argument() -> None:
    @rw.plan
    def fan(days: list[str]) -> Any:
        return extract.map(days), load.map([[1], [2]], table="t", max_parallel=1)

    steps = steps_of(fan)
    assert steps["extract"]["foreach"] == {"in": "{{ params.days }}"}
    assert steps["extract"]["python"]["args"] == {"day": "{{ item }}"}
    assert steps["load"]["foreach"] == {"in": [[1], [2]], "maxParallel": 1}
    assert steps["load"]["python"]["args"] == {"rows": "{{ item }}", "table": "t"}


def test_conditions_apply_to_the_steps_called_inside_them() -> None:
    @rw.plan
    def careful(n: int) -> None:
        rows = extract("a")
        with rw.when(rows.rows[0] > n):
            load(rows)
            with rw.when(True):
                check(n)
        load(rows)

    whens = {name: step.get("when") for name, step in steps_of(careful).items()}
    assert whens == {
        "extract": None,
        "load": "{{ steps.extract.result.rows[0] > params.n }}",
        "check": "{{ (steps.extract.result.rows[0] > params.n) and true }}",
        "load_2": None,
    }
    assert steps_of(careful)["check"]["dependsOn"] == ["extract"]


def test_after_adds_a_dependency_without_a_value() -> None:
    @rw.plan
    def ordered() -> None:
        first = extract("a")
        check.options(after=[first])(1)

    assert steps_of(ordered)["check"]["dependsOn"] == ["extract"]


def test_steps_do_not_run_while_a_plan_is_traced() -> None:
    @rw.plan
    def harmless() -> None:
        explode()

    assert list(steps_of(harmless)) == ["explode"]


@rw.step
def explode() -> None:
    raise AssertionError("a step ran while its plan was traced")


# Refused plans


def refusal(plan: Any) -> rw.RunwrightError:
    with pytest.raises(rw.RunwrightError) as caught:
        traced_plan(plan)
    return caught.value


def test_unknown_arguments_of_a_step_are_refused() -> None:
    @rw.plan
    def wrong() -> None:
        load(rows=[], tabel="x")  # pyright: ignore[reportCallIssue]

    error = refusal(wrong)
    assert error.code == "INVALID_STEP_SCHEMA"
    assert "tabel" in error.detail
    assert "load(rows: 'Any', table: 'str' = 'orders'" in error.detail


def test_a_step_that_cannot_be_imported_is_refused() -> None:
    inner = rw.step(lambda: 1)

    @rw.plan
    def lost() -> None:
        inner()

    error = refusal(lost)
    assert error.code == "INVALID_STEP_SCHEMA"
    assert "Move it to the top of a module" in error.detail


def test_branching_on_a_symbolic_value_is_refused() -> None:
    @rw.plan
    def hasty(n: int) -> None:
        if extract("a").rows[0] > n:
            load([])

    assert refusal(hasty).code == "PLAN_NEEDS_VALUE"


def test_calling_a_plan_is_refused() -> None:
    @rw.plan
    def one() -> None:
        check(1)

    with pytest.raises(rw.RunwrightError, match=r"app\.start\(one"):
        one()


@pytest.mark.parametrize("kind", ["star", "places", "coroutine"])
def test_unsupported_plan_functions_are_refused(kind: str) -> None:
    def star(*days: str) -> None: ...
    def places(day: str, /) -> None: ...
    async def coroutine() -> None: ...

    plan: Any = rw.plan({"star": star, "places": places, "coroutine": coroutine}[kind])
    assert refusal(plan).code == "INVALID_PLAN_SCHEMA"


def test_unknown_options_are_refused_by_name() -> None:
    with pytest.raises(rw.RunwrightError, match="retires"):
        extract.options(retires=3)
    with pytest.raises(rw.RunwrightError, match="nmae"):
        rw.plan(nmae="x")  # type: ignore[call-overload]


def test_a_duplicate_step_id_is_refused() -> None:
    @rw.plan
    def twins() -> None:
        extract.options(id="a")("x")
        extract.options(id="a")("y")

    assert refusal(twins).code == "INVALID_PLAN_SCHEMA"


def test_a_condition_outside_a_plan_is_refused() -> None:
    with pytest.raises(rw.RunwrightError, match=r"@rw\.plan"), rw.when(True):
        pass


# Parameters


@dataclass
class Window:
    start: datetime.date
    days: int = 1


@pytest.mark.parametrize(
    ("hint", "kind"),
    [
        (str, "string"), (int, "integer"), (float, "number"), (bool, "boolean"), (list[int], "list"),
        (tuple[int, ...], "list"), (dict[str, int], "object"), (Window, "object"), (datetime.date, "string"),
        (uuid.UUID, "string"), (Literal["a", "b"], "string"), (Literal[1, "b"], "any"), (str | None, "any"),
        (Any, "any"), (Path, "any"), (object(), "any"),
    ],
)  # fmt: skip
def test_annotations_determine_parameter_types(hint: Any, kind: str) -> None:
    assert param_type_of_hint(hint) == ParamType(kind)


def test_parameters_are_checked_against_their_annotations() -> None:
    @rw.plan
    def windowed(window: Window, mode: Literal["full", "fast"] = "full") -> None:
        load([window, mode])

    given = windowed.params({"window": Window(datetime.date(2026, 1, 31)), "mode": "fast"})
    assert given == {"window": {"start": "2026-01-31", "days": 1}, "mode": "fast"}
    for wrong in ({"window": {"start": "yesterday"}}, {"mode": "slow"}, {"window": 5}):
        with pytest.raises(rw.RunwrightError) as caught:
            windowed.params(wrong)
        assert caught.value.code == "INVALID_ARGUMENT"
        assert next(iter(wrong)) in caught.value.detail
