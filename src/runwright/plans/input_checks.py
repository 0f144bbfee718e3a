"""Validation of a step's inputs against the input struct of its tool.

Expressions and secret references are accepted everywhere: their values are known only when the step runs.
"""

from __future__ import annotations

import re
import types
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, NamedTuple, Protocol, Union, cast, get_args, get_origin

import msgspec
from msgspec.structs import FieldInfo

from runwright.contract.errors import ErrorCode
from runwright.contract.plan import Step
from runwright.core.expressions.template import contains_expression, has_expression

from .problems import INVALID_STEP, DocumentPath, did_you_mean
from .secret_refs import is_secret_ref


class ToolProtocol(Protocol):
    """The part of a tool that plans need. `tools.base.Tool` implements it; the tools layer lies above this one."""

    @property
    def inputs(self) -> type[msgspec.Struct]: ...

    @property
    def main_input(self) -> str | None: ...

    def check(self, inputs: dict[str, Any], step: Step) -> str | None: ...


ToolsByKind = Mapping[str, ToolProtocol]


class InputProblem(NamedTuple):
    path: DocumentPath  # within the inputs
    sentence: str
    on_key: bool = False  # the name of the input is wrong, not its value


_EXPECTED = re.compile(r"Expected `([^`]+)`, got `([^`]+)`(?: - at `[^`]*`)?")
_TYPE_NAMES = {
    "str": "a string",
    "int": "an integer",
    "float": "a number",
    "bool": "true or false",
    "array": "a list",
    "object": "a mapping",
    "null": "null",
}


def code_of(sentence: str) -> ErrorCode:
    """Return the error code of a problem that a tool found."""
    code = getattr(sentence, "code", None)
    return INVALID_STEP if code is None else ErrorCode(code)


def check_inputs(kind: str, tool: ToolProtocol, inputs: dict[str, Any]) -> list[InputProblem]:
    """Return the reasons why these inputs are invalid for the tool."""
    return _check_struct(f"`{kind}`", tool.inputs, inputs)


def is_dynamic(value: Any) -> bool:
    """Whether a value is known only when the step runs."""
    return has_expression(value) or is_secret_ref(value)


@lru_cache(maxsize=256)
def _fields(inputs: type[msgspec.Struct]) -> dict[str, FieldInfo]:
    return {field.encode_name: field for field in msgspec.structs.fields(inputs)}


def _check_struct(owner: str, struct: type[msgspec.Struct], values: dict[str, Any]) -> list[InputProblem]:
    fields = _fields(struct)
    problems: list[InputProblem] = []
    for name, value in values.items():
        if name in fields:
            problems += _below(name, _check_value(name, fields[name].type, value))
            continue
        known = ", ".join(f"`{field}`" for field in fields)
        advice = did_you_mean(name, fields) or (f" Inputs: {known}." if known else " It has no inputs.")
        problems.append(InputProblem((name,), f"Unknown input {name!r} of {owner}.{advice}", on_key=True))
    missing = [name for name, field in fields.items() if field.required and name not in values]
    if missing:
        problems.append(InputProblem((), f"{owner} requires {', '.join(f'`{name}`' for name in missing)}."))
    return problems


def _check_value(name: str, expected: Any, value: Any) -> list[InputProblem]:
    if is_dynamic(value):
        return []
    if isinstance(value, dict | list) and (contains_expression(value) or _has_secret_ref(value)):
        return _check_items(name, expected, cast("dict[str, Any] | list[Any]", value))
    try:
        msgspec.convert(value, expected)
    except msgspec.ValidationError as error:
        return [InputProblem((), f"`{name}` {_sentence(str(error))}")]
    return []


def _check_items(name: str, expected: Any, value: dict[str, Any] | list[Any]) -> list[InputProblem]:
    """Check each item of a list or mapping by itself, because some items are known only when the step runs."""
    for choice in _choices(expected):
        if choice is Any:
            return []
        origin, arguments = get_origin(choice) or choice, get_args(choice)
        if isinstance(value, dict) and isinstance(origin, type) and issubclass(origin, msgspec.Struct):
            return _check_struct(f"`{name}`", origin, value)
        if isinstance(value, dict) and origin is dict:
            items, item_type = list(value.items()), arguments[1] if arguments else Any
        elif isinstance(value, list) and origin in (list, tuple, set, frozenset):
            items, item_type = list(enumerate(value)), arguments[0] if arguments else Any
        else:
            continue
        return [found for key, item in items for found in _below(key, _check_value(name, item_type, item))]
    actual = "a mapping" if isinstance(value, dict) else "a list"
    return [InputProblem((), f"`{name}` must not be {actual}.")]


def _below(key: str | int, problems: Iterable[InputProblem]) -> list[InputProblem]:
    return [InputProblem((key, *each.path), each.sentence, each.on_key) for each in problems]


def _choices(expected: Any) -> tuple[Any, ...]:
    return get_args(expected) if get_origin(expected) in (Union, types.UnionType) else (expected,)


def _has_secret_ref(value: Any) -> bool:
    if isinstance(value, dict):
        mapping = cast("dict[str, Any]", value)
        return is_secret_ref(mapping) or any(_has_secret_ref(item) for item in mapping.values())
    return isinstance(value, list) and any(_has_secret_ref(item) for item in cast("list[Any]", value))


def _sentence(message: str) -> str:
    """Translate a validation message of msgspec to the type names of YAML."""
    match = _EXPECTED.fullmatch(message)
    if match is None:
        return f"is invalid: {message}."
    expected = " or ".join(_TYPE_NAMES.get(name, name) for name in match[1].split(" | "))
    hint = "; put it in quotes" if match[1].startswith("str") and match[2] in ("int", "float", "bool") else ""
    return f"must be {expected}, not {_TYPE_NAMES.get(match[2], match[2])}{hint}."
