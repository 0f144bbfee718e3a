"""The tests of expressions: what may follow `is`, and the arguments of `select`, `reject` and their variants.

The names of a test's parameters are its keyword arguments in expressions: they are part of the language.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .budget import Budget, ExpressionFailure
from .lookup import MISSING, suggestion
from .operators import COMPARISONS
from .value_types import is_integer, is_list, is_mapping, is_number

Test = Callable[..., bool]


def find_test(name: Any) -> Test:
    function = TESTS.get(name) if isinstance(name, str) else None
    if function is None:
        raise ExpressionFailure(f"unknown test {str(name)[:80]!r}{suggestion(str(name), list(TESTS))}")
    return function


def apply_test(
    budget: Budget, name: str, function: Test, value: Any, arguments: list[Any], keywords: dict[str, Any]
) -> bool:
    budget.charge_call()
    try:
        return function(budget, value, *arguments, **keywords)
    except (TypeError, ValueError, ArithmeticError) as error:
        raise ExpressionFailure(f"test {name!r} does not accept this value or these arguments") from error


def _simple_test(predicate: Callable[[Any], bool]) -> Test:
    def test(_: Budget, value: Any) -> bool:
        return predicate(value)

    return test


def _same(budget: Budget, value: Any, other: Any) -> bool:
    return value is other or (type(value) is type(other) and COMPARISONS["eq"](budget, value, other))


def _divisible(_: Budget, value: Any, by: Any = 2) -> bool:
    """Accept numbers only: `%` of a text would format it."""
    if not (is_number(value) and is_number(by)):
        raise TypeError
    return value % by == 0


def _odd(budget: Budget, value: Any) -> bool:
    return not _divisible(budget, value)


def _case_test(change_case: Callable[[str], str]) -> Test:
    def test(budget: Budget, value: Any) -> bool:
        return isinstance(value, str) and value == change_case(budget.charged_text(value))

    return test


TESTS: dict[str, Test] = {
    "defined": _simple_test(lambda value: value is not MISSING),
    "undefined": _simple_test(lambda value: value is MISSING),
    "none": _simple_test(lambda value: value is None),
    "boolean": _simple_test(lambda value: isinstance(value, bool)),
    "true": _simple_test(lambda value: value is True),
    "false": _simple_test(lambda value: value is False),
    "number": _simple_test(is_number),
    "integer": _simple_test(is_integer),
    "float": _simple_test(lambda value: isinstance(value, float)),
    "string": _simple_test(lambda value: isinstance(value, str)),
    "mapping": _simple_test(is_mapping),
    "sequence": _simple_test(lambda value: is_list(value) or isinstance(value, str)),
    "iterable": _simple_test(lambda value: is_list(value) or is_mapping(value) or isinstance(value, str)),
    "odd": _odd,
    "even": _divisible,
    "divisibleby": _divisible,
    "lower": _case_test(str.lower),
    "upper": _case_test(str.upper),
    "sameas": _same,
    "in": COMPARISONS["in"],
    **dict.fromkeys(("eq", "equalto", "=="), COMPARISONS["eq"]),
    **dict.fromkeys(("ne", "!="), COMPARISONS["ne"]),
    **dict.fromkeys(("lt", "lessthan", "<"), COMPARISONS["lt"]),
    **dict.fromkeys(("le", "<="), COMPARISONS["lteq"]),
    **dict.fromkeys(("gt", "greaterthan", ">"), COMPARISONS["gt"]),
    **dict.fromkeys(("ge", ">="), COMPARISONS["gteq"]),
}
MISSING_ALLOWED_TESTS = frozenset({"defined", "undefined"})
"""Tests that accept a missing value."""
