"""Plan files. Steps may call what lies beside the file, in whichever process drives the run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from runwright.contract.plan import content_hash, plan_body
from runwright.plans.load import load_plan_file
from runwright.plans.problems import Loaded
from runwright.tools.base import Tool
from runwright.tools.python import make_importable
from runwright.tools.registry import builtin_tools

_sources: dict[str, str] = {}


def read_plan_file(path: Path, tools: Mapping[str, Tool] | None = None) -> Loaded:
    """A plan from a file, with its warnings; PlanInvalid with all of its problems."""
    file = path.resolve()
    make_importable(str(file.parent))
    loaded = load_plan_file(path, builtin_tools() if tools is None else tools)
    _sources[content_hash(plan_body(loaded.plan))] = str(file)
    return loaded


def source_of(sha256: str) -> str | None:
    """The file that the plan with this hash was read from, if it was."""
    return _sources.get(sha256)
