"""Plans in Python files: `flow.py`, or `flow.py:orders` where there are several."""

from __future__ import annotations

import difflib
import importlib
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, cast

from runwright.contract.errors import ErrorCode, RunwrightError
from runwright.flows.plan_function import PlanFunction, TracedPlan
from runwright.flows.user_modules import import_user_module, module_name
from runwright.plans.loader import plan_from_dict
from runwright.plans.problems import LoadedPlan, PlanInvalid, Problem
from runwright.plans.registry import SUB_PLAN
from runwright.tools.base import Tool
from runwright.tools.python import make_file_importable


def flow_in(path: Path) -> tuple[Path, str | None] | None:
    """The Python file and the name of the plan that an argument denotes; None if it denotes no Python file."""
    file, colon, name = str(path).rpartition(":")
    if colon and file.endswith(".py"):
        return Path(file), name
    return (path, None) if path.suffix == ".py" else None


def load_flow(file: Path, name: str | None) -> PlanFunction[..., Any]:
    """Load the plan in a Python file. Its module is imported, so its top-level code is executed."""
    if not file.is_file():
        raise RunwrightError(ErrorCode.PLAN_NOT_FOUND, f"Plan file {file} not found.")
    module = _module(file.resolve())
    found: dict[str, PlanFunction[..., Any]] = {
        name: value for name, value in vars(module).items() if _is_plan_of(module, value)
    }
    if name is None and len(found) == 1:
        return next(iter(found.values()))
    if name is not None and name in found:
        return found[name]
    if not found:
        raise RunwrightError(ErrorCode.PLAN_NOT_FOUND, f"{file} has no plan: no function in it has @rw.plan.")
    names = ", ".join(found)
    if name is None:
        first = next(iter(found))
        raise RunwrightError(ErrorCode.PLAN_NOT_FOUND, f"{file} has several plans: {names}. Name one: {file}:{first}.")
    close = difflib.get_close_matches(name, found, 1)
    advice = f"Did you mean {close[0]!r}?" if close else f"It has: {names}."
    raise RunwrightError(ErrorCode.PLAN_NOT_FOUND, f"{file} has no plan {name!r}. {advice}")


def _is_plan_of(module: ModuleType, value: Any) -> bool:
    return isinstance(value, PlanFunction) and cast("Any", value).function.__module__ == module.__name__


def _module(file: Path) -> ModuleType:
    make_file_importable(file)
    importlib.invalidate_caches()
    name = module_name(file)
    try:
        module = import_user_module(name)
    except Exception as error:
        raise PlanInvalid([_problem(error, str(file))]) from error
    if Path(getattr(module, "__file__", None) or "").resolve() != file:
        raise RunwrightError(
            ErrorCode.PLAN_NOT_FOUND,
            f"{file} cannot be imported: another module is called {name!r}. Rename the file.",
        )
    return module


def plan_of(
    function: PlanFunction[..., Any], tools: Mapping[str, Tool], ref_of: Callable[[PlanFunction[..., Any]], str]
) -> LoadedPlan:
    """The plan that a function describes. `ref_of` returns the reference of another plan that it calls."""
    where = function.source or function.name
    traced = _traced(function, where)
    refs = {step_id: ref_of(child) for step_id, child in traced.plans.items()}
    steps = [
        {**step, SUB_PLAN: {**step[SUB_PLAN], "ref": refs[step["id"]]}} if step["id"] in refs else step
        for step in traced.document["steps"]
    ]
    return plan_from_dict({**traced.document, "steps": steps}, tools, name=where)


def _traced(function: PlanFunction[..., Any], where: str) -> TracedPlan:
    try:
        return function.traced
    except Exception as error:
        raise PlanInvalid([_problem(error, where)]) from error


def _problem(error: Exception, file: str) -> Problem:
    """An error of user code, at the line of its file where it was raised."""
    if isinstance(error, PlanInvalid):
        return error.problems[0]
    if isinstance(error, RunwrightError):
        code, sentence = error.code, error.detail
    elif isinstance(error, SyntaxError):
        return Problem(
            file, error.lineno, error.offset, ErrorCode.INVALID_PLAN_SCHEMA, f"Python syntax error: {error.msg}."
        )
    else:
        code, sentence = ErrorCode.INVALID_PLAN_SCHEMA, f"{type(error).__name__}: {error}"
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if Path(frame.filename) == Path(file)]
    line = frames[-1].lineno if frames else None
    return Problem(file, line, None if line is None else 1, code, sentence)
