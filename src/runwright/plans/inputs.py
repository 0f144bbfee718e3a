"""Whether the inputs of a step fit its tool. What is an expression or a secret now can become anything later."""

from __future__ import annotations

import re
import types
from functools import lru_cache
from typing import Any, Union, cast, get_args, get_origin

import msgspec
from msgspec.structs import FieldInfo

from runwright.core.expressions import any_expression, has_expression

from .kinds import Kind
from .problems import did_you_mean
from .secrets import is_secret_ref

Misfit = tuple[tuple[str | int, ...], str, bool]
"""Where inside the inputs, what is wrong, and whether it is the name that is wrong."""

_EXPECTED = re.compile(r"Expected `([^`]+)`, got `([^`]+)`(?: - at `[^`]*`)?")
_NAMES = {
    "str": "text",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "array": "a list",
    "object": "a mapping",
    "null": "nothing",
}


@lru_cache(maxsize=256)
def _fields(inputs: type[msgspec.Struct]) -> dict[str, FieldInfo]:
    return {field.encode_name: field for field in msgspec.structs.fields(inputs)}


def misfits(kind: str, tool: Kind, inputs: dict[str, Any]) -> list[Misfit]:
    """What keeps these inputs from being those of the tool."""
    return _struct_misfits(f"`{kind}`", tool.inputs, inputs)


def _struct_misfits(owner: str, struct: type[msgspec.Struct], values: dict[str, Any]) -> list[Misfit]:
    fields = _fields(struct)
    found: list[Misfit] = []
    for name, value in values.items():
        if name in fields:
            found += [((name, *path), what, on_key) for path, what, on_key in _misfits(name, fields[name].type, value)]
            continue
        known = ", ".join(f"`{field}`" for field in fields)
        advice = did_you_mean(name, fields) or (f" It has {known}." if known else " It has none.")
        found.append(((name,), f"{owner} has no input {name!r}.{advice}", True))
    missing = [name for name, field in fields.items() if field.required and name not in values]
    if missing:
        found.append(((), f"{owner} needs {', '.join(f'`{name}`' for name in missing)}.", False))
    return found


def _misfits(name: str, kind: Any, value: Any) -> list[Misfit]:
    if is_open(value):
        return []
    if isinstance(value, dict | list) and (any_expression(value) or _any_secret(value)):
        return _misfits_inside(name, kind, cast("dict[str, Any] | list[Any]", value))
    try:
        msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        return [((), f"`{name}` {_sentence(str(error))}", False)]
    return []


def _misfits_inside(name: str, kind: Any, value: dict[str, Any] | list[Any]) -> list[Misfit]:
    """A list or mapping, parts of which are known only later: look at each part by itself."""
    for choice in _choices(kind):
        if choice is Any:
            return []
        origin, arguments = get_origin(choice) or choice, get_args(choice)
        if isinstance(value, dict) and isinstance(origin, type) and issubclass(origin, msgspec.Struct):
            return _struct_misfits(f"`{name}`", origin, value)
        if isinstance(value, dict) and origin is dict:
            parts, part = list(value.items()), arguments[1] if arguments else Any
        elif isinstance(value, list) and origin in (list, tuple, set, frozenset):
            parts, part = list(enumerate(value)), arguments[0] if arguments else Any
        else:
            continue
        found: list[Misfit] = []
        for key, item in parts:
            found += [((key, *path), what, on_key) for path, what, on_key in _misfits(name, part, item)]
        return found
    got = "a mapping" if isinstance(value, dict) else "a list"
    return [((), f"`{name}` cannot be {got}.", False)]


def _choices(kind: Any) -> tuple[Any, ...]:
    return get_args(kind) if get_origin(kind) in (Union, types.UnionType) else (kind,)


def is_open(value: Any) -> bool:
    """Whether a value is known only when the step runs."""
    return has_expression(value) or is_secret_ref(value)


def _any_secret(value: Any) -> bool:
    if isinstance(value, dict):
        mapping = cast("dict[str, Any]", value)
        return is_secret_ref(mapping) or any(_any_secret(item) for item in mapping.values())
    return isinstance(value, list) and any(_any_secret(item) for item in cast("list[Any]", value))


def _sentence(message: str) -> str:
    """msgspec's message in our words."""
    match = _EXPECTED.fullmatch(message)
    if match is None:
        return f"does not fit: {message}."
    wanted = " or ".join(_NAMES.get(name, name) for name in match[1].split(" | "))
    hint = "; put it in quotes" if match[1].startswith("str") and match[2] in ("int", "float", "bool") else ""
    return f"should be {wanted}, not {_NAMES.get(match[2], match[2])}{hint}."
