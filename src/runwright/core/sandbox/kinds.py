"""The kinds of value that expressions know: those of JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeGuard


def is_number(value: Any) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def is_whole(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def is_list(value: Any) -> TypeGuard[list[Any] | tuple[Any, ...]]:
    return isinstance(value, list | tuple)


def is_mapping(value: Any) -> TypeGuard[Mapping[Any, Any]]:
    return isinstance(value, dict | Mapping)  # a dict is known at once, the rest takes a look at its bases


def is_container(value: Any) -> bool:
    return is_list(value) or is_mapping(value)


class Beside:
    """What can be looked up in a value, and is none of it."""

    beside: dict[str, Any]


class _Mapping(dict[Any, Any], Beside):
    pass


class _List(list[Any], Beside):
    pass


def beside(value: Any, known: dict[str, Any]) -> Any:
    """A mapping or a list in which this can be looked up too. Whoever counts it, goes over it or writes it out finds
    nothing but the value."""
    if not isinstance(value, dict | list):
        return value
    with_more = _Mapping(value) if isinstance(value, dict) else _List(value)  # pyright: ignore[reportUnknownArgumentType]
    with_more.beside = known
    return with_more


def kind_of(value: Any) -> str:
    """What a value is, in a word, for sentences that must not show it."""
    if isinstance(value, bool):
        return "true or false"
    if isinstance(value, int | float):
        return "a number"
    if isinstance(value, str):
        return "text"
    if is_list(value):
        return "a list"
    if is_mapping(value):
        return "a mapping"
    return "null" if value is None else f"a {type(value).__name__}"
