"""The operators of expressions, on data only. Python's own would call whatever a value defines, at any cost."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from .bounds import LONGEST_RANGE, WIDEST_NUMBER, Budget, Fault, number, plain_text, weight
from .kinds import is_container, is_list, is_number, is_whole, kind_of

Operator = Callable[[Budget, Any, Any], Any]


def add(budget: Budget, left: Any, right: Any) -> Any:
    if is_number(left) and is_number(right):
        return number(left + right)
    if isinstance(left, str) and isinstance(right, str):
        budget.characters(len(left) + len(right))
        return left + right
    if is_list(left) and is_list(right):
        budget.items(len(left) + len(right))
        return [*left, *right]
    hint = " (to put texts together with anything, write ~)" if isinstance(left, str) or isinstance(right, str) else ""
    raise Fault(f"{kind_of(left)} and {kind_of(right)} cannot be added{hint}")


def subtract(_: Budget, left: Any, right: Any) -> Any:
    left, right = _numbers("-", left, right)
    return number(left - right)


def multiply(budget: Budget, left: Any, right: Any) -> Any:
    if is_number(left) and is_number(right):
        if is_whole(left) and is_whole(right) and left.bit_length() + right.bit_length() > WIDEST_NUMBER + 1:
            raise Fault(f"it would make a number of more than {WIDEST_NUMBER} bits")
        return number(left * right)
    if is_whole(left) and (isinstance(right, str) or is_list(right)):
        left, right = right, left
    if is_whole(right) and isinstance(left, str):
        budget.characters(len(left) * max(right, 0))
        return left * right
    if is_whole(right) and is_list(left):
        budget.spend((weight(left) + 1) * max(right, 0))  # its parts are shared, yet count each time
        return list(left) * right
    raise Fault(f"{kind_of(left)} and {kind_of(right)} cannot be multiplied")


def power(_: Budget, left: Any, right: Any) -> Any:
    left, right = _numbers("**", left, right)
    if is_whole(left) and is_whole(right) and abs(left) > 1 and (left.bit_length() - 1) * right > WIDEST_NUMBER:
        raise Fault(f"it would make a number of more than {WIDEST_NUMBER} bits")
    return _calculated(lambda: left**right)


def divide(_: Budget, left: Any, right: Any) -> Any:
    left, right = _numbers("/", left, right)
    return _calculated(lambda: left / right)


def divide_whole(_: Budget, left: Any, right: Any) -> Any:
    left, right = _numbers("//", left, right)
    return _calculated(lambda: left // right)


def remainder(budget: Budget, left: Any, right: Any) -> Any:
    if isinstance(left, str):
        return set_into(budget, left, tuple(right) if is_list(right) else (right,))
    left, right = _numbers("%", left, right)
    return _calculated(lambda: left % right)


def negative(_: Budget, value: Any) -> Any:
    if not is_number(value):
        raise Fault(f"{kind_of(value)} cannot be negated")
    return -value


def positive(_: Budget, value: Any) -> Any:
    if not is_number(value):
        raise Fault(f"{kind_of(value)} is no number")
    return value


_DIRECTIVE = re.compile(
    r"%(?:\((?P<name>[^()]*)\))?[-+ 0#]*(?P<width>\d*)(?:\.(?P<precision>\d*))?(?P<type>.?)", re.DOTALL
)
_WIDEST_FIELD = 1000


def set_into(budget: Budget, pattern: str, values: tuple[Any, ...] | dict[str, Any]) -> str:
    """`"%05d" % 3`. The longest text that could come out is reckoned before Python makes it."""
    budget.characters(len(pattern))
    given = values.values() if isinstance(values, dict) else values
    scalars = [value if is_number(value) else plain_text(budget, value) for value in given]
    longest = max((len(value) if isinstance(value, str) else WIDEST_NUMBER for value in scalars), default=0)
    length = len(pattern)
    for directive in _DIRECTIVE.finditer(pattern):
        if directive["type"] not in tuple("diouxXeEfFgGcs%"):
            raise Fault("a % in a text to be filled in is followed by what it must not be; write %% for a percent sign")
        widths = [int(width[:5]) for width in (directive["width"], directive["precision"] or "") if width]
        if max(widths, default=0) > _WIDEST_FIELD:
            raise Fault(f"a field may be {_WIDEST_FIELD} characters wide at most")
        length += longest + sum(widths) + 8
        budget.characters(length)
    filled = dict(zip(values, scalars, strict=True)) if isinstance(values, dict) else tuple(scalars)
    try:
        return pattern % filled
    except (TypeError, ValueError, KeyError, OverflowError) as error:
        raise Fault("the values do not fit the text they are to be filled into") from error


def numbers_between(budget: Budget, ends: list[Any]) -> list[int]:
    """`range(...)`, as a list."""
    if not 1 <= len(ends) <= 3 or not all(is_whole(end) for end in ends) or ends[2:] == [0]:
        raise Fault("range() takes one to three whole numbers, and its step is not 0")
    steps = range(*ends)
    if steps and abs(steps[-1] - steps[0]) // abs(steps.step) >= LONGEST_RANGE:
        raise Fault(f"range() gives {LONGEST_RANGE:,} numbers at most")
    return budget.list(list(steps))


def _numbers(sign: str, left: Any, right: Any) -> tuple[int | float, int | float]:
    if is_number(left) and is_number(right):
        return left, right
    raise Fault(f"{sign} needs two numbers, not {kind_of(left)} and {kind_of(right)}")


def _calculated(calculation: Callable[[], Any]) -> int | float:
    try:
        return number(calculation())
    except ZeroDivisionError as error:
        raise Fault("it divides by zero") from error
    except OverflowError as error:
        raise Fault("the result is not a finite number") from error


def pay_to_compare(budget: Budget, left: Any, right: Any, times: int = 1) -> None:
    """Comparing is cheap, unless both sides are long: then each time costs what there is to go through."""
    if isinstance(left, str) and isinstance(right, str):
        budget.spend(times * (min(len(left), len(right)) >> 4))
    elif is_container(left) and is_container(right):
        budget.spend(times * weight(left))


def pay_to_search(budget: Budget, item: Any, whole: Any) -> None:
    """Looking for an item compares it with each that is there."""
    if isinstance(whole, str):
        budget.spend(len(whole) >> 4)
    elif is_list(whole):
        budget.items(len(whole))
        pay_to_compare(budget, item, item, times=len(whole))


def _equal(budget: Budget, left: Any, right: Any) -> bool:
    pay_to_compare(budget, left, right)
    return left == right


def _ordered(compare: Callable[[Any, Any], bool]) -> Operator:
    def ordered(budget: Budget, left: Any, right: Any) -> bool:
        pay_to_compare(budget, left, right)
        try:
            return compare(left, right)
        except TypeError as error:
            raise Fault(f"{kind_of(left)} and {kind_of(right)} have no order") from error

    return ordered


def is_in(budget: Budget, item: Any, whole: Any) -> bool:
    if isinstance(whole, str) and not isinstance(item, str):
        raise Fault(f"{kind_of(item)} cannot be looked for in text")
    pay_to_search(budget, item, whole)
    try:
        return item in whole
    except TypeError as error:
        raise Fault(f"{kind_of(item)} cannot be looked for in {kind_of(whole)}") from error


COMPARISONS: dict[str, Operator] = {
    "eq": _equal,
    "ne": lambda budget, left, right: not _equal(budget, left, right),
    "lt": _ordered(lambda left, right: left < right),
    "lteq": _ordered(lambda left, right: left <= right),
    "gt": _ordered(lambda left, right: left > right),
    "gteq": _ordered(lambda left, right: left >= right),
    "in": is_in,
    "notin": lambda budget, item, whole: not is_in(budget, item, whole),
}
