"""Plans written as YAML load as the same plan."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
import yaml
from hypothesis import given, reject
from hypothesis import strategies as st

from runwright.contract.capabilities import ADAPTERS, FALLBACKS
from runwright.contract.paths import RESERVED
from runwright.contract.plan import ExecutionPlan, plan_body
from runwright.plans.loader import plan_from_dict
from runwright.plans.problems import PlanInvalid
from runwright.plans.writer import plan_yaml
from support.plan_kinds import KINDS, load_text

words = st.sampled_from(
    ["a", "b-c", "yes", "null", "~", "12", "0o17", "1e3", ".5", "true", "2026-01-01", "x: y", "# no", "- z"]
)
texts = words | st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0{"), max_size=12)
blocks = st.lists(st.text("ab #:-'\"\t ", max_size=8), max_size=4).map("\n".join)
scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts | blocks
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3), max_leaves=8
)
ids = st.text(
    st.characters(exclude_characters="".join(RESERVED), exclude_categories=["Cs", "Cc"]), min_size=1, max_size=8
).filter(lambda text: text.isprintable() and text == text.strip() and text != "signal")
durations = st.floats(0, 10**6) | st.integers(0, 10**6) | st.sampled_from(["1h30m", "500ms", "2d"])
positive_durations = st.floats(0.001, 10**6) | st.sampled_from(["1h30m", "500ms", "2d"])


@st.composite
def step_fields(draw: st.DrawFn, step_id: str, earlier: list[str]) -> dict[str, Any]:
    optional: dict[str, st.SearchStrategy[Any]] = {
        "dependsOn": st.lists(st.sampled_from(earlier), unique=True, max_size=3) if earlier else st.just([]),
        "when": st.sampled_from([True, False, "{{ run.id == 'x' }}", 'run.id != "y" # z'[:14], "1 > 2"]),
        "foreach": st.fixed_dictionaries(
            {"in": st.lists(values, max_size=2) | st.just("{{ range(3) }}")},
            optional={"as": st.sampled_from(["item", "row"]), "maxParallel": st.integers(1, 10_000)},
        ),
        "retry": st.fixed_dictionaries(
            {"max": st.just("2d")},
            optional={
                "maxAttempts": st.integers(1, 1000),
                "backoff": st.sampled_from(["fixed", "exponential"]),
                "initial": st.floats(0, 1000),
                "jitter": st.booleans(),
            },
        ),
        "timeout": positive_durations,
        "class": st.sampled_from(["light", "heavy", "isolation"]),
        "cancellable": st.booleans(),
        "secretRefs": st.lists(words, unique=True, max_size=2),
        "dispatch": st.builds(lambda queue: {"queue": queue}, st.sampled_from(["gpu", "big one"])),
        "fallback": values,
    }
    kinds: list[dict[str, Any]] = [
        {"noop": draw(st.none() | st.fixed_dictionaries({"result": values}))},
        {"shell": draw(texts | blocks | st.lists(texts, max_size=3))},
        {"shell": {"command": draw(texts), "env": draw(st.dictionaries(texts, texts, max_size=3))}},
        {"kind": "timeout", "with": {"result": draw(values)}},
    ]
    return {"id": step_id, **draw(st.fixed_dictionaries({}, optional=optional)), **draw(st.sampled_from(kinds))}


@st.composite
def documents(draw: st.DrawFn) -> dict[str, Any]:
    names = draw(st.lists(ids, unique=True, min_size=1, max_size=5))
    optional: dict[str, st.SearchStrategy[Any]] = {
        "version": words,
        "description": texts | blocks,
        "labels": st.dictionaries(texts, texts, max_size=3),
        "requiresCapabilities": st.lists(words, unique=True, max_size=2),
        "fallbackBehavior": st.sampled_from(FALLBACKS),
        "targetAdapter": st.sampled_from(ADAPTERS),
        "params": st.dictionaries(texts.filter(bool), values, max_size=3),
        "order": st.sampled_from(["graph", "sequential"]),
        "onFailure": st.sampled_from(["fail", "continue", "wait"]),
        "timeout": positive_durations,
    }
    steps = [draw(step_fields(name, names[:number])) for number, name in enumerate(names)]
    return {"plan": draw(words), **draw(st.fixed_dictionaries({}, optional=optional)), "steps": steps}


def build_plan(document: dict[str, Any]) -> ExecutionPlan:
    try:
        return plan_from_dict(document, KINDS).plan
    except PlanInvalid as invalid:
        if all("{secret: NAME}" in problem.sentence for problem in invalid.problems):
            reject()  # A generated name looked like that of a secret.
        raise AssertionError([str(problem) for problem in invalid.problems]) from invalid


def to_full_form(document: dict[str, Any]) -> dict[str, Any]:
    """Convert a short-form document to the full form."""
    full: dict[str, Any] = {"apiVersion": "runwright/v1", "kind": "Plan", "metadata": {}}
    short = {"plan": "planId", "version": "planVersion"}
    for name, value in document.items():
        if name in ("params", "order", "onFailure", "timeout", "steps"):
            full[name] = value
        else:
            full["metadata"][short.get(name, name)] = value
    full["steps"] = []
    for step in document["steps"]:
        step = dict(step)
        kind = next((name for name in ("noop", "shell") if name in step), None)
        if kind is not None:
            value = step.pop(kind)
            step |= {"kind": kind, "with": value if isinstance(value, dict) or value is None else {"command": value}}
        step["stepId"] = step.pop("id")
        full["steps"].append(step)
    return full


@given(documents())
def test_written_plans_load_as_the_same_plan(document: dict[str, Any]) -> None:
    plan = build_plan(document)
    for text in (plan_yaml(plan), plan_yaml(plan, KINDS)):
        again = load_text(text)
        assert plan_body(again.plan) == plan_body(plan)
        assert not [warning for warning in again.warnings if "start immediately" in warning.sentence]


@given(documents())
def test_short_full_and_canonical_forms_give_the_same_plan(document: dict[str, Any]) -> None:
    plan = build_plan(document)
    assert plan_body(build_plan(to_full_form(document))) == plan_body(plan)
    body = msgspec.json.decode(plan_body(plan))
    body["order"] = plan.order  # The bytes omit a sequential order, and a loader would then infer it from `dependsOn`.
    assert plan_body(load_text(msgspec.json.encode(body)).plan) == plan_body(plan)


PLAN = """\
plan: orders
version: '3'
params: {day: '2026-01-01'}
onFailure: wait
timeout: 1h30m
steps:
- id: extract
  shell: echo {{ params.day | quote }}
  retry: {maxAttempts: 3, initial: 500ms}
- id: load
  dependsOn: [extract]
  foreach:
    in: [1, 2]
    as: row
  call:
    url: http://example.org/a-long-address/that-does-not-fit-on-one-line
    headers:
      A: [b]
- id: script
  dependsOn: [load]
  shell: |
    set -e

    echo "done: $0"
"""


def test_written_yaml_is_formatted_for_readers() -> None:
    assert plan_yaml(load_text(PLAN).plan, KINDS) == PLAN


def test_strings_ambiguous_in_yaml_1_1_are_quoted() -> None:
    params = {"a": "yes", "b": "2026-01-01", "c": "0o17", "d": "1_000", "e": "12:30:00", "f": "=", "g": "NO"}
    text = plan_yaml(build_plan({"plan": "p", "params": params, "steps": [{"id": "a", "noop": {}}]}))
    assert yaml.safe_load(text)["params"] == params


@pytest.mark.parametrize(
    ("document", "order"),
    [
        ({"steps": [{"id": "a", "noop": {}}, {"id": "b", "noop": {}}]}, False),
        ({"steps": [{"id": "a", "noop": {}}, {"id": "b", "noop": {}}], "order": "graph"}, True),
        ({"steps": [{"id": "a", "noop": {}}, {"id": "b", "noop": {}, "dependsOn": ["a"]}]}, False),
        (
            {"steps": [{"id": "a", "noop": {}}, {"id": "b", "noop": {}, "dependsOn": ["a"]}], "order": "sequential"},
            True,
        ),
    ],
)
def test_order_is_written_only_if_it_cannot_be_inferred(document: dict[str, Any], order: bool) -> None:
    assert ("\norder: " in plan_yaml(build_plan({"plan": "p", **document}))) is order
