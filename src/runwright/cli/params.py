"""`--param name=value`: text becomes what the plan's own default is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from runwright.contract.errors import ErrorCode, RunwrightError
from runwright.contract.plan import ExecutionPlan, ParamType
from runwright.core.expressions import any_expression
from runwright.plans.params import fits, in_words, kind_of


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
    """What is said of the parameter decides, else its default; of one that has neither, the text is its value. To the
    workload of a playbook anything may be added."""
    kind = plan.param_types.get(name, ParamType.ANY)
    if kind is ParamType.ANY:
        if name not in plan.params:
            return text if plan.playbook is None else _read(text)
        default = plan.params[name]
        if plan.playbook is not None and any_expression(default):
            return _read(text)  # what comes of it is not known before the run
        kind = kind_of(default)
    if kind is ParamType.STRING:
        return text
    value = _read(text)
    may_be_null = name in plan.param_types  # whoever starts the run says whether
    if not fits(value, kind) and not (value is None and may_be_null):
        raise _refused(f"{name} is {in_words(kind)}; {text[:100]!r} is not.")
    return value


_WORDS: dict[str, bool | None] = {
    **dict.fromkeys(("", "~", "Null", "NULL")),
    **dict.fromkeys(("True", "TRUE"), True),
    **dict.fromkeys(("False", "FALSE"), False),
}


def _read(text: str) -> Any:
    """JSON, or the few plain words of YAML's core schema; anything else is text."""
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        pass
    return _WORDS.get(text.strip(), text)


def _refused(sentence: str) -> RunwrightError:
    return RunwrightError(ErrorCode.INVALID_ARGUMENT, sentence)
