"""Load plans from files, mappings, requests and functions. Modules next to a plan file become importable, also in the
process that recovers the run."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from runwright.config.limits import read_limits
from runwright.contract.errors import ErrorCode, RunwrightError
from runwright.contract.plan import ExecutionPlan
from runwright.flows.plan_function import PlanFunction
from runwright.flows.step_function import function_ref
from runwright.plans.load_limits import load_limits
from runwright.plans.loader import load_plan, load_plan_file, plan_from_dict
from runwright.plans.problems import INVALID_STEP, LoadedPlan, PlanInvalid, Problem
from runwright.plans.registry import SUB_PLAN, find_registered, hash_from_ref, register_plan
from runwright.tools.base import Tool
from runwright.tools.python import make_importable
from runwright.tools.registry import all_tools

from .flow_loader import flow_in, load_flow, plan_of
from .run_params import check_sub_plan_params

_loading: ContextVar[tuple[str, ...]] = ContextVar("runwright_loading", default=())
"""The plans that are being loaded: a plan, and inside it its sub-plans."""


AnyPlan = ExecutionPlan | PlanFunction[..., Any] | dict[str, Any] | str | Path


def read_any(plan: AnyPlan, tools: Mapping[str, Tool] | None = None) -> ExecutionPlan:
    """Load a plan from a file, a mapping or a function."""
    if isinstance(plan, ExecutionPlan):
        return plan
    if isinstance(plan, PlanFunction):
        return read_function(plan, tools).plan
    if isinstance(plan, dict):
        return read_data(plan, tools).plan
    return read_plan_file(Path(plan), tools).plan


def read_plan_file(path: Path, tools: Mapping[str, Tool] | None = None) -> LoadedPlan:
    """A plan from a file, YAML or Python, with its warnings; PlanInvalid with all of its problems."""
    if (flow := flow_in(path)) is not None:
        return read_function(load_flow(*flow), tools)
    file = Path(os.path.realpath(path))  # resolves also a link that points to itself
    make_importable(str(file.parent))
    kinds = all_tools() if tools is None else tools
    with load_limits(steps=read_limits().plan_steps):
        loaded = _load_once(str(file), lambda: load_plan_file(path, kinds, link=_link(file.parent, tools)))
    _check_sub_plans(loaded.plan, str(path))
    return _register(loaded, str(file))


def read_data(document: Mapping[str, Any], tools: Mapping[str, Tool] | None = None) -> LoadedPlan:
    """Load a plan from a mapping. Files that it names are relative to the working directory."""
    with load_limits(steps=read_limits().plan_steps):
        loaded = plan_from_dict(document, all_tools() if tools is None else tools, link=_link(Path.cwd(), tools))
    _check_sub_plans(loaded.plan, "plan")
    return _register(loaded)


def _check_sub_plans(plan: ExecutionPlan, name: str) -> None:
    """Raise PlanInvalid if a step passes parameters that its sub-plan does not accept, or omits some that it needs."""
    problems: list[Problem] = []
    for call in plan.tool_calls():
        child = find_registered(hash_from_ref(str(call.inputs.get("ref")))) if call.kind == SUB_PLAN else None
        if child is None:
            continue
        try:
            check_sub_plan_params(child.plan, call.inputs, call.name)
        except RunwrightError as error:
            problems.append(Problem(name, None, None, INVALID_STEP, error.detail, call.name))
    if problems:
        raise PlanInvalid(problems)


def _register(loaded: LoadedPlan, file: str | None = None) -> LoadedPlan:
    for sub_plan in loaded.sub_plans:
        register_plan(sub_plan)
    register_plan(loaded.plan, file)
    return loaded


def read_sent(document: Mapping[str, Any] | str, tools: Mapping[str, Tool]) -> LoadedPlan:
    """Load a plan that a client sent, as a mapping or as YAML. It belongs to a tenant: it is not registered in this
    process, and it cannot name files of this machine."""
    with load_limits(steps=read_limits().plan_steps):
        if isinstance(document, str):
            return load_plan(document, tools=tools, link=_no_files)
        return plan_from_dict(document, tools, link=_no_files)


def _no_files(path: str) -> str:
    raise RunwrightError(
        ErrorCode.INVALID_PLAN_SCHEMA,
        f"A plan that is sent to a server must reference other plans with `ref`; {path!r} is a file.",
    )


def read_function(function: PlanFunction[..., Any], tools: Mapping[str, Tool] | None = None) -> LoadedPlan:
    """Load the plan that a function with @rw.plan describes."""
    kinds = all_tools() if tools is None else tools
    name = f"{function.source}:{function.function.__qualname__}"

    def make_plan_ref(child: PlanFunction[..., Any]) -> str:
        return register_plan(read_function(child, tools).plan, *_origin(child))

    loaded = _load_once(name, lambda: plan_of(function, kinds, make_plan_ref))
    register_plan(loaded.plan, *_origin(function))
    return loaded


def _origin(function: PlanFunction[..., Any]) -> tuple[str | None, dict[str, str]]:
    """The file of a Python plan, and the fingerprints of the functions of its steps."""
    code = {function_ref(step.function): step.fingerprint for step in function.traced.functions.values()}
    return None if function.source is None else str(Path(function.source).resolve()), code


def _link(folder: Path, tools: Mapping[str, Tool] | None) -> Callable[[str], str]:
    """A function that loads the plan file of a step, and returns the reference of the plan."""

    def link(path: str) -> str:
        file = folder / path
        loaded = read_plan_file(file, tools)
        return register_plan(loaded.plan, str(file.resolve().with_name(file.name.partition(":")[0])))

    return link


def _load_once(name: str, load: Callable[[], LoadedPlan]) -> LoadedPlan:
    """Refuse plans that contain each other."""
    above = _loading.get()
    if name in above:
        cycle = " -> ".join(Path(each).name for each in (*above[above.index(name) :], name))
        raise RunwrightError(ErrorCode.INVALID_PLAN_SCHEMA, f"Dependency cycle: {cycle}.")
    token = _loading.set((*above, name))
    try:
        return load()
    finally:
        _loading.reset(token)
