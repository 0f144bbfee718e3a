"""The cost of decisions: one budget for the expressions of a step, and a limit on what one decision does."""

from __future__ import annotations

import pytest

import runwright as rw
from runwright.contract.refs import ErrorInfo
from runwright.core.expressions.template import evaluate, evaluate_all
from support.decider import DeciderHarness, graph, step

POISON = "{{ range(100000)|map('string')|join(',')|length }}"
MOST_EVENTS = 4200  # of one decision


def test_all_expressions_of_a_value_share_one_budget() -> None:
    assert evaluate(POISON, {}) == 588_889
    with pytest.raises(rw.RunwrightError) as caught:
        evaluate_all([POISON] * 200, {})
    assert caught.value.code == "EXPRESSION_ERROR"


def test_many_cheap_expressions_of_a_value_are_evaluated() -> None:
    texts = ["{{ params.name }}-{{ params.name|upper }}"] * 20_000
    assert evaluate_all(texts, {"params": {"name": "x"}}) == ["x-X"] * 20_000


def test_a_lookup_costs_as_much_as_its_path_is_long() -> None:
    path = ".".join("a" * 400)
    scope = {"params": {"items": [{"a": 1}] * 20_000}}
    assert evaluate("{{ params.items|map(attribute='a')|sum }}", scope) == 20_000
    with pytest.raises(rw.RunwrightError, match="too much data"):
        evaluate(f"{{{{ params.items|map(attribute='{path}', default=1)|list }}}}", scope)


def _decisions(harness: DeciderHarness, *, recover: bool) -> list[list[str]]:
    """Decide until nothing is deferred; `recover`: each decision is made by another process."""
    made = [harness.decide()]
    while harness.decider.is_deferred:
        if recover:
            harness.restore()
        made.append(harness.decide())
    return made


@pytest.mark.parametrize("recover", [False, True])
def test_an_expensive_decision_is_continued_by_the_next(recover: bool) -> None:
    steps = [step(f"s{number}", when="{{ false }}") for number in range(10_000)]
    made = _decisions(graph(*steps), recover=recover)
    assert len(made) == 3
    assert max(map(len, made)) <= MOST_EVENTS
    events = [entry for decision in made for entry in decision]
    assert events[2:-1] == [f"StepSkipped s{number} CONDITION_FALSE" for number in range(10_000)]
    assert events[-1] == "RunCompleted"


@pytest.mark.parametrize("recover", [False, True])
@pytest.mark.parametrize("ending", ["cancel", "failure"])
def test_the_end_of_a_long_run_takes_several_decisions(ending: str, recover: bool) -> None:
    steps = [step("first"), *(step(f"s{number}", "first") for number in range(10_000))]
    harness = graph(*steps)
    harness.decide()
    if ending == "cancel":
        harness.accept("CANCEL")
        made = [harness.decide(stopped=True)]
    else:
        made = [harness.end("first", error=ErrorInfo("BROKEN", "it broke", retryable=False))]
    while harness.decider.is_deferred:
        if recover:
            harness.restore()
        made.append(harness.decide(stopped=True))
    assert max(map(len, made)) <= MOST_EVENTS
    events = [entry for decision in made for entry in decision]
    assert sum(entry.startswith("StepSkipped") for entry in events) == 10_000
    assert not any(entry.startswith("StepStarted") for entry in events)
    assert harness.status == ("CANCELLED" if ending == "cancel" else "FAILED")
    harness.fold()
