"""Cost limits of an expression. Plans are not trusted: no expression may exhaust memory or CPU.

Every operation that can make a value grow charges the budget before it runs: the check is on the predicted size of the
result, never on a result that already exists.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import msgspec

from .value_types import is_list, is_mapping, type_name

MAX_EXPRESSION_LENGTH = 8192  # characters between the braces
MAX_TEXT_LENGTH = 2**20  # characters of any text that an expression creates
MAX_EXPRESSIONS = 1000  # in one text
MAX_DEPTH = 100  # levels of an expression's tree
MAX_RANGE_LENGTH = 100_000
MAX_NUMBER_BITS = 4096  # bits of a whole number that an expression creates

_NUMBER_TYPES = frozenset({int, float})
_SCALAR_TYPES = frozenset({int, float, bool})
_MAX_COST = 4 * 2**20  # units of all expressions of one scope; a character costs 1
_CALL_COST = 10  # units that an expression costs at least, and each call of a filter, test or lookup within it
_ITEM_COST = 4  # units that an item of a list costs


_TOO_EXPENSIVE = "it creates or reads too much data for an expression; use a step instead"


class ExpressionFailure(Exception):
    """The reason why an expression cannot be parsed or evaluated.

    The message is a clause that follows the text of the expression. It never quotes a value, which may be secret.
    """


class Budget:
    """The remaining cost units of the expressions of one scope. Every method raises ExpressionFailure when they are
    used up."""

    __slots__ = ("remaining",)

    def __init__(self) -> None:
        self.remaining = _MAX_COST

    @property
    def spent(self) -> int:
        return min(_MAX_COST - self.remaining, _MAX_COST)

    def charge_call(self) -> None:
        self.charge(_CALL_COST)

    def charge(self, cost: int) -> None:
        self.remaining -= cost
        if self.remaining < 0:
            raise ExpressionFailure(_TOO_EXPENSIVE)

    def charge_items(self, count: int) -> None:
        self.charge(_ITEM_COST * count)

    def charge_characters(self, count: int) -> None:
        if count > MAX_TEXT_LENGTH:
            raise ExpressionFailure(f"the resulting text would exceed {MAX_TEXT_LENGTH:,} characters")
        self.charge(count)

    def charged_text(self, text: str) -> str:
        """Charge a text that exists already; only for texts that are hardly longer than their source."""
        self.charge_characters(len(text))
        return text

    def charged_list(self, items: list[Any]) -> list[Any]:
        self.charge_items(len(items))
        return items


class CostMeter:
    """The cost units that one decision has used. A decision that has used as many as a scope may use ends early, and
    the next one continues: no plan can occupy a process for long."""

    def __init__(self) -> None:
        self._spent = 0
        self._current: Budget | None = None

    @property
    def is_spent(self) -> bool:
        spent = self._spent if self._current is None else self._spent + self._current.spent
        return spent >= _MAX_COST

    def reset(self) -> None:
        self._spent = 0
        self._current = None

    def add(self, cost: int) -> None:
        self._spent += cost

    def new_budget(self) -> Budget:
        """The budget of one scope. Budgets are used one after another."""
        if self._current is not None:
            self._spent += self._current.spent
        self._current = Budget()
        return self._current


class ExpressionScope(dict[str, Any]):
    """The names that expressions can use. All expressions that are evaluated in one scope share its budget."""

    __slots__ = ("budget",)

    def __init__(self, names: Mapping[str, Any], budget: Budget | None = None) -> None:
        super().__init__(names)
        self.budget = Budget() if budget is None else budget


def budget_of(scope: Mapping[str, Any]) -> Budget:
    return scope.budget if isinstance(scope, ExpressionScope) else Budget()


def content_size(value: Any) -> int:
    """Return the cost of writing a value out in full; raise as soon as it exceeds the limit of a scope.

    A list can contain the same list a thousand times: small in memory, but large once it is encoded.
    """
    total = len(value) if isinstance(value, str) else 0
    pending = [value]
    while pending:
        value = pending.pop()
        if is_mapping(value):
            total += 2 * _ITEM_COST * len(value)
            parts = [*value.keys(), *value.values()] if total <= _MAX_COST else ()
        elif is_list(value):
            total += _ITEM_COST * len(value)
            parts = value if total <= _MAX_COST else ()
        else:
            continue
        for part in parts:
            if type(part) is str:
                total += len(part)
            elif part is not None and type(part) not in _SCALAR_TYPES:
                pending.append(part)
        if total > _MAX_COST:
            raise ExpressionFailure(_TOO_EXPENSIVE)
    return total


def checked_number(value: Any) -> int | float:
    """Return the result of a calculation if it is finite and within the limit of bits; otherwise raise."""
    if isinstance(value, int):
        if value.bit_length() > MAX_NUMBER_BITS:
            raise ExpressionFailure(f"the resulting number would exceed {MAX_NUMBER_BITS} bits")
        return value
    if isinstance(value, float) and math.isfinite(value):
        return value
    raise ExpressionFailure("the result is not a finite number")


def to_json(budget: Budget, value: Any) -> str:
    """Encode a value as JSON. Its size is charged first, because encoding writes out shared parts in full."""
    budget.charge(content_size(value))
    try:
        return budget.charged_text(msgspec.json.encode(value, enc_hook=_encodable).decode())
    except (TypeError, UnicodeError, msgspec.MsgspecError) as error:
        raise ExpressionFailure(f"{type_name(value)} is not JSON-serializable") from error


def to_text(budget: Budget, value: Any) -> str:
    """Render a value inside of other text: text unchanged, numbers as in Python, everything else as JSON."""
    if isinstance(value, str):
        return budget.charged_text(value)
    if type(value) in _NUMBER_TYPES:
        return budget.charged_text(str(checked_number(value)))
    return to_json(budget, value)


def _encodable(value: Any) -> Any:
    if is_mapping(value):
        return dict(value)
    raise TypeError
