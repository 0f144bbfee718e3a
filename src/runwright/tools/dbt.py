"""A step that is a node of a dbt project, or a selection of nodes."""

from __future__ import annotations

import asyncio
import json
import os
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from runwright.contract.plan import Step

from .base import Lane, StepContext, StepError, is_open
from .pooled import pooled

if TYPE_CHECKING:
    from .dbt_project import DbtProject

COMMANDS = ("build", "run", "test", "seed", "snapshot", "compile")
KINDS = {"run_results.json": "dbt-run-results", "manifest.json": "dbt-manifest"}
"""What dbt's files are as artifacts."""


class DbtInputs(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    project: str
    select: str | list[str] = []
    node: str | None = None
    """The one node that this step is, by its unique id. Steps with one share invocations."""
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
            return "This installation has no dbt: install `runwright[dbt]` and an adapter, such as dbt-duckdb."
        command = inputs.get("command", "build")
        if not is_open(command) and command not in COMMANDS:
            return f"`command` is one of {', '.join(COMMANDS)}."
        if inputs.get("node") is not None and not inputs.get("select"):
            return "A step with `node` needs `select`, by which dbt finds it."
        project = inputs.get("project")
        if isinstance(project, str) and not is_open(project):
            return _project_trouble(project)
        return None

    def lane(self, inputs: DbtInputs, step: Step) -> Lane:  # noqa: ARG002
        return Lane.TOOL_LOOP

    async def run(self, inputs: DbtInputs, context: StepContext) -> Any:
        from .dbt_project import DbtProject, Job

        if (trouble := _project_trouble(inputs.project)) is not None:
            raise StepError("INVALID_INPUT", trouble, retryable=False)
        folder = _absolute(inputs.project)
        env = {name: str(value) for name, value in inputs.env.items()}
        key = (DbtProject, folder, tuple(sorted(env.items())))
        project: DbtProject = pooled(key, lambda: DbtProject(folder, env), lambda project: project.close())
        select = (inputs.select,) if isinstance(inputs.select, str) else tuple(inputs.select)

        async def keep(names: tuple[str, ...]) -> None:
            await asyncio.to_thread(_keep_files, Path(folder), names, context)

        return await project.run(Job(_options(inputs, folder), select, inputs.node, context, keep))


def _project_trouble(project: str) -> str | None:
    if not (Path(project) / "dbt_project.yml").is_file():
        return f"There is no dbt project in {project!r}: no dbt_project.yml. Paths count from the working folder."
    return None


def _absolute(path: str) -> str:
    return os.path.abspath(path)


def _options(inputs: DbtInputs, folder: str) -> Any:
    from .dbt_project import Options

    flags = ["--project-dir", folder, "--profiles-dir", _absolute(inputs.profiles_dir or folder)]
    if inputs.target is not None:
        flags += ["--target", inputs.target]
    if inputs.threads is not None:
        flags += ["--threads", str(inputs.threads)]
    if inputs.vars:
        flags += ["--vars", json.dumps(inputs.vars, sort_keys=True)]
    if inputs.full_refresh:
        flags.append("--full-refresh")
    return Options(inputs.command, tuple(flags))


def _keep_files(folder: Path, names: tuple[str, ...], context: StepContext) -> None:
    """What dbt wrote about the invocation, as artifacts of the step that ended it."""
    for name in names:
        file = folder / "target" / name
        if file.is_file():
            context.keep(file, KINDS[name])
