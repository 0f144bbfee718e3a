"""How expressions reach into data. A dot is a look-up in a mapping, never an attribute of a Python object.

So `.items` and `.result` of a step's data are what the data says, and there is no way from a value to its
class. What else can follow a dot is a call of one of the methods listed here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from difflib import get_close_matches
from itertools import islice
from typing import Any, Final

from .bounds import Budget, Fault
from .kinds import Beside, is_list, is_mapping, is_whole, kind_of
from .operators import pay_to_search

Method = Callable[..., Any]


class Missing:
    """What is not there, where an expression asks whether it is."""


MISSING: Final = Missing()


def find(value: Any, key: Any) -> Any:
    """An item of a mapping or a list, a character of a text, or MISSING."""
    if isinstance(value, Beside) and isinstance(key, str) and key in value.beside:
        return value.beside[key]
    if is_mapping(value):
        try:
            return value[key]
        except (KeyError, TypeError):
            return MISSING
    if (is_list(value) or isinstance(value, str)) and is_whole(key) and -len(value) <= key < len(value):
        return value[key]
    return MISSING


def find_path(value: Any, path: str | int) -> Any:
    """What `map(attribute="a.b")` and its like look up."""
    if len(str(path)) > 1000:
        raise Fault("the name of a field is too long")
    for name in str(path).split("."):
        value = find(value, int(name) if name.isdecimal() and is_list(value) else name)
        if value is MISSING:
            return MISSING
    return value


def required(value: Any, path: str | int) -> Any:
    found = find_path(value, path)
    if found is MISSING:
        raise absent("an item", value, path)
    return found


def absent(owner: str, value: Any, key: Any) -> Fault:
    """The sentence for a look-up that failed. Names of fields are shown, values never."""
    if is_list(value) and is_whole(key):
        return Fault(f"{owner} has no item {key}; it has {len(value)}")
    if not isinstance(key, str):
        return Fault(f"{owner} has no such item")
    key = key[:80]
    if not is_mapping(value):
        return Fault(f"{owner} is {kind_of(value)} and has no {key!r}")
    return Fault(
        f"{owner} has no {key!r}{nearest(key, [name for name in islice(value, 1000) if isinstance(name, str)])}"
    )


def nearest(name: str, names: list[str] | tuple[str, ...]) -> str:
    """`; did you mean 'x'?`, or nothing where nothing is near."""
    close = get_close_matches(name[:100], names, n=1)
    return f"; did you mean {close[0]!r}?" if close else ""


def call(budget: Budget, owner: str, value: Any, name: str, arguments: list[Any], named: dict[str, Any]) -> Any:
    """`value.name(...)`, where the value's kind has that method and its data has no such field."""
    if is_mapping(value) and find(value, name) is not MISSING:
        raise Fault(f"{owner}.{name} is data and cannot be called")
    methods = _methods_of(value)
    method = methods.get(name)
    if method is None:
        raise Fault(f"{kind_of(value)} has no method {name!r}{nearest(name, list(methods))}")
    try:
        return method(budget, value, *arguments, **named)
    except (TypeError, ValueError, AttributeError) as error:
        raise Fault(f"the method {name!r} cannot take these arguments") from error


def _methods_of(value: Any) -> Mapping[str, Method]:
    if isinstance(value, str):
        return _TEXT
    if is_mapping(value):
        return _MAPPING
    return _LIST if is_list(value) else {}


def _text(name: str) -> Method:
    """A method whose result is hardly longer than the text itself."""
    python = getattr(str, name)

    def text(budget: Budget, value: str, *arguments: Any) -> str:
        return budget.text(python(value, *arguments))

    return text


def _pieces(name: str) -> Method:
    python = getattr(str, name)

    def pieces(budget: Budget, value: str, *arguments: Any) -> list[str]:
        return budget.list(python(budget.text(value), *arguments))

    return pieces


def _answer(name: str) -> Method:
    python = getattr(str, name)

    def answer(budget: Budget, value: str, *arguments: Any) -> Any:
        pay_to_search(budget, "", value)
        return python(value, *arguments)

    return answer


def _padded(name: str) -> Method:
    python = getattr(str, name)

    def padded(budget: Budget, value: str, width: int, *fill: str) -> str:
        budget.characters(max(width, len(value)))
        return python(value, width, *fill)

    return padded


def replace(budget: Budget, value: str, old: str, new: str, count: int = -1) -> str:
    times = value.count(old) if count < 0 else min(count, value.count(old))
    budget.characters(len(value) + times * max(len(new) - len(old), 0))
    return value.replace(old, new, count)


def join(budget: Budget, glue: str, texts: list[str]) -> str:
    budget.characters(sum(map(len, texts)) + len(glue) * len(texts))
    return glue.join(texts)


def _get(_: Budget, value: Mapping[Any, Any], key: Any, default: Any = None) -> Any:
    found = find(value, key)
    return default if found is MISSING else found


def _listed(read: Callable[[Mapping[Any, Any]], list[Any]]) -> Method:
    def listed(budget: Budget, value: Mapping[Any, Any]) -> list[Any]:
        budget.items(len(value))
        return read(value)

    return listed


def _search(name: str) -> Method:
    python = getattr(list, name)

    def search(budget: Budget, value: Any, item: Any) -> int:
        pay_to_search(budget, item, value)
        return python(list(value), item)

    return search


_TEXT: dict[str, Method] = {
    **{name: _text(name) for name in ("upper", "lower", "title", "capitalize", "swapcase", "casefold")},
    **{name: _text(name) for name in ("strip", "lstrip", "rstrip", "removeprefix", "removesuffix")},
    **{name: _pieces(name) for name in ("split", "rsplit", "splitlines")},
    **{name: _answer(name) for name in ("startswith", "endswith", "find", "rfind", "index", "count")},
    **{name: _answer(name) for name in ("isdigit", "isdecimal", "isalpha", "isalnum", "isupper", "islower", "isspace")},
    **{name: _padded(name) for name in ("center", "ljust", "rjust", "zfill")},
    "replace": replace,
    "join": join,
}
_MAPPING: dict[str, Method] = {
    "get": _get,
    "keys": _listed(list),
    "values": _listed(lambda value: list(value.values())),
    "items": _listed(lambda value: [list(pair) for pair in value.items()]),
}
_LIST: dict[str, Method] = {
    "index": _search("index"),
    "count": _search("count"),
}
