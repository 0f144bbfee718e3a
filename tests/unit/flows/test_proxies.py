"""Values that are still to come: whatever is done with them, the expression says the same as Python would."""

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


def meant(value: Any, **scope: Any) -> Any:
    """What a run would make of a value that was written down."""
    document = to_template(value)
    if isinstance(document, str):
        check(document)
    return evaluate_all(document, scope)


@given(plain)
def test_what_is_known_means_itself(value: Any) -> None:
    assert meant(value) == value


@given(plain, plain)
def test_a_part_of_a_value_is_that_part(inner: Any, other: Any) -> None:
    for key in ("plain", "with space", "class", 'quo"te', "ünï"):
        assert meant(SymbolicValue("x")[key], x={key: inner, "other": other}) == inner
    assert meant(SymbolicValue("x")[1], x=[other, inner]) == inner
    assert meant(SymbolicValue("x").rows[0].name, x={"rows": [{"name": inner}]}) == inner


OPERATORS: list[Callable[[Any, Any], Any]] = [
    operator.add, operator.sub, operator.mul, operator.eq, operator.ne, operator.lt, operator.le, operator.gt,
    operator.ge,
]  # fmt: skip
numbers = st.integers(-1000, 1000)


@given(numbers, numbers, numbers, st.sampled_from(OPERATORS[:3]), st.sampled_from(OPERATORS))
def test_sums_and_comparisons_are_pythons(
    a: int, b: int, c: int, first: Callable[[Any, Any], Any], second: Callable[[Any, Any], Any]
) -> None:
    x, y = SymbolicValue("x"), SymbolicValue("y")
    assert meant(second(first(x, y), c), x=a, y=b) == second(first(a, b), c)
    assert meant(second(x, first(y, c)), x=a, y=b) == second(a, first(b, c))
    if first is not operator.sub or second not in OPERATORS[3:]:
        assert meant(first(c, x), x=a) == first(c, a)


@given(st.booleans(), st.booleans(), st.booleans())
def test_conditions_are_joined_with_signs(a: bool, b: bool, c: bool) -> None:
    x, y, z = SymbolicValue("x"), SymbolicValue("y"), SymbolicValue("z")
    assert meant((x & y) | ~z, x=a, y=b, z=c) == ((a and b) or not c)
    assert meant(~(x | y) & z, x=a, y=b, z=c) == (not (a or b) and c)


@given(texts, texts, texts)
def test_values_in_texts_stay_values(before: str, after: str, value: str) -> None:
    x = SymbolicValue("params.x")
    scope = {"params": {"x": value}}
    assert meant(f"{before}{x}{after}", **scope) == (value if not before + after else before + value + after)
    assert meant(before + x + "!", **scope) == f"{before}{value}!"
    assert meant({"a": [f"<{x}>"]}, **scope) == {"a": [f"<{value}>"]}
    assert meant(SymbolicValue("y")[f"{before}{x}"], y={before + value: 7}, **scope) == 7


@pytest.mark.parametrize("text", ["{{ x }}", "{% if x %}", "{# x #}", "{{{{", "a {{ b", "}}", "{{{"])
def test_braces_that_are_meant_literally_are_kept(text: str) -> None:
    assert meant(text) == text
    assert meant(f"{text}{SymbolicValue('x')}", x=1) == f"{text}1"


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


@pytest.mark.parametrize("what", NEEDS)
def test_what_needs_the_value_itself_cannot_go_on_and_says_how_to(what: str) -> None:
    with pytest.raises(rw.RunwrightError) as caught:
        NEEDS[what]()
    assert caught.value.code == "PLAN_NEEDS_VALUE"
    assert ".map(" in caught.value.detail
    assert "rw.when(" in caught.value.detail
    assert "steps.extract.result" in caught.value.detail


def test_a_value_that_json_cannot_hold_is_refused() -> None:
    with pytest.raises(rw.RunwrightError) as caught:
        to_template({"a": object()})
    assert caught.value.code == "RESULT_NOT_STORABLE"
