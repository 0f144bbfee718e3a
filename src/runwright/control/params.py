"""The parameters of a run: what was given, over what the plan says."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from typing import Any, cast

from runwright.contract.errors import ErrorCode, RunwrightError
from runwright.contract.plan import ExecutionPlan, ParamType
from runwright.core.expressions import any_expression, fill, mentioned_fields, mentioned_names
from runwright.core.playscope import RESERVED_NAMES, workload_scope
from runwright.plans.params import fits, in_words
from runwright.plans.secrets import find_secrets


def merge_params(plan: ExecutionPlan, given: dict[str, Any], inherited: dict[str, Any] | None = None) -> dict[str, Any]:
    """All of a run's parameters; INVALID_ARGUMENT for one that is unknown, missing, or not what it should be.
    What is inherited was looked at when the run was started that it is inherited from."""
    check_params(plan, given)
    if plan.playbook is None:
        return {**plan.params, **given}
    return _merged(_merged(plan.params, inherited or {}), given)


def fill_workload(plan: ExecutionPlan, merged: dict[str, Any], run_id: str) -> dict[str, Any]:
    """The parameters with the expressions filled in that a playbook's own workload holds. What was given for a run
    stays as it is, whatever it looks like."""
    if plan.playbook is None or not any_expression(plan.params):
        return merged
    filled = dict(merged)
    left = {name: value for name, value in plan.params.items() if name not in RESERVED_NAMES and any_expression(value)}

    def see_to(name: str, on_way: tuple[str, ...]) -> None:
        written = left[name]
        fields: frozenset[str] = mentioned_fields("workload", [written]) or frozenset()
        for other in sorted((mentioned_names(written) | fields) & left.keys()):
            if other in on_way:
                circle = " -> ".join((*on_way, other))
                raise RunwrightError(ErrorCode.EXPRESSION_ERROR, f"The workload goes round in a circle: {circle}.")
            see_to(other, (*on_way, other))
        filled[name] = _filled(written, merged[name], workload_scope(filled, run_id))
        del left[name]

    while left:
        name = next(iter(left))
        see_to(name, (name,))
    return filled


def given_of(plan: ExecutionPlan, params: dict[str, Any], run_id: str) -> dict[str, Any]:
    """A run's parameters without what was filled in for it: another run of the plan has that filled in for itself."""
    if plan.playbook is None or not any_expression(plan.params):
        return params
    return _given(plan.params, params, workload_scope(params, run_id))


def _given(written: dict[str, Any], params: dict[str, Any], scope: dict[str, Any]) -> dict[str, Any]:
    given: dict[str, Any] = {}
    for name, value in params.items():
        there = written.get(name)
        if isinstance(there, dict) and isinstance(value, dict):
            given[name] = _given(cast("dict[str, Any]", there), cast("dict[str, Any]", value), scope)
        elif not any_expression(there) or fill(there, scope) != value:
            given[name] = value
    return given


def _filled(written: Any, value: Any, scope: dict[str, Any]) -> Any:
    """A value, filled in where it is still what was written."""
    if isinstance(written, dict) and isinstance(value, dict):
        there, now = cast("dict[str, Any]", written), cast("dict[str, Any]", value)
        return {key: _filled(there[key], item, scope) if key in there else item for key, item in now.items()}
    return fill(value, scope) if value == written else value


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
