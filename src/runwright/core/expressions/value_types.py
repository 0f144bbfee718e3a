"""JSON value types: predicates, names for messages, and values with extra fields."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeGuard


def is_number(value: Any) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def is_integer(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def is_list(value: Any) -> TypeGuard[list[Any] | tuple[Any, ...]]:
    return isinstance(value, list | tuple)


def is_mapping(value: Any) -> TypeGuard[Mapping[Any, Any]]:
    return isinstance(value, dict | Mapping)  # dict first: the check against the abstract class is slow


def is_container(value: Any) -> bool:
    return is_list(value) or is_mapping(value)


class ExtraFields:
    """Fields that can be looked up in a value but are not part of it."""

    extra_fields: dict[str, Any]


class _MappingWithExtraFields(dict[Any, Any], ExtraFields):
    pass


class _ListWithExtraFields(list[Any], ExtraFields):
    pass


def with_extra_fields(value: Any, extra_fields: dict[str, Any]) -> Any:
    """Return a copy of a mapping or list in which these fields can be looked up too; other values are unchanged.

    Length, iteration and encoding are those of the value alone.
    """
    if not isinstance(value, dict | list):
        return value
    extended = _MappingWithExtraFields(value) if isinstance(value, dict) else _ListWithExtraFields(value)  # pyright: ignore[reportUnknownArgumentType]
    extended.extra_fields = extra_fields
    return extended


def type_name(value: Any) -> str:
    """Return the type of a value for messages, which must not show the value."""
    if isinstance(value, bool):
        return "a boolean"
    if isinstance(value, int | float):
        return "a number"
    if isinstance(value, str):
        return "text"
    if is_list(value):
        return "a list"
    if is_mapping(value):
        return "a mapping"
    return "null" if value is None else f"a {type(value).__name__}"
