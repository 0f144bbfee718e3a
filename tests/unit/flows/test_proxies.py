"""Symbolic values: operations on them give expressions that evaluate as the same operations in Python."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import runwright as rw
from runwright.core.expressions.template import check, evaluate_all
from runwright.flows.proxies import SymbolicValue, to_template

ROWS = SymbolicValue("steps.extract.result")

texts = st.text(
    st.characters(exclude_characters="\0", exclude_categories=["Cs"]) | st.sampled_from("{}%#\"'"), max_size=12
)
plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**9), 10**9) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)


def evaluated(value: Any, **scope: Any) -> Any:
    """Evaluate a traced value as a run would."""
    document = to_template(value)
    if isinstance(document, str):
        check(document)
    return evaluate_all(document, scope)


@given(plain)
def test_plain_values_evaluate_to_themselves(value: Any) -> None:
    assert evaluated(value) == value


@given(plain, plain)
def test_parts_of_a_value_are_found_by_key_and_index(inner: Any, other: Any) -> None:
    for key in ("plain", "with space", "class", 'quo"te', "ünï"):
        assert evaluated(SymbolicValue("x")[key], x={key: inner, "other": other}) == inner
    assert evaluated(SymbolicValue("x")[1], x=[other, inner]) == inner
    assert evaluated(SymbolicValue("x").rows[0].name, x={"rows": [{"name": inner}]}) == inner


OPERATORS: list[Callable[[Any, Any], Any]] = [
    operator.add, operator.sub, operator.mul, operator.eq, operator.ne, operator.lt, operator.le, operator.gt,
    operator.ge,
]  # fmt: skip
numbers = st.integers(-1000, 1000)


@given(numbers, numbers, numbers, st.sampled_from(OPERATORS[:3]), st.sampled_from(OPERATORS))
def test_arithmetic_and_comparisons_match_python(
    a: int, b: int, c: int, first: Callable[[Any, Any], Any], second: Callable[[Any, Any], Any]
) -> None:
    x, y = SymbolicValue("x"), SymbolicValue("y")
    assert evaluated(second(first(x, y), c), x=a, y=b) == second(first(a, b), c)
    assert evaluated(second(x, first(y, c)), x=a, y=b) == second(a, first(b, c))
    if first is not operator.sub or second not in OPERATORS[3:]:
        assert evaluated(first(c, x), x=a) == first(c, a)


@given(st.booleans(), st.booleans(), st.booleans())
def test_conditions_are_combined_with_operators(a: bool, b: bool, c: bool) -> None:
    x, y, z = SymbolicValue("x"), SymbolicValue("y"), SymbolicValue("z")
    assert evaluated((x & y) | ~z, x=a, y=b, z=c) == ((a and b) or not c)
    assert evaluated(~(x | y) & z, x=a, y=b, z=c) == (not (a or b) and c)


@given(texts, texts, texts)
def test_values_in_formatted_text_are_evaluated(before: str, after: str, value: str) -> None:
    x = SymbolicValue("params.x")
    scope = {"params": {"x": value}}
    assert evaluated(f"{before}{x}{after}", **scope) == (value if not before + after else before + value + after)
    assert evaluated(before + x + "!", **scope) == f"{before}{value}!"
    assert evaluated({"a": [f"<{x}>"]}, **scope) == {"a": [f"<{value}>"]}
    assert evaluated(SymbolicValue("y")[f"{before}{x}"], y={before + value: 7}, **scope) == 7


@pytest.mark.parametrize("text", ["{{ x }}", "{% if x %}", "{# x #}", "{{{{", "a {{ b", "}}", "{{{"])
def test_literal_braces_are_preserved(text: str) -> None:
    assert evaluated(text) == text
    assert evaluated(f"{text}{SymbolicValue('x')}", x=1) == f"{text}1"


NEEDS: dict[str, Callable[[], object]] = {
    "if": lambda: 1 if ROWS else 2,
    "not": lambda: not ROWS,
    "and": lambda: ROWS and 1,
    "for": lambda: list(ROWS),
    "unpacking": lambda: (lambda *each: each)(*ROWS),
    "len": lambda: len(ROWS),
    "in": lambda: 1 in ROWS,
    "format": lambda: f"{ROWS:>10}",
    "int": lambda: int(ROWS),
    "float": lambda: float(ROWS),
    "range": lambda: range(ROWS),
    "slice": lambda: ROWS[1:],
    "method": lambda: ROWS.items(),
    "chained comparison": lambda: 0 < ROWS < 5,
}


@pytest.mark.parametrize("operation", NEEDS)
def test_operations_that_need_the_value_are_refused_with_advice(operation: str) -> None:
    with pytest.raises(rw.RunwrightError) as caught:
        NEEDS[operation]()
    assert caught.value.code == "PLAN_NEEDS_VALUE"
    assert ".map(" in caught.value.detail
    assert "rw.when(" in caught.value.detail
    assert "steps.extract.result" in caught.value.detail


def test_a_value_that_json_cannot_represent_is_refused() -> None:
    with pytest.raises(rw.RunwrightError) as caught:
        to_template({"a": object()})
    assert caught.value.code == "RESULT_NOT_STORABLE"
