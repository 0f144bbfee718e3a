"""The order of steps: dependencies, cycles, and the steps that are known to have ended before another."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runwright.contract.plan import Order
from runwright.plans.dependency_graph import DependencyGraph
from runwright.plans.loader import plan_from_dict
from support.plan_kinds import KINDS, load_text, problems_of


def plan(order: str | None = None, **needs: str) -> str:
    """Create a plan of noop steps from a name and its dependencies for each."""
    head = "plan: p\n" + (f"order: {order}\n" if order else "")
    steps = [
        f"  - {{id: {name}, noop: {{}}{f', dependsOn: [{deps}]' if deps else ''}}}" for name, deps in needs.items()
    ]
    return head + "steps:\n" + "\n".join(steps)


@pytest.mark.parametrize(
    ("text", "order"),
    [
        (plan(a="", b=""), Order.SEQUENTIAL),
        (plan(a="", b="a"), Order.GRAPH),
        (plan("graph", a="", b=""), Order.GRAPH),
        (plan("sequential", a="", b="a", c=""), Order.SEQUENTIAL),
    ],
)
def test_order_is_inferred_from_dependencies_unless_given(text: str, order: Order) -> None:
    assert load_text(text).plan.order is order
    assert load_text(text).warnings == ()


def test_partial_dependencies_warn_about_the_other_steps() -> None:
    [warning] = load_text(plan(a="", b="a", c="", d="")).warnings
    assert str(warning) == (
        "test.yaml:5:5: WARNING Some steps have `dependsOn`, so the plan is a graph and 'a', 'c', 'd' start immediately. "
        "Write `order: graph` if this is intended."
    )
    assert load_text(plan("graph", a="", b="a", c="", d="")).warnings == ()


def test_parameters_with_expressions_give_a_warning() -> None:
    [warning] = load_text("plan: p\nparams: {a: '{{ run.id }}'}\nsteps: [{id: a, noop: }]").warnings
    assert str(warning).startswith("test.yaml:2:13: WARNING The parameter 'a' contains {{ }}")


@pytest.mark.parametrize(
    ("text", "place", "sentence"),
    [
        (plan(a="a"), "3:35", "The step 'a' depends on itself."),
        (plan(a="", b="x"), "4:35", "Unknown step 'x' in `dependsOn`."),
        (plan(extract="", b="extrct"), "4:35", "Did you mean 'extract'?"),
        (plan(a="b", b="a"), "3:34", "Dependency cycle: a -> b -> a."),
        (plan(a="", b="d", c="b", d="c, a"), "4:34", "Dependency cycle: b -> d -> c -> b."),
        (
            plan("sequential", a="b", b=""),
            "4:35",
            "In sequential order 'a' cannot depend on 'b', which is declared later.",
        ),
    ],
)
def test_invalid_dependencies_are_refused(text: str, place: str, sentence: str) -> None:
    [problem] = problems_of(text)
    assert problem.startswith(f"test.yaml:{place}: INVALID_PLAN_SCHEMA ")
    assert sentence in problem


def test_each_dependency_cycle_is_reported_once() -> None:
    found = problems_of(plan(a="b", b="a", after="a", c="d", d="c", e="c, after"))
    assert [problem.split("cycle: ")[1] for problem in found] == ["a -> b -> a.", "c -> d -> c."]


@pytest.mark.parametrize(
    ("order", "needs", "is_fine"),
    [
        (None, {"a": "", "b": "", "c": ""}, True),  # In sequence, a has ended before c.
        ("graph", {"a": "", "b": "", "c": ""}, False),
        ("graph", {"a": "", "b": "a", "c": "b"}, True),  # c depends on a through b.
        ("graph", {"a": "", "b": "a", "c": "a"}, True),
        ("graph", {"a": "", "b": "", "c": "b"}, False),
        ("graph", {"a": "c", "b": "", "c": "b"}, False),  # Here a depends on c.
        ("sequential", {"c": "", "a": "", "b": ""}, False),
    ],
)
def test_a_step_can_use_only_results_of_preceding_steps(
    order: str | None, needs: dict[str, str], is_fine: bool
) -> None:
    text = plan(order, **needs).replace("{id: c, noop: {}", "{id: c, noop: {result: '{{ steps.a.result }}'}")
    found = problems_of(text)
    assert bool(found) is not is_fine
    if found:
        [problem] = found
        assert "EXPRESSION_ERROR Step 'a' may not have ended before 'c' starts. " in problem


def test_a_step_that_uses_its_own_result_is_refused() -> None:
    [problem] = problems_of("plan: p\nsteps: [{id: a, noop: {result: '{{ steps.a.result }}'}}]")
    assert "'a' may not have ended before 'a'" in problem


graphs = st.lists(st.lists(st.integers(0, 30), max_size=3), min_size=1, max_size=25).map(
    lambda rows: [sorted({source for source in row if source < number}) for number, row in enumerate(rows)]
)


@given(graphs, st.randoms(use_true_random=False))
def test_steps_are_ordered_after_transitive_dependencies(needs: list[list[int]], random: object) -> None:
    steps = [
        {"id": f"s{number}", "noop": {}, "dependsOn": [f"s{each}" for each in row]} for number, row in enumerate(needs)
    ]
    graph = DependencyGraph(plan_from_dict({"plan": "p", "order": "graph", "steps": steps}, KINDS).plan.steps)
    before: list[set[int]] = []
    for row in needs:
        before.append(set(row).union(*(before[source] for source in row)))
    pairs = [(step, other) for step in range(len(needs)) for other in range(len(needs))]
    assert graph.find_unordered(Order.GRAPH, pairs) == {
        (step, other) for step, other in pairs if other not in before[step]
    }


@given(st.lists(st.lists(st.integers(0, 12), max_size=3), min_size=1, max_size=13))
def test_steps_are_sorted_or_a_cycle_is_reported(rows: list[list[int]]) -> None:
    size = len(rows)
    names = {
        f"s{number}": ", ".join(sorted({f"s{each % size}" for each in row} - {f"s{number}"}))
        for number, row in enumerate(rows)
    }
    found = problems_of(plan("graph", **names))
    if not found:
        graph = DependencyGraph(load_text(plan("graph", **names)).plan.steps)
        sequence, cycles = graph.topological_order()
        positions = {number: position for position, number in enumerate(sequence)}
        assert cycles == [] and sorted(sequence) == list(range(size))
        assert all(
            positions[source] < positions[number]
            for number, sources in enumerate(graph.dependencies)
            for source in sources
        )
    for problem in found:
        cycle = problem.split("cycle: ")[1].rstrip(".").split(" -> ")
        assert cycle[0] == cycle[-1] and len(cycle) > 2
        assert all(later in names[earlier].split(", ") for earlier, later in pairwise(cycle))


def test_a_plan_of_5000_steps_is_loaded() -> None:
    lines = [
        f"  - {{id: s{n}, noop: {{result: '{{{{ steps.s{n // 2}.result }}}}'}}, dependsOn: [s{n - 1}]}}"
        for n in range(1, 5000)
    ]
    text = "plan: p\nsteps:\n  - {id: s0, noop: }\n" + "\n".join(lines)
    assert len(load_text(text).plan.steps) == 5000
