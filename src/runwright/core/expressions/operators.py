"""The operators of expressions, on JSON data only, with their cost.

Python's operators would call special methods of the values, at unlimited cost.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from .budget import MAX_NUMBER_BITS, MAX_RANGE_LENGTH, Budget, ExpressionFailure, checked_number, content_size, to_text
from .value_types import is_container, is_integer, is_list, is_number, type_name

Operator = Callable[[Budget, Any, Any], Any]


def add(budget: Budget, left: Any, right: Any) -> Any:
    if is_number(left) and is_number(right):
        return checked_number(left + right)
    if isinstance(left, str) and isinstance(right, str):
        budget.charge_characters(len(left) + len(right))
        return left + right
    if is_list(left) and is_list(right):
        budget.charge_items(len(left) + len(right))
        return [*left, *right]
    hint = " (use ~ to concatenate text with any value)" if isinstance(left, str) or isinstance(right, str) else ""
    raise ExpressionFailure(f"{type_name(left)} and {type_name(right)} cannot be added{hint}")


def subtract(_: Budget, left: Any, right: Any) -> Any:
    left, right = _require_numbers("-", left, right)
    return checked_number(left - right)


def multiply(budget: Budget, left: Any, right: Any) -> Any:
    if is_number(left) and is_number(right):
        if is_integer(left) and is_integer(right) and left.bit_length() + right.bit_length() > MAX_NUMBER_BITS + 1:
            raise ExpressionFailure(f"the resulting number would exceed {MAX_NUMBER_BITS} bits")
        return checked_number(left * right)
    if is_integer(left) and (isinstance(right, str) or is_list(right)):
        left, right = right, left
    if is_integer(right) and isinstance(left, str):
        budget.charge_characters(len(left) * max(right, 0))
        return left * right
    if is_integer(right) and is_list(left):
        budget.charge((content_size(left) + 1) * max(right, 0))  # the items are shared in memory, but each copy counts
        return list(left) * right
    raise ExpressionFailure(f"{type_name(left)} and {type_name(right)} cannot be multiplied")


def power(_: Budget, left: Any, right: Any) -> Any:
    left, right = _require_numbers("**", left, right)
    if is_integer(left) and is_integer(right) and abs(left) > 1 and (left.bit_length() - 1) * right > MAX_NUMBER_BITS:
        raise ExpressionFailure(f"the resulting number would exceed {MAX_NUMBER_BITS} bits")
    return _calculate(lambda: left**right)


def divide(_: Budget, left: Any, right: Any) -> Any:
    left, right = _require_numbers("/", left, right)
    return _calculate(lambda: left / right)


def floor_divide(_: Budget, left: Any, right: Any) -> Any:
    left, right = _require_numbers("//", left, right)
    return _calculate(lambda: left // right)


def modulo(budget: Budget, left: Any, right: Any) -> Any:
    if isinstance(left, str):
        return format_text(budget, left, tuple(right) if is_list(right) else (right,))
    left, right = _require_numbers("%", left, right)
    return _calculate(lambda: left % right)


def negate(_: Budget, value: Any) -> Any:
    if not is_number(value):
        raise ExpressionFailure(f"{type_name(value)} cannot be negated")
    return -value


def positive(_: Budget, value: Any) -> Any:
    if not is_number(value):
        raise ExpressionFailure(f"{type_name(value)} is not a number")
    return value


_DIRECTIVE = re.compile(
    r"%(?:\((?P<name>[^()]*)\))?[-+ 0#]*(?P<width>\d*)(?:\.(?P<precision>\d*))?(?P<type>.?)", re.DOTALL
)
_MAX_FIELD_WIDTH = 1000


def format_text(budget: Budget, pattern: str, values: tuple[Any, ...] | dict[str, Any]) -> str:
    """Evaluate `"%05d" % 3`. The maximal length of the result is charged before Python creates it."""
    budget.charge_characters(len(pattern))
    operands = values.values() if isinstance(values, dict) else values
    scalars = [value if is_number(value) else to_text(budget, value) for value in operands]
    longest = max((len(value) if isinstance(value, str) else MAX_NUMBER_BITS for value in scalars), default=0)
    length = len(pattern)
    for directive in _DIRECTIVE.finditer(pattern):
        if directive["type"] not in tuple("diouxXeEfFgGcs%"):
            raise ExpressionFailure("unsupported format directive after %; write %% for a percent sign")
        widths = [int(width[:5]) for width in (directive["width"], directive["precision"] or "") if width]
        if max(widths, default=0) > _MAX_FIELD_WIDTH:
            raise ExpressionFailure(f"a format field must be at most {_MAX_FIELD_WIDTH} characters wide")
        length += longest + sum(widths) + 8
        budget.charge_characters(length)
    arguments = dict(zip(values, scalars, strict=True)) if isinstance(values, dict) else tuple(scalars)
    try:
        text = pattern % arguments
        text.encode()  # `%c` of a number can create half a character
        return text
    except UnicodeEncodeError:
        raise ExpressionFailure("the resulting text contains an unpaired surrogate") from None
    except (TypeError, ValueError, KeyError, OverflowError) as error:
        raise ExpressionFailure("the values do not match the format directives") from error


def make_range(budget: Budget, bounds: list[Any]) -> list[int]:
    """Evaluate `range(...)` to a list."""
    if not 1 <= len(bounds) <= 3 or not all(is_integer(bound) for bound in bounds) or bounds[2:] == [0]:
        raise ExpressionFailure("range() requires one to three whole numbers and a step other than 0")
    numbers = range(*bounds)
    if numbers and abs(numbers[-1] - numbers[0]) // abs(numbers.step) >= MAX_RANGE_LENGTH:
        raise ExpressionFailure(f"range() is limited to {MAX_RANGE_LENGTH:,} numbers")
    return budget.charged_list(list(numbers))


def _require_numbers(operator: str, left: Any, right: Any) -> tuple[int | float, int | float]:
    if is_number(left) and is_number(right):
        return left, right
    raise ExpressionFailure(f"{operator} requires two numbers, not {type_name(left)} and {type_name(right)}")


def _calculate(calculation: Callable[[], Any]) -> int | float:
    try:
        return checked_number(calculation())
    except ZeroDivisionError as error:
        raise ExpressionFailure("division by zero") from error
    except OverflowError as error:
        raise ExpressionFailure("the result is not a finite number") from error


def charge_comparison(budget: Budget, left: Any, right: Any, times: int = 1) -> None:
    """Charge comparisons, which are cheap unless both sides are long: then each costs as much as there is to read."""
    if isinstance(left, str) and isinstance(right, str):
        budget.charge(times * (min(len(left), len(right)) >> 4))
    elif is_container(left) and is_container(right):
        budget.charge(times * content_size(left))


def charge_search(budget: Budget, item: Any, container: Any) -> None:
    """Charge a search, which compares the item with each one in a list."""
    if isinstance(container, str):
        budget.charge(len(container) >> 4)
    elif is_list(container):
        budget.charge_items(len(container))
        charge_comparison(budget, item, item, times=len(container))


def _equal(budget: Budget, left: Any, right: Any) -> bool:
    charge_comparison(budget, left, right)
    return left == right


def _ordering(compare: Callable[[Any, Any], bool]) -> Operator:
    def apply(budget: Budget, left: Any, right: Any) -> bool:
        charge_comparison(budget, left, right)
        try:
            return compare(left, right)
        except TypeError as error:
            raise ExpressionFailure(f"{type_name(left)} and {type_name(right)} cannot be ordered") from error

    return apply


def contains(budget: Budget, item: Any, whole: Any) -> bool:
    if isinstance(whole, str) and not isinstance(item, str):
        raise ExpressionFailure(f"{type_name(item)} cannot be searched for in text")
    charge_search(budget, item, whole)
    try:
        return item in whole
    except TypeError as error:
        raise ExpressionFailure(f"{type_name(item)} cannot be searched for in {type_name(whole)}") from error


COMPARISONS: dict[str, Operator] = {
    "eq": _equal,
    "ne": lambda budget, left, right: not _equal(budget, left, right),
    "lt": _ordering(lambda left, right: left < right),
    "lteq": _ordering(lambda left, right: left <= right),
    "gt": _ordering(lambda left, right: left > right),
    "gteq": _ordering(lambda left, right: left >= right),
    "in": contains,
    "notin": lambda budget, item, whole: not contains(budget, item, whole),
}
