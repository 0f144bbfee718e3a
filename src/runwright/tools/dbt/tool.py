"""The dbt step: one node of a dbt project, or a selection of nodes."""

from __future__ import annotations

import asyncio
import json
import os
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from runwright.contract.plan import Step
from runwright.tools.base import Lane, StepContext, invalid_input, is_unresolved
from runwright.tools.connection_cache import get_cached

if TYPE_CHECKING:
    from .project import DbtProject

COMMANDS = ("build", "run", "test", "seed", "snapshot", "compile")
ARTIFACT_KINDS = {"run_results.json": "dbt-run-results", "manifest.json": "dbt-manifest"}
"""Artifact kinds of dbt's files."""


class DbtInputs(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    project: str
    select: str | list[str] = []
    node: str | None = None
    """Unique id of the one node that this step runs. Steps with a node share invocations."""
    command: str = "build"
    target: str | None = None
    profiles_dir: str | None = None
    threads: int | None = None
    vars: dict[str, Any] = {}
    full_refresh: bool = False
    env: dict[str, Any] = {}


class DbtTool:
    kind = "dbt"
    inputs = DbtInputs
    main_input = None

    def check(self, inputs: dict[str, Any], step: Step) -> str | None:  # noqa: ARG002
        if find_spec("dbt") is None:
            return "dbt steps require `runwright[dbt]` and an adapter, such as dbt-duckdb. Install them."
        command = inputs.get("command", "build")
        if not is_unresolved(command) and command not in COMMANDS:
            return f"`command` must be one of {', '.join(COMMANDS)}."
        if inputs.get("node") is not None and not inputs.get("select"):
            return "`node` requires `select`, by which dbt finds the node."
        project = inputs.get("project")
        if isinstance(project, str) and not is_unresolved(project):
            return _project_problem(project)
        return None

    def lane(self, inputs: DbtInputs, step: Step) -> Lane:  # noqa: ARG002
        return Lane.TOOL_LOOP

    async def run(self, inputs: DbtInputs, context: StepContext) -> Any:
        from .project import DbtJob, DbtProject

        folder = _absolute(inputs.project, context)
        if (problem := _project_problem(folder)) is not None:
            raise invalid_input(problem)
        env = {name: str(value) for name, value in inputs.env.items()}
        key = (DbtProject, folder, tuple(sorted(env.items())))
        project: DbtProject = get_cached(key, lambda: DbtProject(folder, env), lambda project: project.close())
        profiles = _absolute(inputs.profiles_dir or folder, context)
        select = (inputs.select,) if isinstance(inputs.select, str) else tuple(inputs.select)

        async def store_files(names: tuple[str, ...]) -> None:
            await asyncio.to_thread(_store_files, Path(folder), names, context)

        return await project.run(DbtJob(_options(inputs, folder, profiles), select, inputs.node, context, store_files))


def _absolute(path: str, context: StepContext) -> str:
    return os.path.abspath(context.path(path))


def _project_problem(project: str) -> str | None:
    if not (Path(project) / "dbt_project.yml").is_file():
        return f"dbt_project.yml not found in {project!r}. Paths are relative to the working folder."
    return None


def _options(inputs: DbtInputs, folder: str, profiles: str) -> Any:
    from .project import InvocationOptions

    flags = ["--project-dir", folder, "--profiles-dir", profiles]
    if inputs.target is not None:
        flags += ["--target", inputs.target]
    if inputs.threads is not None:
        flags += ["--threads", str(inputs.threads)]
    if inputs.vars:
        flags += ["--vars", json.dumps(inputs.vars, sort_keys=True)]
    if inputs.full_refresh:
        flags.append("--full-refresh")
    return InvocationOptions(inputs.command, tuple(flags))


def _store_files(folder: Path, names: tuple[str, ...], context: StepContext) -> None:
    """Store files about the invocation as artifacts of the step that ended it."""
    for name in names:
        file = folder / "target" / name
        if file.is_file():
            context.keep(file, ARTIFACT_KINDS[name])
