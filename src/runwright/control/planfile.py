"""Plan files. Steps may call what lies beside the file, in whichever process drives the run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from runwright.contract.plan import ExecutionPlan, content_hash, plan_body
from runwright.flows.plans import PlanFunction
from runwright.flows.steps import place_of
from runwright.plans.load import load_plan_file
from runwright.plans.problems import Loaded
from runwright.tools.base import Tool
from runwright.tools.python import make_importable
from runwright.tools.registry import all_tools

from .flowfile import flow_in, load_flow, plan_of

_sources: dict[str, str] = {}
_code: dict[str, dict[str, str]] = {}


def read_plan_file(path: Path, tools: Mapping[str, Tool] | None = None) -> Loaded:
    """A plan from a file, YAML or Python, with its warnings; PlanInvalid with all of its problems."""
    if (flow := flow_in(path)) is not None:
        return read_function(load_flow(*flow), tools)
    file = path.resolve()
    make_importable(str(file.parent))
    loaded = load_plan_file(path, all_tools() if tools is None else tools)
    _remember(loaded.plan, str(file))
    return loaded


def read_function(function: PlanFunction[..., Any], tools: Mapping[str, Tool] | None = None) -> Loaded:
    """The plan that a function with @rw.plan writes down."""
    loaded = plan_of(function, all_tools() if tools is None else tools)
    if function.source is not None:
        _remember(loaded.plan, str(Path(function.source).resolve()))
    _code[content_hash(plan_body(loaded.plan))] = {
        place_of(step.function): step.fingerprint for step in function.traced.functions.values()
    }
    return loaded


def _remember(plan: ExecutionPlan, file: str) -> None:
    _sources[content_hash(plan_body(plan))] = file


def code_of(sha256: str) -> dict[str, str] | None:
    """The functions that are the steps of a plan in Python, with the fingerprint of their code."""
    return _code.get(sha256)


def source_of(sha256: str) -> str | None:
    """The file that the plan with this hash was read from, if it was."""
    return _sources.get(sha256)
