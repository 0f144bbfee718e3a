"""What an expression may cost. A plan comes from anywhere; none of its expressions may eat the machine.

Everything that can make a value grow asks here first, before it grows: the check is on the size that would
come out, never on the one that did.
"""

from __future__ import annotations

import math
from typing import Any

import msgspec

from .kinds import is_list, is_mapping, is_number, kind_of

LONGEST_EXPRESSION = 8192  # characters between the braces
LONGEST_TEXT = 2**20  # characters of any text that an expression makes
MOST_EXPRESSIONS = 1000  # in one text
DEEPEST = 100  # levels of an expression's tree
LONGEST_RANGE = 100_000
WIDEST_NUMBER = 4096  # bits of a whole number that an expression makes

List = list[Any]
_SMALL = frozenset({int, float, bool})
_WORK = 4 * 2**20  # what one evaluation may spend: one for a character
_ITEM = 4  # and this for an item of a list


class Fault(Exception):
    """Why an expression cannot be evaluated: a clause that follows its text. It never quotes a value."""


class Budget:
    """What is left to spend of one evaluation."""

    __slots__ = ("left",)

    def __init__(self) -> None:
        self.left = _WORK

    def spend(self, work: int) -> None:
        self.left -= work
        if self.left < 0:
            raise Fault("it makes or visits too much data; leave that to a step")

    def items(self, count: int) -> None:
        self.spend(_ITEM * count)

    def characters(self, count: int) -> None:
        if count > LONGEST_TEXT:
            raise Fault(f"it would make a text of more than {LONGEST_TEXT:,} characters")
        self.spend(count)

    def text(self, text: str) -> str:
        """Pay for a text that is known to be little longer than what it was made of."""
        self.characters(len(text))
        return text

    def list(self, items: List) -> List:
        self.items(len(items))
        return items


def weight(value: Any) -> int:
    """How much a value holds, written out in full; refuses as soon as that is more than one evaluation may spend.

    A list can hold the same list a thousand times over: it is small in memory and large everywhere else.
    """
    total = len(value) if isinstance(value, str) else 0
    rest = [value]
    while rest:
        value = rest.pop()
        if is_mapping(value):
            total += 2 * _ITEM * len(value)
            parts = [*value.keys(), *value.values()] if total <= _WORK else ()
        elif is_list(value):
            total += _ITEM * len(value)
            parts = value if total <= _WORK else ()
        else:
            continue
        for part in parts:
            if type(part) is str:
                total += len(part)
            elif part is not None and type(part) not in _SMALL:
                rest.append(part)
        if total > _WORK:
            raise Fault("it makes or visits too much data; leave that to a step")
    return total


def number(value: Any) -> int | float:
    """A number that came out of a calculation, if it is one that JSON knows and people could want."""
    if isinstance(value, int):
        if value.bit_length() > WIDEST_NUMBER:
            raise Fault(f"it would make a number of more than {WIDEST_NUMBER} bits")
        return value
    if isinstance(value, float) and math.isfinite(value):
        return value
    raise Fault("the result is not a finite number")


def json_text(budget: Budget, value: Any) -> str:
    """A value as JSON. It is weighed first: encoding would write out shared parts in full."""
    budget.spend(weight(value))
    try:
        return budget.text(msgspec.json.encode(value, enc_hook=_encodable).decode())
    except (TypeError, UnicodeError, msgspec.MsgspecError) as error:
        raise Fault(f"{kind_of(value)} holds what cannot be written as JSON") from error


def plain_text(budget: Budget, value: Any) -> str:
    """A value as it stands inside other text: text as it is, numbers as Python writes them, the rest as JSON."""
    if isinstance(value, str):
        return budget.text(value)
    if is_number(value):
        return budget.text(str(number(value)))
    return json_text(budget, value)


def _encodable(value: Any) -> Any:
    if is_mapping(value):
        return dict(value)
    raise TypeError
