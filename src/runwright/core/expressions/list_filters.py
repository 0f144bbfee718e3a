"""Filters over lists and mappings. They return lists, never lazy iterators."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from .budget import Budget, ExpressionFailure, to_json
from .lookup import MISSING, DataPath
from .operators import add
from .predicates import apply_test, find_test
from .value_types import is_container, is_integer, is_list, is_mapping, type_name

Attribute = str | int | None


def items_of(budget: Budget, value: Any) -> list[Any]:
    """Return the items of a list, the keys of a mapping or the characters of a text, as a list."""
    if not (is_list(value) or is_mapping(value) or isinstance(value, str)):
        raise ExpressionFailure(f"{type_name(value)} has no items")
    budget.charge_items(len(value))
    return list(value)


def first(budget: Budget, value: Any) -> Any:
    return _item_at_end(budget, value, 0)


def last(budget: Budget, value: Any) -> Any:
    return _item_at_end(budget, value, -1)


def _item_at_end(budget: Budget, value: Any, index: int) -> Any:
    items = value if is_list(value) or isinstance(value, str) else items_of(budget, value)
    if not items:
        raise ExpressionFailure(f"{type_name(value)} is empty and has no first or last item")
    return items[index]


def _sort_key(budget: Budget, attribute: Attribute, case_sensitive: bool) -> Callable[[Any], Any]:
    """Create the sort key. Only texts and numbers are allowed, because comparing long lists is expensive."""
    path = None if attribute is None else DataPath(budget, attribute)

    def key(item: Any) -> Any:
        value = item if path is None else path.require(item)
        if is_container(value):
            raise ExpressionFailure(f"{type_name(value)} cannot be sorted; name a field with attribute=")
        budget.charge_call()
        return budget.charged_text(value if case_sensitive else value.lower()) if isinstance(value, str) else value

    return key


def sort(
    budget: Budget, value: Any, reverse: bool = False, case_sensitive: bool = False, attribute: Attribute = None
) -> list[Any]:
    return sorted(items_of(budget, value), key=_sort_key(budget, attribute, case_sensitive), reverse=reverse)


def unique(budget: Budget, value: Any, case_sensitive: bool = False, attribute: Attribute = None) -> list[Any]:
    seen: dict[Any, Any] = {}
    path = None if attribute is None else DataPath(budget, attribute)
    for item in items_of(budget, value):
        key = item if path is None else path.require(item)
        budget.charge_call()
        if isinstance(key, str):
            key = budget.charged_text(key if case_sensitive else key.lower())
        elif is_container(key):
            key = (to_json(budget, key),)
        seen.setdefault(key, item)
    return list(seen.values())


def minimum(budget: Budget, value: Any, case_sensitive: bool = False, attribute: Attribute = None) -> Any:
    return first(budget, sort(budget, value, False, case_sensitive, attribute))


def maximum(budget: Budget, value: Any, case_sensitive: bool = False, attribute: Attribute = None) -> Any:
    return last(budget, sort(budget, value, False, case_sensitive, attribute))


def sum_items(budget: Budget, value: Any, attribute: Attribute = None, start: Any = 0) -> Any:
    path = None if attribute is None else DataPath(budget, attribute)
    for item in items_of(budget, value):
        budget.charge_call()
        start = add(budget, start, item if path is None else path.require(item))
    return start


def reverse(budget: Budget, value: Any) -> Any:
    return budget.charged_text(value[::-1]) if isinstance(value, str) else items_of(budget, value)[::-1]


def batch(budget: Budget, value: Any, size: int, fill: Any = MISSING) -> list[list[Any]]:
    items = items_of(budget, value)
    if not is_integer(size) or size < 1:
        raise ValueError
    batches = [items[start : start + size] for start in range(0, len(items), size)]
    if fill is not MISSING and batches:
        short = size - len(batches[-1])
        budget.charge_items(short)
        batches[-1] += [fill] * short
    return batches


def map_attribute(budget: Budget, value: Any, attribute: str | int, default: Any = MISSING) -> list[Any]:
    items, path = items_of(budget, value), DataPath(budget, attribute)
    if default is MISSING:
        return [path.require(item) for item in items]
    return [default if (found := path.find(item)) is MISSING else found for item in items]


def selection_filter(*, selects: bool, by_attribute: bool) -> Callable[..., list[Any]]:
    """Create `select`, `reject`, `selectattr` or `rejectattr`, which differ only in these two respects."""

    def select(budget: Budget, value: Any, *arguments: Any) -> list[Any]:
        rest = list(arguments)
        path = DataPath(budget, rest.pop(0)) if by_attribute else None
        name = rest.pop(0) if rest else None
        function = None if name is None else find_test(name)
        selected: list[Any] = []
        for item in items_of(budget, value):
            subject = item if path is None else path.find(item)
            if path is not None and subject is MISSING and name not in ("defined", "undefined"):
                subject = path.require(item)
            result = bool(subject) if function is None else apply_test(budget, str(name), function, subject, rest, {})
            if result is selects:
                selected.append(item)
        return selected

    return select


def pairs(budget: Budget, value: Any) -> list[Any]:
    return budget.charged_list(_as_lists(value.items()))


def sorted_pairs(
    budget: Budget, value: Any, case_sensitive: bool = False, by: str = "key", reverse: bool = False
) -> list[Any]:
    index = ("key", "value").index(by)
    return budget.charged_list(
        _as_lists(sorted(value.items(), key=_sort_key(budget, index, case_sensitive), reverse=reverse))
    )


def keys(budget: Budget, value: Any) -> list[Any]:
    return budget.charged_list(list(value.keys()))


def values(budget: Budget, value: Any) -> list[Any]:
    return budget.charged_list(list(value.values()))


def _as_lists(pairs: Iterable[tuple[Any, Any]]) -> list[Any]:
    return [list(pair) for pair in pairs]
