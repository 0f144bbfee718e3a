"""The option --param: `name=value` pairs to the parameters of a plan."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from runwright.contract.errors import ErrorCode, RunwrightError
from runwright.contract.plan import ExecutionPlan, ParamType
from runwright.core.expressions.template import contains_expression
from runwright.plans.header import describe_param_type, matches_param_type, param_type_of


def parse_params(plan: ExecutionPlan, pairs: Sequence[str]) -> dict[str, Any]:
    """Parse `name=value` pairs.

    The declared type of a parameter, or else that of its default, decides how its value is read: a string as it is,
    other types as JSON. Raises INVALID_ARGUMENT.
    """
    params: dict[str, Any] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals or not name:
            raise RunwrightError(ErrorCode.INVALID_ARGUMENT, f"Invalid --param {pair!r}. Expected name=value.")
        params[name] = _parse_param(plan, name, text)
    return params


def _parse_param(plan: ExecutionPlan, name: str, text: str) -> Any:
    """Parse one value. An undeclared parameter is text; in a playbook, whose workload is open, it is read as JSON."""
    kind = plan.param_types.get(name, ParamType.ANY)
    if kind is ParamType.ANY:
        if name not in plan.params:
            return text if plan.playbook is None else _parse_value(text)
        default = plan.params[name]
        if plan.playbook is not None and contains_expression(default):
            return _parse_value(text)  # The type of an expression is not known before the run.
        kind = param_type_of(default)
    if kind is ParamType.STRING:
        return text
    value = _parse_value(text)
    may_be_null = name in plan.param_types  # Nullability is checked when the run is started.
    if not matches_param_type(value, kind) and not (value is None and may_be_null):
        detail = f"Parameter {name} must be {describe_param_type(kind)}, not {text[:100]!r}."
        raise RunwrightError(ErrorCode.INVALID_ARGUMENT, detail)
    return value


_YAML_CONSTANTS: dict[str, bool | None] = {
    **dict.fromkeys(("", "~", "Null", "NULL")),
    **dict.fromkeys(("True", "TRUE"), True),
    **dict.fromkeys(("False", "FALSE"), False),
}


def _parse_value(text: str) -> Any:
    """Parse JSON, or a constant of YAML's core schema; anything else is text."""
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        pass
    return _YAML_CONSTANTS.get(text.strip(), text)
