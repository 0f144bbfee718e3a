"""The parameters of a run: what was given, over what the plan says."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from typing import Any, cast

from runwright.contract.errors import ErrorCode, RunwrightError
from runwright.contract.plan import ExecutionPlan, ParamType
from runwright.core.playscope import RESERVED_NAMES
from runwright.plans.params import fits, in_words
from runwright.plans.secrets import find_secrets


def merge_params(plan: ExecutionPlan, given: dict[str, Any], inherited: dict[str, Any] | None = None) -> dict[str, Any]:
    """All of a run's parameters; INVALID_ARGUMENT for one that is unknown, missing, or not what it should be.
    What is inherited was looked at when the run was started that it is inherited from."""
    check_params(plan, given)
    if plan.playbook is None:
        return {**plan.params, **given}
    return _merged(_merged(plan.params, inherited or {}), given)


def _merged(workload: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    """What was given over what is there, mapping by mapping."""
    merged = dict(workload)
    for name, value in given.items():
        there = merged.get(name)
        both = isinstance(there, dict) and isinstance(value, dict)
        merged[name] = _merged(cast("dict[str, Any]", there), cast("dict[str, Any]", value)) if both else value
    return merged


def check_params(
    plan: ExecutionPlan, given: dict[str, Any], where: str = "", later: Callable[[Any], bool] = lambda _: False
) -> None:
    """Refuse parameters that the plan would not take. `later` says which values are not known yet."""
    for name, value in given.items():
        if plan.playbook is not None:
            if name in RESERVED_NAMES:
                raise _refused(f"{where}{name!r} means something else in playbooks, and cannot be given.")
            continue
        if name not in plan.param_names:
            raise _refused(f"{where}The plan {plan.plan_id} has no parameter {name!r}.{_advice(name, plan)}")
        if not later(value) and (trouble := type_trouble(plan, name, value)) is not None:
            raise _refused(f"{where}{trouble}")
    for path, sentence in find_secrets(given, ()):
        raise _refused(f"{where}Parameter {'.'.join(map(str, path))}: {sentence}")
    missing = [name for name in plan.param_types if name not in plan.params and name not in given]
    if missing:
        names = ", ".join(f"{name} ({in_words(plan.param_types[name])})" for name in missing)
        how = "" if where else " Give it with --param, or to start()."
        raise _refused(f"{where}The plan {plan.plan_id} needs {names}.{how}")


def type_trouble(plan: ExecutionPlan, name: str, value: Any) -> str | None:
    """What is wrong with a value for this parameter; null may stand for one whose default is null."""
    kind = plan.param_types.get(name, ParamType.ANY)
    may_be_null = name in plan.params and plan.params[name] is None
    if fits(value, kind) or (value is None and may_be_null):
        return None
    return f"The parameter {name!r} is {in_words(kind)}; this is {type(value).__name__}."


def _advice(name: str, plan: ExecutionPlan) -> str:
    known = sorted(plan.param_names)
    if close := difflib.get_close_matches(name, known, 1):
        return f" Did you mean {close[0]!r}?"
    return f" It has: {', '.join(known)}." if known else ""


def _refused(sentence: str) -> RunwrightError:
    return RunwrightError(ErrorCode.INVALID_ARGUMENT, sentence)
