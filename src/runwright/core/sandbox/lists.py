"""Filters that go through lists. They give lists, never something still to be run."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from .access import MISSING, find_path, required
from .bounds import Budget, Fault, json_text
from .kinds import is_container, is_list, is_mapping, is_whole, kind_of
from .operators import add
from .tests import find_test, test

Attribute = str | int | None


def items_of(budget: Budget, value: Any) -> list[Any]:
    """What can be gone through, as a list: a list, the keys of a mapping, the characters of a text."""
    if not (is_list(value) or is_mapping(value) or isinstance(value, str)):
        raise Fault(f"{kind_of(value)} has no items")
    budget.items(len(value))
    return list(value)


def first(budget: Budget, value: Any) -> Any:
    return _end(budget, value, 0)


def last(budget: Budget, value: Any) -> Any:
    return _end(budget, value, -1)


def _end(budget: Budget, value: Any, place: int) -> Any:
    items = value if is_list(value) or isinstance(value, str) else items_of(budget, value)
    if not items:
        raise Fault(f"{kind_of(value)} is empty and has no first or last item")
    return items[place]


def _key(budget: Budget, attribute: Attribute, case_sensitive: bool) -> Callable[[Any], Any]:
    """What items are put in order by. Texts and numbers only: comparing long lists is never cheap."""

    def key(item: Any) -> Any:
        value = item if attribute is None else required(item, attribute)
        if is_container(value):
            raise Fault(f"{kind_of(value)} has no place in an order; name a field with attribute=")
        return budget.text(value if case_sensitive else value.lower()) if isinstance(value, str) else value

    return key


def sort(
    budget: Budget, value: Any, reverse: bool = False, case_sensitive: bool = False, attribute: Attribute = None
) -> list[Any]:
    return sorted(items_of(budget, value), key=_key(budget, attribute, case_sensitive), reverse=reverse)


def unique(budget: Budget, value: Any, case_sensitive: bool = False, attribute: Attribute = None) -> list[Any]:
    seen: dict[Any, Any] = {}
    for item in items_of(budget, value):
        mark = item if attribute is None else required(item, attribute)
        if isinstance(mark, str):
            mark = budget.text(mark if case_sensitive else mark.lower())
        elif is_container(mark):
            mark = (json_text(budget, mark),)
        seen.setdefault(mark, item)
    return list(seen.values())


def least(budget: Budget, value: Any, case_sensitive: bool = False, attribute: Attribute = None) -> Any:
    return first(budget, sort(budget, value, False, case_sensitive, attribute))


def greatest(budget: Budget, value: Any, case_sensitive: bool = False, attribute: Attribute = None) -> Any:
    return last(budget, sort(budget, value, False, case_sensitive, attribute))


def total(budget: Budget, value: Any, attribute: Attribute = None, start: Any = 0) -> Any:
    for item in items_of(budget, value):
        start = add(budget, start, item if attribute is None else required(item, attribute))
    return start


def reverse(budget: Budget, value: Any) -> Any:
    return budget.text(value[::-1]) if isinstance(value, str) else items_of(budget, value)[::-1]


def batch(budget: Budget, value: Any, size: int, fill: Any = MISSING) -> list[list[Any]]:
    items = items_of(budget, value)
    if not is_whole(size) or size < 1:
        raise ValueError
    batches = [items[start : start + size] for start in range(0, len(items), size)]
    if fill is not MISSING and batches:
        short = size - len(batches[-1])
        budget.items(short)
        batches[-1] += [fill] * short
    return batches


def field_of_each(budget: Budget, value: Any, attribute: str | int, default: Any = MISSING) -> list[Any]:
    items = items_of(budget, value)
    if default is MISSING:
        return [required(item, attribute) for item in items]
    return [default if (found := find_path(item, attribute)) is MISSING else found for item in items]


def chosen(wanted: bool, by_attribute: bool) -> Callable[..., list[Any]]:
    """`select`, `reject`, `selectattr` and `rejectattr` are the same but for these two."""

    def choose(budget: Budget, value: Any, *arguments: Any) -> list[Any]:
        rest = list(arguments)
        attribute: Attribute = rest.pop(0) if by_attribute else None
        name = rest.pop(0) if rest else None
        function = None if name is None else find_test(name)
        kept: list[Any] = []
        for item in items_of(budget, value):
            subject = item if attribute is None else find_path(item, attribute)
            if attribute is not None and subject is MISSING and name not in ("defined", "undefined"):
                subject = required(item, attribute)
            result = bool(subject) if function is None else test(budget, str(name), function, subject, rest, {})
            if result is wanted:
                kept.append(item)
        return kept

    return choose


def pairs(budget: Budget, value: Any) -> list[Any]:
    return budget.list(as_lists(value.items()))


def sorted_pairs(
    budget: Budget, value: Any, case_sensitive: bool = False, by: str = "key", reverse: bool = False
) -> list[Any]:
    place = ("key", "value").index(by)
    return budget.list(as_lists(sorted(value.items(), key=_key(budget, place, case_sensitive), reverse=reverse)))


def keys(budget: Budget, value: Any) -> list[Any]:
    return budget.list(list(value.keys()))


def values(budget: Budget, value: Any) -> list[Any]:
    return budget.list(list(value.values()))


def as_lists(found: Iterable[tuple[Any, Any]]) -> list[Any]:
    return [list(pair) for pair in found]
