"""`--param name=value`: text becomes what the plan's own default is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from runwright.contract.errors import ErrorCode, RunwrightError
from runwright.contract.plan import ExecutionPlan, ParamType
from runwright.plans.params import fits, in_words


def read_params(plan: ExecutionPlan, given: Sequence[str]) -> dict[str, Any]:
    """Where the default is text, the value is taken as it is; otherwise it is read as JSON, text where it is none."""
    params: dict[str, Any] = {}
    for pair in given:
        name, equals, text = pair.partition("=")
        if not equals or not name:
            raise _refused(f"--param {pair!r}: write it as name=value.")
        params[name] = _given(plan, name, text)
    return params


def _given(plan: ExecutionPlan, name: str, text: str) -> Any:
    kind = plan.param_types.get(name)
    if kind is ParamType.STRING:
        return text
    if kind is None or kind is ParamType.ANY:
        return _value(name, text, plan.params[name]) if name in plan.params else text
    value = _read(text)
    if not fits(value, kind) and value is not None:
        raise _refused(f"{name} is {in_words(kind)}; {text!r} is not.")
    return value


_WORDS: dict[str, bool | None] = {
    **dict.fromkeys(("", "~", "Null", "NULL")),
    **dict.fromkeys(("True", "TRUE"), True),
    **dict.fromkeys(("False", "FALSE"), False),
}


def _value(name: str, text: str, default: Any) -> Any:
    if isinstance(default, str):
        return text
    value = _read(text)
    wanted = _misses(value, default)
    if wanted is not None:
        raise _refused(f"{name} is {wanted}; {text!r} is not.")
    return value


def _misses(value: Any, default: Any) -> str | None:
    """What the value should have been, if it is something else. A default of null asks for nothing."""
    if isinstance(default, bool):
        return None if isinstance(value, bool) else "true or false"
    if isinstance(default, (int, float)):
        return None if isinstance(value, (int, float)) and not isinstance(value, bool) else "a number"
    if isinstance(default, list):
        return None if isinstance(value, list) else "a list, such as [1, 2]"
    if isinstance(default, dict):
        return None if isinstance(value, dict) else 'an object, such as {"a": 1}'
    return None


def _read(text: str) -> Any:
    """JSON, or the few plain words of YAML's core schema; anything else is text."""
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        pass
    return _WORDS.get(text.strip(), text)


def _refused(sentence: str) -> RunwrightError:
    return RunwrightError(ErrorCode.INVALID_ARGUMENT, sentence)
