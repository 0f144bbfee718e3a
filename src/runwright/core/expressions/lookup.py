"""Lookups in data and calls of methods. A dot is a lookup in a mapping, never an attribute of a Python object.

So `.items` and `.result` of a step's data are fields of the data, and no expression can get from a value to its class.
The only other use of a dot is a call of one of the methods listed here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from difflib import get_close_matches
from itertools import islice
from typing import Any, Final

from .budget import Budget, ExpressionFailure
from .operators import charge_search
from .value_types import ExtraFields, is_integer, is_list, is_mapping, type_name

Method = Callable[..., Any]
_MAX_PATH_LENGTH = 1000  # characters of a dotted path


class _Missing:
    """Type of MISSING."""


MISSING: Final = _Missing()
"""The result of a lookup that found nothing, for `default` and `is defined`."""


def find_item(value: Any, key: Any) -> Any:
    """Return an item of a mapping or a list, or a character of a text; MISSING if there is none."""
    if isinstance(value, ExtraFields) and isinstance(key, str) and key in value.extra_fields:
        return value.extra_fields[key]
    if is_mapping(value):
        try:
            return value[key]
        except (KeyError, TypeError):
            return MISSING
    if (is_list(value) or isinstance(value, str)) and is_integer(key) and -len(value) <= key < len(value):
        return value[key]
    return MISSING


class DataPath:
    """A dotted path into data, as in `map(attribute="a.b")`. Each lookup is charged for the parts of the path."""

    def __init__(self, budget: Budget, path: str | int) -> None:
        text = str(path)
        if len(text) > _MAX_PATH_LENGTH:
            raise ExpressionFailure(f"an attribute must have at most {_MAX_PATH_LENGTH} characters")
        self._budget = budget
        self._path = path
        self._names = text.split(".")

    def find(self, value: Any) -> Any:
        """Look up the path in a value; MISSING if any part is missing."""
        self._budget.charge_call()
        self._budget.charge_items(len(self._names))
        for name in self._names:
            value = find_item(value, int(name) if name.isdecimal() and is_list(value) else name)
            if value is MISSING:
                return MISSING
        return value

    def require(self, value: Any) -> Any:
        """Look up the path in a value; raise if any part is missing."""
        found = self.find(value)
        if found is MISSING:
            raise item_not_found("an item", value, self._path)
        return found


def item_not_found(owner: str, value: Any, key: Any) -> ExpressionFailure:
    """Create the error of a failed lookup. It shows names of fields, never values."""
    if is_list(value) and is_integer(key):
        return ExpressionFailure(f"{owner} has no item {key}; its length is {len(value)}")
    if not isinstance(key, str):
        return ExpressionFailure(f"{owner} has no such item")
    key = key[:80]
    if not is_mapping(value):
        return ExpressionFailure(f"{owner} is {type_name(value)} and has no {key!r}")
    return ExpressionFailure(
        f"{owner} has no {key!r}{suggestion(key, [name for name in islice(value, 1000) if isinstance(name, str)])}"
    )


def suggestion(name: str, names: list[str] | tuple[str, ...]) -> str:
    """Return `; did you mean 'x'?` for the most similar name; empty if none is similar."""
    close = get_close_matches(name[:100], names, n=1)
    return f"; did you mean {close[0]!r}?" if close else ""


def call_method(
    budget: Budget, owner: str, value: Any, name: str, arguments: list[Any], keywords: dict[str, Any]
) -> Any:
    """Evaluate `value.name(...)`. Fields of a mapping take precedence over methods and cannot be called."""
    if is_mapping(value) and find_item(value, name) is not MISSING:
        raise ExpressionFailure(f"{owner}.{name} is a field and cannot be called")
    methods = _methods_of(value)
    method = methods.get(name)
    if method is None:
        raise ExpressionFailure(f"{type_name(value)} has no method {name!r}{suggestion(name, list(methods))}")
    try:
        return method(budget, value, *arguments, **keywords)
    except (TypeError, ValueError, AttributeError) as error:
        raise ExpressionFailure(f"method {name!r} does not accept these arguments") from error


def _methods_of(value: Any) -> Mapping[str, Method]:
    if isinstance(value, str):
        return _TEXT_METHODS
    if is_mapping(value):
        return _MAPPING_METHODS
    return _LIST_METHODS if is_list(value) else {}


def _text_method(name: str) -> Method:
    """Wrap a method whose result is hardly longer than the text itself."""
    method = getattr(str, name)

    def call(budget: Budget, value: str, *arguments: Any) -> str:
        return budget.charged_text(method(value, *arguments))

    return call


def _split_method(name: str) -> Method:
    method = getattr(str, name)

    def call(budget: Budget, value: str, *arguments: Any) -> list[str]:
        return budget.charged_list(method(budget.charged_text(value), *arguments))

    return call


def _scan_method(name: str) -> Method:
    """Wrap a method that reads the text and returns a number or a boolean."""
    method = getattr(str, name)

    def call(budget: Budget, value: str, *arguments: Any) -> Any:
        charge_search(budget, "", value)
        return method(value, *arguments)

    return call


def _pad_method(name: str) -> Method:
    method = getattr(str, name)

    def call(budget: Budget, value: str, width: int, *fill: str) -> str:
        budget.charge_characters(max(width, len(value)))
        return method(value, width, *fill)

    return call


def replace(budget: Budget, value: str, old: str, new: str, count: int = -1) -> str:
    replacements = value.count(old) if count < 0 else min(count, value.count(old))
    budget.charge_characters(len(value) + replacements * max(len(new) - len(old), 0))
    return value.replace(old, new, count)


def join(budget: Budget, separator: str, texts: list[str]) -> str:
    budget.charge_characters(sum(map(len, texts)) + len(separator) * len(texts))
    return separator.join(texts)


def _get(_: Budget, value: Mapping[Any, Any], key: Any, default: Any = None) -> Any:
    found = find_item(value, key)
    return default if found is MISSING else found


def _listing_method(read: Callable[[Mapping[Any, Any]], list[Any]]) -> Method:
    def call(budget: Budget, value: Mapping[Any, Any]) -> list[Any]:
        budget.charge_items(len(value))
        return read(value)

    return call


def _list_search_method(name: str) -> Method:
    method = getattr(list, name)

    def call(budget: Budget, value: Any, item: Any) -> int:
        charge_search(budget, item, value)
        return method(list(value), item)

    return call


_TEXT_METHODS: dict[str, Method] = {
    **{name: _text_method(name) for name in ("upper", "lower", "title", "capitalize", "swapcase", "casefold")},
    **{name: _text_method(name) for name in ("strip", "lstrip", "rstrip", "removeprefix", "removesuffix")},
    **{name: _split_method(name) for name in ("split", "rsplit", "splitlines")},
    **{name: _scan_method(name) for name in ("startswith", "endswith", "find", "rfind", "index", "count")},
    **{
        name: _scan_method(name)
        for name in ("isdigit", "isdecimal", "isalpha", "isalnum", "isupper", "islower", "isspace")
    },
    **{name: _pad_method(name) for name in ("center", "ljust", "rjust", "zfill")},
    "replace": replace,
    "join": join,
}
_MAPPING_METHODS: dict[str, Method] = {
    "get": _get,
    "keys": _listing_method(list),
    "values": _listing_method(lambda value: list(value.values())),
    "items": _listing_method(lambda value: [list(pair) for pair in value.items()]),
}
_LIST_METHODS: dict[str, Method] = {
    "index": _list_search_method("index"),
    "count": _list_search_method("count"),
}
