"""The accepted YAML: the core schema of 1.2, one document, bounded expansion."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from runwright.contract.plan import plan_body
from runwright.plans.header import FIELDS as PLAN_FIELDS
from runwright.plans.problems import PlanInvalid
from runwright.plans.steps import FIELDS as STEP_FIELDS
from support.plan_kinds import load_text, problems_of


def value_of(scalar: str) -> Any:
    return load_text(f"plan: p\nparams:\n  v: {scalar}\nsteps: [{{id: a, noop: }}]").plan.params["v"]


@pytest.mark.parametrize(
    ("scalar", "value"),
    [
        ("yes", "yes"), ("no", "no"), ("on", "on"), ("off", "off"), ("Y", "Y"),
        ("true", True), ("FALSE", False), ("True", True), ("tRUE", "tRUE"),
        ("null", None), ("~", None), ("", None), ("nul", "nul"),
        ("2026-01-01", "2026-01-01"), ("2026-01-01T10:00:00Z", "2026-01-01T10:00:00Z"), ("12:30:00", "12:30:00"),
        ("12", 12), ("-0", 0), ("+5", 5), ("010", 10), ("0o17", 15), ("0xFF", 255), ("0b1", "0b1"), ("1_000", "1_000"),
        ("1.5", 1.5), (".5", 0.5), ("1.", 1.0), ("1e3", 1000.0), ("-1.5E-2", -0.015), ("1.2.3", "1.2.3"),
        ("12345678901234567890123", 12345678901234567890123),
        ("'12'", "12"), ('"true"', "true"), ("!!str 12", "12"), ("! 12", "12"), ("!!int '12'", 12), ("!!float 1", 1.0),
        ("|-\n    a\n    b", "a\nb"), (">-\n    a\n    b", "a b"), ('"\\u00e9\\t"', "é\t"),
        ("[a, 1]", ["a", 1]), ("{a: 1, 'b c': [null]}", {"a": 1, "b c": [None]}),
    ],
)  # fmt: skip
def test_plain_scalars_follow_the_core_schema(scalar: str, value: Any) -> None:
    assert value_of(scalar) == value
    assert type(value_of(scalar)) is type(value)


@pytest.mark.parametrize(
    ("text", "place", "sentence"),
    [
        ("plan: p\nplan: q\n", "2:1", "Duplicate field 'plan'."),
        ("plan: p\nparams: {a: 1, a: 2}\n", "2:16", "Duplicate field 'a'."),
        ("plan: p\nparams: {1: 2}\n", "2:10", "put it in quotes"),
        ("plan: p\nparams: {[a]: 2}\n", "2:10", "put it in quotes"),
        ("plan: p\nparams: {a: {{ b }}}\n", "2:14", "begins with an expression must be in quotes"),
        ("plan: p\nparams: {<<: {a: 1}}\n", "2:10", "Merge keys"),
        ("plan: p\nparams: {a: .inf}\n", "2:13", "must be finite"),
        ("plan: p\nparams: {a: .nan}\n", "2:13", "must be finite"),
        ("plan: p\nparams: {a: 1e999}\n", "2:13", "must be finite"),
        ("plan: p\nparams: {a: " + "9" * 5000 + "}\n", "2:13", "is a number that is too long"),
        ("plan: p\nparams: {a: 0x" + "f" * 5000 + "}\n", "2:13", "is a number that is too long"),
        ("plan: p\nparams: {a: 0o" + "7" * 5000 + "}\n", "2:13", "is a number that is too long"),
        ('plan: p\nparams: {a: "\\0"}\n', "2:13", "U+0000 is not allowed"),
        ("plan: p\nparams: {a: !!timestamp 2026-01-01}\n", "2:13", "tag:yaml.org,2002:timestamp is not supported"),
        ("plan: p\nparams: {a: !!python/object:os.system x}\n", "2:13", "is not supported"),
        ("plan: p\nparams: {a: !mine {b: c}}\n", "2:13", "The tag !mine is not supported"),
        ("plan: p\nparams: {a: !!int x}\n", "2:13", "does not match its tag"),
    ],
)
def test_recoverable_yaml_mistakes_are_reported(text: str, place: str, sentence: str) -> None:
    [problem] = problems_of(text + "steps: [{id: a, noop: }]")
    assert problem.startswith(f"test.yaml:{place}: INVALID_PLAN_SCHEMA ")
    assert sentence in problem


def test_problems_of_yaml_and_plan_are_reported_together() -> None:
    found = problems_of("plan: p\nplan: q\nsteps:\n  - {id: a, nop: }\n  - {id: b, id: c, noop: }\n")
    assert [problem.split(" ")[0] for problem in found] == ["test.yaml:2:1:", "test.yaml:4:13:", "test.yaml:5:13:"]


@pytest.mark.parametrize(
    ("text", "place", "sentence"),
    [
        ("plan: [p\nsteps: x", "2:6", "Invalid YAML"),
        ("plan: p\n  steps: x", "2:8", "Invalid YAML"),
        ("plan: p\n\tsteps: x", "2:1", "Invalid YAML"),
        ("plan: p\n---\nplan: q", "2:1", "a second one begins here"),
        ("plan: *missing", "1:7", "Unknown anchor &missing"),
        ("plan: &a [*a]", "1:11", "Unknown anchor &a"),
        ("plan: " + "[" * 100 + "]" * 100, "1:70", "at most 64 levels deep"),
        ("plan: " + "[" * 100_000, "1:70", "at most 64 levels deep"),
        ("- " * 100_000, "1:129", "at most 64 levels deep"),
        ("plan: p\x07", "1:8", "U+0007 is not allowed"),
        ("plan: p\n\x80", "2:1", "U+0080 is not allowed"),
        (b"plan: p\n\xff", "2:1", "Invalid UTF-8"),
        ("plan: p # " + "a" * 2**23, "1:1", "at most 8 MiB"),
        ('{"plan": "p", }', "1:15", "Invalid JSON"),
        ('{"plan": "p", "plan": "q", "steps": [{"id": "a", "noop": {}}]}', "1:15", "Duplicate field 'plan'"),
        ('{"plan": "p", "params": {"a": NaN}, "steps": [{"id": "a", "noop": {}}]}', "1:31", "must be finite"),
        ('{"plan": "p", "params": {"a": "\\ud800"}, "steps": [{"id": "a", "noop": {}}]}', "1:31", "U+D800 is not"),
        ('{"a":' * 100_000, "1:1", "Invalid JSON: a number is too long, or the nesting too deep"),
        ("[" * 50_000 + "]" * 50_000, "1:1", "Invalid JSON: a number is too long, or the nesting too deep"),
    ],
)
def test_unreadable_text_is_reported_with_its_position(text: str | bytes, place: str, sentence: str) -> None:
    [problem] = problems_of(text, "test.json" if text[:1] in ("{", "[") else "test.yaml")
    assert f":{place}: INVALID_PLAN_SCHEMA " in problem
    assert sentence in problem


def test_a_flow_mapping_that_is_not_json_is_read_as_yaml() -> None:
    assert load_text("{plan: p, steps: [{id: a, noop: }]}").plan.plan_id == "p"


def test_a_byte_order_mark_is_ignored() -> None:
    assert load_text(b"\xef\xbb\xbfplan: p\nsteps: [{id: a, noop: }]").plan.plan_id == "p"


def test_anchors_and_aliases_are_resolved() -> None:
    text = """
        plan: p
        steps:
          - {id: a, noop: , retry: &often {maxAttempts: 5}}
          - {id: b, noop: , retry: *often}
    """
    assert [step.retry.max_attempts for step in load_text(text).plan.steps] == [5, 5]


def test_yaml_alias_expansion_is_bounded() -> None:
    lines = ["plan: p", "params:", "  a0: &a0 [lol, lol, lol, lol, lol, lol, lol, lol, lol, lol]"]
    lines += [f"  a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 10)]
    [problem] = problems_of("\n".join([*lines, "steps: [{id: a, noop: }]"]))
    assert "expand to too much data" in problem
    for anchored, times in (("x" * 2**20, 2), (f"[{'1, ' * 2000}]", 600)):
        lines = ["plan: p", "params:", f"  a: &a {anchored}", f"  b: [{', '.join(['*a'] * times)}]"]
        [problem] = problems_of("\n".join(lines))
        assert "expand to too much data" in problem


LINES = [
    "plan: p\n",
    "steps:\n",
    "  - id: a\n",
    "    noop: {}\n",
    "    shell: ",
    "{{ steps.a }}",
    "  - {id: b, noop: }\n",
]
SIGNS = [
    "&x ",
    "*x",
    "[",
    "]",
    "{",
    "}",
    "- ",
    ": ",
    "!!",
    "|\n",
    ">\n",
    "'",
    '"',
    "\n",
    "  ",
    "? ",
    "---\n",
    "%",
    "#",
    "\t",
]
FIELDS = ["dependsOn: [a]\n", "retry: {maxAttempts: 3}\n", "when: ", "foreach: ", "params: ", "null", "1e5", "<<: "]
pieces = st.sampled_from([*LINES, *SIGNS, *FIELDS])


@given(st.lists(pieces, max_size=20).map("".join) | st.text(max_size=40) | st.binary(max_size=40))
@example("plan: p\nsteps:\n- ? {a: b}\n  : c\n")
@example("plan: p\nsteps:\n- ? [a]\n  : &a c\n- *a\n")
def test_any_text_gives_a_plan_or_problems(text: str | bytes) -> None:
    try:
        plan = load_text(text).plan
    except PlanInvalid as invalid:
        positions = [(problem.line or 0, problem.column or 0) for problem in invalid.problems]
        assert positions and positions == sorted(positions) and min(positions) >= (1, 1)
        assert all(problem.sentence for problem in invalid.problems)
    else:
        assert plan_body(load_text(plan_body(plan)).plan) == plan_body(plan)


fields = st.sampled_from([*STEP_FIELDS, *PLAN_FIELDS, "noop", "shell", "command", "in", "as", "maxAttempts", "planId"])
data = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-1, 5)
    | st.sampled_from(["a", "b", "{{ steps.a.result }}", "{{", "1s", "graph"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(fields, inner, max_size=4),
    max_leaves=20,
)


@given(
    st.fixed_dictionaries(
        {"plan": st.just("p")}, optional={"steps": data, "params": data, "order": data, "metadata": data}
    )
)
def test_any_data_gives_a_plan_or_problems(document: dict[str, Any]) -> None:
    try:
        load_text(json.dumps(document))
    except PlanInvalid as invalid:
        assert all(problem.line is not None for problem in invalid.problems)


@pytest.mark.parametrize("text", ["plan: p\nplan: q", "- " * 1000, "plan: p\nsteps: [{id: a, nop: }]", "plan: *a"])
def test_without_libyaml_the_same_problems_are_found(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with_libyaml = [problem.rsplit(" INVALID", 1)[0] for problem in problems_of(text)]
    monkeypatch.setattr("yaml.__with_libyaml__", False)
    assert [problem.rsplit(" INVALID", 1)[0] for problem in problems_of(text)] == with_libyaml
