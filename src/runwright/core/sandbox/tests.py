"""The tests of expressions: what may follow `is`, and what `select` and its like are given."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .access import MISSING, nearest
from .bounds import Budget, Fault
from .kinds import is_list, is_mapping, is_number, is_whole
from .operators import COMPARISONS

Test = Callable[..., bool]


def find_test(name: Any) -> Test:
    function = TESTS.get(name) if isinstance(name, str) else None
    if function is None:
        raise Fault(f"there is no test {str(name)[:80]!r}{nearest(str(name), list(TESTS))}")
    return function


def test(budget: Budget, name: str, function: Test, value: Any, arguments: list[Any], named: dict[str, Any]) -> bool:
    try:
        return function(budget, value, *arguments, **named)
    except (TypeError, ValueError, ArithmeticError) as error:
        raise Fault(f"the test {name!r} cannot take this value or these arguments") from error


def _plain(ask: Callable[[Any], bool]) -> Test:
    def plain(_: Budget, value: Any) -> bool:
        return ask(value)

    return plain


def _same(budget: Budget, value: Any, other: Any) -> bool:
    return value is other or (type(value) is type(other) and COMPARISONS["eq"](budget, value, other))


def _divisible(_: Budget, value: Any, by: Any = 2) -> bool:
    """Only of numbers: `%` would fill in a text."""
    if not (is_number(value) and is_number(by)):
        raise TypeError
    return value % by == 0


def _odd(budget: Budget, value: Any) -> bool:
    return not _divisible(budget, value)


def _cased(change: Callable[[str], str]) -> Test:
    def cased(budget: Budget, value: Any) -> bool:
        return isinstance(value, str) and value == change(budget.text(value))

    return cased


TESTS: dict[str, Test] = {
    "defined": _plain(lambda value: value is not MISSING),
    "undefined": _plain(lambda value: value is MISSING),
    "none": _plain(lambda value: value is None),
    "boolean": _plain(lambda value: isinstance(value, bool)),
    "true": _plain(lambda value: value is True),
    "false": _plain(lambda value: value is False),
    "number": _plain(is_number),
    "integer": _plain(is_whole),
    "float": _plain(lambda value: isinstance(value, float)),
    "string": _plain(lambda value: isinstance(value, str)),
    "mapping": _plain(is_mapping),
    "sequence": _plain(lambda value: is_list(value) or isinstance(value, str)),
    "iterable": _plain(lambda value: is_list(value) or is_mapping(value) or isinstance(value, str)),
    "odd": _odd,
    "even": _divisible,
    "divisibleby": _divisible,
    "lower": _cased(str.lower),
    "upper": _cased(str.upper),
    "sameas": _same,
    "in": COMPARISONS["in"],
    **dict.fromkeys(("eq", "equalto", "=="), COMPARISONS["eq"]),
    **dict.fromkeys(("ne", "!="), COMPARISONS["ne"]),
    **dict.fromkeys(("lt", "lessthan", "<"), COMPARISONS["lt"]),
    **dict.fromkeys(("le", "<="), COMPARISONS["lteq"]),
    **dict.fromkeys(("gt", "greaterthan", ">"), COMPARISONS["gt"]),
    **dict.fromkeys(("ge", ">="), COMPARISONS["gteq"]),
}
ASK_WHETHER_THERE = frozenset({"defined", "undefined"})
"""Tests whose value may be missing."""
