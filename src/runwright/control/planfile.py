"""Plans from wherever they come. Steps may call what lies beside a plan's file, in whichever process drives the run."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from runwright.contract.errors import ErrorCode, RunwrightError
from runwright.contract.plan import ExecutionPlan
from runwright.flows.plans import PlanFunction
from runwright.flows.steps import place_of
from runwright.plans.known import remember
from runwright.plans.load import load_plan, load_plan_file, plan_from_dict
from runwright.plans.problems import Loaded
from runwright.tools.base import Tool
from runwright.tools.python import make_importable
from runwright.tools.registry import all_tools

from .flowfile import flow_in, load_flow, plan_of

_reading: ContextVar[tuple[str, ...]] = ContextVar("runwright_reading", default=())
"""What is being read: a plan, and in it the plans that steps of it are runs of."""


AnyPlan = ExecutionPlan | PlanFunction[..., Any] | dict[str, Any] | str | Path


def read_any(plan: AnyPlan, tools: Mapping[str, Tool] | None = None) -> ExecutionPlan:
    """A plan from whatever form it comes in."""
    if isinstance(plan, ExecutionPlan):
        return plan
    if isinstance(plan, PlanFunction):
        return read_function(plan, tools).plan
    if isinstance(plan, dict):
        return read_data(plan, tools).plan
    return read_plan_file(Path(plan), tools).plan


def read_plan_file(path: Path, tools: Mapping[str, Tool] | None = None) -> Loaded:
    """A plan from a file, YAML or Python, with its warnings; PlanInvalid with all of its problems."""
    if (flow := flow_in(path)) is not None:
        return read_function(load_flow(*flow), tools)
    file = Path(os.path.realpath(path))  # which takes a link that leads to itself for what it is
    make_importable(str(file.parent))
    kinds = all_tools() if tools is None else tools
    loaded = _in_circle_once(str(file), lambda: load_plan_file(path, kinds, link=_link(file.parent, tools)))
    return _remember(loaded, str(file))


def read_data(document: Mapping[str, Any], tools: Mapping[str, Tool] | None = None) -> Loaded:
    """A plan that is data already. Files that it names are looked for in the working folder."""
    loaded = plan_from_dict(document, all_tools() if tools is None else tools, link=_link(Path.cwd(), tools))
    return _remember(loaded)


def _remember(loaded: Loaded, file: str | None = None) -> Loaded:
    for part in loaded.parts:
        remember(part)
    remember(loaded.plan, file)
    return loaded


def read_sent(document: Mapping[str, Any] | str, tools: Mapping[str, Tool]) -> Loaded:
    """A plan that came from elsewhere, as data or as YAML: its tenant's, not this process's, so it is not kept in mind,
    and files on this machine are none of its business."""
    if isinstance(document, str):
        return load_plan(document, kinds=tools, link=_no_files)
    return plan_from_dict(document, tools, link=_no_files)


def _no_files(path: str) -> str:
    raise RunwrightError(
        ErrorCode.INVALID_PLAN_SCHEMA, f"A plan that is sent names other plans with `ref`; {path!r} is a file."
    )


def read_function(function: PlanFunction[..., Any], tools: Mapping[str, Tool] | None = None) -> Loaded:
    """The plan that a function with @rw.plan writes down."""
    kinds = all_tools() if tools is None else tools
    name = f"{function.source}:{function.function.__qualname__}"

    def ref_of(child: PlanFunction[..., Any]) -> str:
        return remember(read_function(child, tools).plan, *_origin(child))

    loaded = _in_circle_once(name, lambda: plan_of(function, kinds, ref_of))
    remember(loaded.plan, *_origin(function))
    return loaded


def _origin(function: PlanFunction[..., Any]) -> tuple[str | None, dict[str, str]]:
    """Where a plan in Python comes from: its file, and the functions that are its steps."""
    code = {place_of(step.function): step.fingerprint for step in function.traced.functions.values()}
    return None if function.source is None else str(Path(function.source).resolve()), code


def _link(folder: Path, tools: Mapping[str, Tool] | None) -> Callable[[str], str]:
    """How to find the plan that a step names by a file, and what to call it from then on."""

    def link(path: str) -> str:
        file = folder / path
        loaded = read_plan_file(file, tools)
        return remember(loaded.plan, str(file.resolve().with_name(file.name.partition(":")[0])))

    return link


def _in_circle_once(name: str, read: Callable[[], Loaded]) -> Loaded:
    above = _reading.get()
    if name in above:
        way = " -> ".join(Path(each).name for each in (*above[above.index(name) :], name))
        raise RunwrightError(ErrorCode.INVALID_PLAN_SCHEMA, f"These plans run each other in a circle: {way}.")
    token = _reading.set((*above, name))
    try:
        return read()
    finally:
        _reading.reset(token)
