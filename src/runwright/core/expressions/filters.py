"""The filters of expressions: what may follow `|`. Names and defaults are those of Jinja where Jinja has the filter.

Each filter charges the budget for the data that it creates and reads. The names of its parameters are its keyword
arguments in expressions: they are part of the language.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable
from typing import Any
from urllib.parse import quote, urlencode

import msgspec

from . import list_filters as lists
from .budget import Budget, ExpressionFailure, checked_number, to_json, to_text
from .lookup import MISSING, DataPath, call_method, join, suggestion
from .operators import format_text
from .value_types import is_integer, is_mapping, is_number, type_name

Filter = Callable[..., Any]


def find_filter(name: Any) -> Filter:
    function = FILTERS.get(name) if isinstance(name, str) else None
    if function is None:
        raise ExpressionFailure(f"unknown filter {str(name)[:80]!r}{suggestion(str(name), list(FILTERS))}")
    return function


def apply_filter(
    budget: Budget, name: str, function: Filter, value: Any, arguments: list[Any], keywords: dict[str, Any]
) -> Any:
    budget.charge_call()
    if name in _SLOW_FILTERS:
        budget.charge_call()
    try:
        return function(budget, value, *arguments, **keywords)
    except (TypeError, ValueError, AttributeError, LookupError, ArithmeticError) as error:
        raise ExpressionFailure(f"filter {name!r} does not accept {type_name(value)} or these arguments") from error


def _default(_: Budget, value: Any, default: Any = "", boolean: bool = False) -> Any:
    return default if value is MISSING or (boolean and not value) else value


def _length(_: Budget, value: Any) -> int:
    return len(value)


def _bool(_: Budget, value: Any) -> bool:
    return bool(value)


def _text_filter(name: str) -> Filter:
    """Create a filter from a method of text. Other values are converted to text first."""

    def apply(budget: Budget, value: Any, *arguments: Any) -> Any:
        return call_method(budget, "the text", to_text(budget, value), name, list(arguments), {})

    return apply


def _join(budget: Budget, value: Any, glue: str = "", attribute: lists.Attribute = None) -> str:
    parts = lists.items_of(budget, value)
    if attribute is not None:
        path = DataPath(budget, attribute)
        parts = [path.require(part) for part in parts]
    return join(budget, glue, [to_text(budget, part) for part in parts])


def _map(budget: Budget, value: Any, name: str | None = None, *arguments: Any, **named: Any) -> list[Any]:
    if name is None:
        return lists.map_attribute(budget, value, **named)
    function = find_filter(name)
    return [
        apply_filter(budget, name, function, item, list(arguments), named) for item in lists.items_of(budget, value)
    ]


def _absolute(_: Budget, value: Any) -> Any:
    if not is_number(value):
        raise ExpressionFailure(f"{type_name(value)} is not a number")
    return abs(value)


def _round(_: Budget, value: Any, precision: int = 0, method: str = "common") -> float:
    if not is_number(value) or not is_integer(precision) or abs(precision) > 300:
        raise ValueError
    if method == "common":
        return float(checked_number(float(round(value, precision))))
    if method not in ("ceil", "floor"):
        raise ValueError
    scaled = value * 10**precision
    whole = scaled // 1 if method == "floor" else -(-scaled // 1)
    return float(checked_number(float(whole / 10**precision)))


def _int(budget: Budget, value: Any, default: Any = MISSING, base: int = 10) -> Any:
    try:
        return checked_number(int(budget.charged_text(value).strip(), base) if isinstance(value, str) else int(value))
    except (TypeError, ValueError, OverflowError):
        if default is MISSING:
            raise ExpressionFailure(f"{type_name(value)} is not a whole number") from None
        return default


def _float(budget: Budget, value: Any, default: Any = MISSING) -> Any:
    try:
        return checked_number(float(budget.charged_text(value) if isinstance(value, str) else value))
    except (TypeError, ValueError, OverflowError):
        if default is MISSING:
            raise ExpressionFailure(f"{type_name(value)} is not a number") from None
        return default


def _from_json(budget: Budget, value: Any) -> Any:
    if not isinstance(value, str):
        raise ExpressionFailure(f"fromjson requires text, not {type_name(value)}")
    budget.charge_characters(len(value))
    try:
        return msgspec.json.decode(value)
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise ExpressionFailure("the text is not JSON") from error


def _ident(budget: Budget, value: Any) -> str:
    """Quote an SQL identifier. Only text is accepted: a list must not silently become one identifier."""
    if not isinstance(value, str) or not value or "\0" in value:
        raise ExpressionFailure("ident requires non-empty text without NUL characters")
    return budget.charged_text('"' + value.replace('"', '""') + '"')


def _shell_quote(budget: Budget, value: Any) -> str:
    """Quote also harmless text: without quotes it could complete the name of a variable or become an assignment."""
    text = to_text(budget, value).replace("'", "'\"'\"'")
    return budget.charged_text(f"'{text}'")


def _format(budget: Budget, value: Any, *arguments: Any, **named: Any) -> str:
    if not isinstance(value, str) or (arguments and named):
        raise ValueError
    return format_text(budget, value, named or arguments)


def _truncate(budget: Budget, value: Any, length: int = 255, end: str = "...") -> str:
    if not isinstance(value, str) or length < 0:
        raise ValueError
    return budget.charged_text(value if len(value) <= length else value[: max(length - len(end), 0)] + end)


def _indent(budget: Budget, value: Any, width: int = 4, first: bool = False) -> str:
    if not isinstance(value, str) or not 0 <= width <= 1000:
        raise ValueError
    budget.charge_characters(len(value) + (value.count("\n") + 1) * width)
    blank = " " * width
    lines = value.split("\n")
    return "\n".join(blank + line if line and (number or first) else line for number, line in enumerate(lines))


def _urlencode(budget: Budget, value: Any) -> str:
    if is_mapping(value):
        return budget.charged_text(urlencode([(str(key), to_text(budget, item)) for key, item in value.items()]))
    return budget.charged_text(quote(to_text(budget, value), safe=""))


def _basename(budget: Budget, value: Any) -> str:
    return posixpath.basename(budget.charged_text(value))


def _dirname(budget: Budget, value: Any) -> str:
    return posixpath.dirname(budget.charged_text(value))


FILTERS: dict[str, Filter] = {
    "default": _default,
    "d": _default,
    "length": _length,
    "count": _length,
    **{name: _text_filter(name) for name in ("upper", "lower", "title", "capitalize", "center", "ljust", "rjust")},
    **{name: _text_filter(name) for name in ("split", "splitlines", "replace")},
    "trim": _text_filter("strip"),
    "format": _format,
    "truncate": _truncate,
    "indent": _indent,
    "urlencode": _urlencode,
    "quote": _shell_quote,
    "ident": _ident,
    "basename": _basename,
    "dirname": _dirname,
    "string": to_text,
    "bool": _bool,
    "int": _int,
    "float": _float,
    "abs": _absolute,
    "round": _round,
    "join": _join,
    "first": lists.first,
    "last": lists.last,
    "sort": lists.sort,
    "unique": lists.unique,
    "sum": lists.sum_items,
    "min": lists.minimum,
    "max": lists.maximum,
    "list": lists.items_of,
    "reverse": lists.reverse,
    "batch": lists.batch,
    "map": _map,
    "select": lists.selection_filter(selects=True, by_attribute=False),
    "reject": lists.selection_filter(selects=False, by_attribute=False),
    "selectattr": lists.selection_filter(selects=True, by_attribute=True),
    "rejectattr": lists.selection_filter(selects=False, by_attribute=True),
    "items": lists.pairs,
    "keys": lists.keys,
    "values": lists.values,
    "dictsort": lists.sorted_pairs,
    "tojson": to_json,
    "fromjson": _from_json,
}
_SLOW_FILTERS = frozenset({"dictsort", "float", "format", "int", "items", "replace", "tojson", "urlencode"})
"""Filters whose call takes several times as long as that of others, and is charged twice."""

MISSING_ALLOWED_FILTERS = frozenset({"default", "d"})
"""Filters that accept a missing value."""
