"""Parameters of a run: those of the caller over those of the plan; expressions in the workload of a playbook."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from typing import Any, cast

from runwright.contract.errors import ErrorCode, RunwrightError
from runwright.contract.plan import ExecutionPlan, ParamType
from runwright.core.expressions.template import contains_expression, evaluate_all, mentioned_fields, mentioned_names
from runwright.core.playbook.scope import RESERVED_NAMES, workload_scope
from runwright.plans.header import describe_param_type, matches_param_type
from runwright.plans.secret_refs import find_secret_values


def merge_params(plan: ExecutionPlan, given: dict[str, Any], inherited: dict[str, Any] | None = None) -> dict[str, Any]:
    """All parameters of a run. Raises INVALID_ARGUMENT for one that is unknown, missing or of the wrong type.
    Inherited ones were checked when the parent run started."""
    check_params(plan, given)
    if plan.playbook is None:
        return {**plan.params, **given}
    return _merged(_merged(plan.params, inherited or {}), given)


def fill_workload(plan: ExecutionPlan, merged: dict[str, Any], run_id: str) -> dict[str, Any]:
    """Evaluate the expressions in the workload of a playbook. Parameters of the caller are data: they are not
    evaluated, even if they look like expressions."""
    if plan.playbook is None or not contains_expression(plan.params):
        return merged
    evaluated = dict(merged)
    pending = {
        name: value for name, value in plan.params.items() if name not in RESERVED_NAMES and contains_expression(value)
    }

    def evaluate_param(name: str, path: tuple[str, ...]) -> None:
        template = pending[name]
        fields: frozenset[str] = mentioned_fields("workload", [template]) or frozenset()
        for other in sorted((mentioned_names(template) | fields) & pending.keys()):
            if other in path:
                cycle = " -> ".join((*path, other))
                raise RunwrightError(ErrorCode.EXPRESSION_ERROR, f"Cycle in workload expressions: {cycle}.")
            evaluate_param(other, (*path, other))
        evaluated[name] = _evaluate_unchanged(template, merged[name], workload_scope(evaluated, run_id))
        del pending[name]

    while pending:
        name = next(iter(pending))
        evaluate_param(name, (name,))
    return evaluated


def given_of(plan: ExecutionPlan, params: dict[str, Any], run_id: str) -> dict[str, Any]:
    """The parameters of a run without evaluated expressions: another run of the plan evaluates them itself."""
    if plan.playbook is None or not contains_expression(plan.params):
        return params
    return _given(plan.params, params, workload_scope(params, run_id))


_MISSING = object()


def rerun_params(
    old: ExecutionPlan, new: ExecutionPlan, run_id: str, before: dict[str, Any], changes: dict[str, Any]
) -> dict[str, Any]:
    """The parameters that a new run is given: those of the ended one that are no defaults, as far as the new plan has
    them, and the changes."""
    given = given_of(old, before, run_id)
    if old is not new and new.playbook is None:
        given = {
            name: value
            for name, value in given.items()
            if name in new.param_names and value != old.params.get(name, _MISSING)
        }
    return {**given, **changes}


def _given(written: dict[str, Any], params: dict[str, Any], scope: dict[str, Any]) -> dict[str, Any]:
    given: dict[str, Any] = {}
    for name, value in params.items():
        there = written.get(name)
        if isinstance(there, dict) and isinstance(value, dict):
            given[name] = _given(cast("dict[str, Any]", there), cast("dict[str, Any]", value), scope)
        elif not contains_expression(there) or evaluate_all(there, scope) != value:
            given[name] = value
    return given


def _evaluate_unchanged(template: Any, value: Any, scope: dict[str, Any]) -> Any:
    """Evaluate the parts of a value that are still those of the template."""
    if isinstance(template, dict) and isinstance(value, dict):
        there, now = cast("dict[str, Any]", template), cast("dict[str, Any]", value)
        return {
            key: _evaluate_unchanged(there[key], item, scope) if key in there else item for key, item in now.items()
        }
    return evaluate_all(value, scope) if value == template else value


def _merged(workload: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    """Merge parameters over the workload, mapping by mapping."""
    merged = dict(workload)
    for name, value in given.items():
        there = merged.get(name)
        both = isinstance(there, dict) and isinstance(value, dict)
        merged[name] = _merged(cast("dict[str, Any]", there), cast("dict[str, Any]", value)) if both else value
    return merged


def check_params(
    plan: ExecutionPlan, given: dict[str, Any], where: str = "", later: Callable[[Any], bool] = lambda _: False
) -> None:
    """Refuse parameters that the plan does not accept. `later`: whether a value is known only when the step runs."""
    for name, value in given.items():
        if plan.playbook is not None:
            if name in RESERVED_NAMES:
                raise _refused(f"{where}{name!r} is reserved in playbooks and cannot be a parameter.")
            continue
        if name not in plan.param_names:
            raise _refused(f"{where}Unknown parameter {name!r} of plan {plan.plan_id}.{_advice(name, plan)}")
        if not later(value) and (problem := type_problem(plan, name, value)) is not None:
            raise _refused(f"{where}{problem}")
    for path, sentence in find_secret_values(given, ()):
        raise _refused(f"{where}Parameter {'.'.join(map(str, path))}: {sentence}")
    missing = [name for name in plan.param_types if name not in plan.params and name not in given]
    if missing:
        names = ", ".join(f"{name} ({describe_param_type(plan.param_types[name])})" for name in missing)
        how = "" if where else " Set it with --param, or pass it to start()."
        raise _refused(f"{where}The plan {plan.plan_id} needs {names}.{how}")


def check_sub_plan_params(child: ExecutionPlan, inputs: dict[str, Any], step_id: str) -> None:
    """Refuse the inputs of a `plan` step if its plan does not accept their parameters."""
    params: Any = inputs.get("params") or {}
    if isinstance(params, dict):  # else it is an expression
        check_params(child, cast("dict[str, Any]", params), f"Step {step_id!r}: ", later=contains_expression)


def type_problem(plan: ExecutionPlan, name: str, value: Any) -> str | None:
    """The problem with a value for this parameter, if any. null is accepted if the default is null."""
    kind = plan.param_types.get(name, ParamType.ANY)
    may_be_null = name in plan.params and plan.params[name] is None
    if matches_param_type(value, kind) or (value is None and may_be_null):
        return None
    return f"Parameter {name!r} must be {describe_param_type(kind)}; this is {type(value).__name__}."


def _advice(name: str, plan: ExecutionPlan) -> str:
    known = sorted(plan.param_names)
    if close := difflib.get_close_matches(name, known, 1):
        return f" Did you mean {close[0]!r}?"
    return f" Parameters: {', '.join(known)}." if known else ""


def _refused(sentence: str) -> RunwrightError:
    return RunwrightError(ErrorCode.INVALID_ARGUMENT, sentence)
