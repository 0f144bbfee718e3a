"""The filters of expressions: what may follow `|`. Their names and defaults are Jinja's, where Jinja has them.

Each pays for what it makes, and for what it reads in making it.
"""

from __future__ import annotations

import posixpath
import shlex
from collections.abc import Callable
from typing import Any
from urllib.parse import quote, urlencode

import msgspec

from . import access, lists
from .access import MISSING, join, nearest, required
from .bounds import Budget, Fault, json_text, number, plain_text
from .kinds import is_mapping, is_number, is_whole, kind_of
from .operators import set_into

Filter = Callable[..., Any]


def find_filter(name: Any) -> Filter:
    function = FILTERS.get(name) if isinstance(name, str) else None
    if function is None:
        raise Fault(f"there is no filter {str(name)[:80]!r}{nearest(str(name), list(FILTERS))}")
    return function


def apply(budget: Budget, name: str, function: Filter, value: Any, arguments: list[Any], named: dict[str, Any]) -> Any:
    budget.items(1)
    try:
        return function(budget, value, *arguments, **named)
    except (TypeError, ValueError, AttributeError, LookupError, ArithmeticError) as error:
        raise Fault(f"the filter {name!r} cannot take {kind_of(value)} or these arguments") from error


def _default(_: Budget, value: Any, default: Any = "", boolean: bool = False) -> Any:
    return default if value is MISSING or (boolean and not value) else value


def _length(_: Budget, value: Any) -> int:
    return len(value)


def _bool(_: Budget, value: Any) -> bool:
    return bool(value)


def _method(name: str) -> Filter:
    """A method of text as a filter; what is no text is made one first."""

    def text(budget: Budget, value: Any, *arguments: Any) -> Any:
        return access.call(budget, "the text", plain_text(budget, value), name, list(arguments), {})

    return text


def _join(budget: Budget, value: Any, glue: str = "", attribute: lists.Attribute = None) -> str:
    parts = lists.items_of(budget, value)
    if attribute is not None:
        parts = [required(part, attribute) for part in parts]
    return join(budget, glue, [plain_text(budget, part) for part in parts])


def _map(budget: Budget, value: Any, name: str | None = None, *arguments: Any, **named: Any) -> list[Any]:
    if name is None:
        return lists.field_of_each(budget, value, **named)
    function = find_filter(name)
    return [apply(budget, name, function, item, list(arguments), named) for item in lists.items_of(budget, value)]


def _absolute(_: Budget, value: Any) -> Any:
    if not is_number(value):
        raise Fault(f"{kind_of(value)} is no number")
    return abs(value)


def _round(_: Budget, value: Any, precision: int = 0, method: str = "common") -> float:
    if not is_number(value) or not is_whole(precision) or abs(precision) > 300:
        raise ValueError
    if method == "common":
        return float(number(float(round(value, precision))))
    if method not in ("ceil", "floor"):
        raise ValueError
    scaled = value * 10**precision
    whole = scaled // 1 if method == "floor" else -(-scaled // 1)
    return float(number(float(whole / 10**precision)))


def _int(budget: Budget, value: Any, default: Any = MISSING, base: int = 10) -> Any:
    try:
        return number(int(budget.text(value).strip(), base) if isinstance(value, str) else int(value))
    except (TypeError, ValueError, OverflowError):
        if default is MISSING:
            raise Fault(f"{kind_of(value)} is not a whole number") from None
        return default


def _float(budget: Budget, value: Any, default: Any = MISSING) -> Any:
    try:
        return number(float(budget.text(value) if isinstance(value, str) else value))
    except (TypeError, ValueError, OverflowError):
        if default is MISSING:
            raise Fault(f"{kind_of(value)} is not a number") from None
        return default


def _from_json(budget: Budget, value: Any) -> Any:
    if not isinstance(value, str):
        raise Fault(f"{kind_of(value)} is no text and so no JSON")
    budget.characters(len(value))
    try:
        return msgspec.json.decode(value)
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise Fault("the text is not JSON") from error


def _ident(budget: Budget, value: Any) -> str:
    """A name as SQL quotes it. Only text: a list that became one name would be a trap."""
    if not isinstance(value, str) or not value or "\0" in value:
        raise Fault("only text that is not empty can be a name in SQL")
    return budget.text('"' + value.replace('"', '""') + '"')


def _shell_word(budget: Budget, value: Any) -> str:
    return budget.text(shlex.quote(plain_text(budget, value)))


def _format(budget: Budget, value: Any, *arguments: Any, **named: Any) -> str:
    if not isinstance(value, str) or (arguments and named):
        raise ValueError
    return set_into(budget, value, named or arguments)


def _truncate(budget: Budget, value: Any, length: int = 255, end: str = "...") -> str:
    if not isinstance(value, str) or length < 0:
        raise ValueError
    return budget.text(value if len(value) <= length else value[: max(length - len(end), 0)] + end)


def _indent(budget: Budget, value: Any, width: int = 4, first: bool = False) -> str:
    if not isinstance(value, str) or not 0 <= width <= 1000:
        raise ValueError
    budget.characters(len(value) + (value.count("\n") + 1) * width)
    blank = " " * width
    lines = value.split("\n")
    return "\n".join(blank + line if line and (place or first) else line for place, line in enumerate(lines))


def _urlencode(budget: Budget, value: Any) -> str:
    if is_mapping(value):
        return budget.text(urlencode([(str(key), plain_text(budget, item)) for key, item in value.items()]))
    return budget.text(quote(plain_text(budget, value), safe=""))


def _basename(budget: Budget, value: Any) -> str:
    return posixpath.basename(budget.text(value))


def _dirname(budget: Budget, value: Any) -> str:
    return posixpath.dirname(budget.text(value))


FILTERS: dict[str, Filter] = {
    "default": _default,
    "d": _default,
    "length": _length,
    "count": _length,
    **{name: _method(name) for name in ("upper", "lower", "title", "capitalize", "center", "ljust", "rjust")},
    **{name: _method(name) for name in ("split", "splitlines", "replace")},
    "trim": _method("strip"),
    "format": _format,
    "truncate": _truncate,
    "indent": _indent,
    "urlencode": _urlencode,
    "quote": _shell_word,
    "ident": _ident,
    "basename": _basename,
    "dirname": _dirname,
    "string": plain_text,
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
    "sum": lists.total,
    "min": lists.least,
    "max": lists.greatest,
    "list": lists.items_of,
    "reverse": lists.reverse,
    "batch": lists.batch,
    "map": _map,
    "select": lists.chosen(True, False),
    "reject": lists.chosen(False, False),
    "selectattr": lists.chosen(True, True),
    "rejectattr": lists.chosen(False, True),
    "items": lists.pairs,
    "keys": lists.keys,
    "values": lists.values,
    "dictsort": lists.sorted_pairs,
    "tojson": json_text,
    "fromjson": _from_json,
}
MAY_BE_MISSING = frozenset({"default", "d"})
"""Filters whose value may be missing."""
