"""`runwright plan`: validate and inspect plans without running them."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click
import msgspec

from runwright.cli.param_option import parse_params
from runwright.cli.session import EXIT_OK, EXIT_REFUSED, Session, command
from runwright.cli.terminal.formatting import is_terminal, plural, printable
from runwright.contract.capabilities import EMBEDDED_CAPABILITIES, validation_report
from runwright.contract.errors import ErrorCode, RunwrightError
from runwright.contract.plan import ExecutionPlan, Step, content_hash, plan_body, plan_version
from runwright.control.plan_loader import read_data, read_plan_file
from runwright.control.rerun_preview import preview_rerun
from runwright.plans.dbt_manifest import plan_from_manifest
from runwright.plans.problems import LoadedPlan, PlanInvalid, Problem
from runwright.tools.registry import all_tools

_file = click.argument("plan_file", metavar="PLAN", type=click.Path(path_type=Path))


@click.group("plan")
def plan_command() -> None:
    """Validate and inspect plans."""


def load_or_show(session: Session, plan_file: Path) -> LoadedPlan | None:
    """Load the plan. If it is invalid, print all problems and return None. No store is created."""
    try:
        return read_plan_file(plan_file)
    except PlanInvalid as invalid:
        show_problems(session, invalid.problems)
        return None


def show_problems(session: Session, problems: Iterable[Problem]) -> None:
    problems = list(problems)
    if session.as_json:
        report = {"status": "error", "code": problems[0].code, "detail": problems[0].sentence, "errors": problems}
        click.echo(msgspec.json.encode(report), err=True)
        return
    for problem in problems:
        click.echo(_line(problem), err=True)


def _line(problem: Problem) -> str:
    """`file:line:column: CODE sentence`, with a colored code."""
    location, code, sentence = printable(str(problem)).partition(f" {problem.code} ")
    color = "yellow" if problem.code == "WARNING" else "red"
    return f"{location} {click.style(code.strip(), fg=color, bold=True)} {sentence}"


@command("validate")
@_file
async def validate_command(session: Session, plan_file: Path) -> int:
    """Validate a plan and report all problems. Exits with 2 if there are errors; warnings alone are accepted."""
    plan: ExecutionPlan | None = None
    errors: list[Problem] = []
    warnings: list[Problem] = []
    capabilities: dict[str, Any] = {}
    try:
        loaded = read_plan_file(plan_file)
        plan, warnings = loaded.plan, list(loaded.warnings)
        capabilities = dict(validation_report(plan, "embedded", EMBEDDED_CAPABILITIES) or {})
        for warning in capabilities.get("warnings", []):
            warnings.append(Problem(str(plan_file), None, None, warning["code"], warning["message"]))
    except PlanInvalid as invalid:
        errors = list(invalid.problems)
    except RunwrightError as error:
        if error.code != ErrorCode.CAPABILITY_NOT_SUPPORTED:
            raise
        errors = [Problem(str(plan_file), None, None, error.code, error.detail)]
    if session.as_json:
        session.print_json(_report(plan, errors, warnings, capabilities))
    else:
        for problem in (*errors, *warnings):
            click.echo(_line(problem))
        if plan is not None and not errors:
            click.echo(f"{click.style('ok', fg='green', bold=True)}  {_summary(plan)}")
    return EXIT_REFUSED if errors else EXIT_OK


def _report(
    plan: ExecutionPlan | None, errors: list[Problem], warnings: list[Problem], capabilities: dict[str, Any]
) -> dict[str, Any]:
    return {
        "planId": None if plan is None else plan.plan_id,
        "planVersion": None if plan is None else plan_version(plan),
        "targetAdapter": "embedded",
        "status": "ERRORS" if errors else "WARNINGS" if warnings else "VALID",
        "capabilityChecks": capabilities.get("capabilityChecks", []),
        "errors": errors,
        "warnings": warnings,
    }


def _summary(plan: ExecutionPlan) -> str:
    return f"{printable(plan.plan_id)}: {plural(len(plan.steps), 'step')}, {plan.order}, {_hash(plan)[:16]}"


def _hash(plan: ExecutionPlan) -> str:
    return content_hash(plan_body(plan))


@command("check")
@_file
@click.option("--run", required=True, help="A finished run: an id, a unique prefix of an id, or @last.")
@click.option("--param", "pairs", multiple=True, metavar="K=V", help="Change a parameter. May be repeated.")
async def check_command(session: Session, plan_file: Path, run: str, pairs: tuple[str, ...]) -> int:
    """Show which steps of a run `rerun RUN --plan PLAN` would reuse."""
    loaded = load_or_show(session, plan_file)
    if loaded is None:
        return EXIT_REFUSED
    async with session.open() as log:
        row = await log.resolve_run(run)
        run_id = row.identity.run_id
        preview = await preview_rerun(log, row, loaded.plan, parse_params(loaded.plan, pairs))
    if session.as_json:
        session.print_json({"runId": run_id, "steps": preview})
        return EXIT_OK
    for step in preview:
        label = click.style("keep", fg="green") if step["carriedOver"] else click.style("run ", fg="yellow")
        reason = "" if step["reason"] is None else f"  {step['reason']}"
        click.echo(f"{label}  {printable(step['stepId'])}{reason}")
    kept = sum(step["carriedOver"] for step in preview)
    command = f"runwright rerun {shlex.quote(run_id)} --plan {shlex.quote(str(plan_file))}"
    click.echo(f"{kept} of {plural(len(preview), 'step')} kept. Start it: {command}")
    return EXIT_OK


@command("show")
@_file
async def show_command(session: Session, plan_file: Path) -> int:
    """Show a plan in its normalized form, with all defaults."""
    from runwright.plans.writer import plan_yaml

    loaded = load_or_show(session, plan_file)
    if loaded is None:
        return EXIT_REFUSED
    click.echo(plan_body(loaded.plan) if session.as_json else plan_yaml(loaded.plan, all_tools()).rstrip("\n"))
    return EXIT_OK


@command("hash")
@_file
async def hash_command(session: Session, plan_file: Path) -> int:
    """Show the content hash of a plan. It does not depend on the format of the source."""
    loaded = load_or_show(session, plan_file)
    if loaded is None:
        return EXIT_REFUSED
    plan = loaded.plan
    if session.as_json:
        session.print_json({"planId": plan.plan_id, "planVersion": plan_version(plan), "sha256": _hash(plan)})
    else:
        click.echo(_hash(plan))
    return EXIT_OK


@command("graph")
@_file
@click.option("--svg", is_flag=True, help="Print SVG instead of text.")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Output file [default: standard output].")
async def graph_command(session: Session, plan_file: Path, svg: bool, output: Path | None) -> int:
    """Show the graph of a plan."""
    from runwright.plans.drawing.text import graph_svg, graph_text

    loaded = load_or_show(session, plan_file)
    if loaded is None:
        return EXIT_REFUSED
    plan = loaded.plan
    text = graph_svg(plan) if svg else graph_text(plan)
    if session.as_json:
        steps = [_edges(step) for step in plan.steps]
        text = msgspec.json.encode({"planId": plan.plan_id, "order": plan.order, "steps": steps}).decode()
    _write(text, output, plan)
    return EXIT_OK


def _edges(step: Step) -> dict[str, Any]:
    """Return the dependencies of a plan step, or the arcs of a playbook step."""
    if step.route is None:
        return {"stepId": step.step_id, "dependsOn": step.depends_on}
    arcs = [{"step": arc.step} | ({} if arc.when is None else {"when": arc.when}) for arc in step.route.arcs]
    return {"stepId": step.step_id, "next": arcs}


def _write(text: str, output: Path | None, plan: ExecutionPlan) -> None:
    """Write to standard output or to a file."""
    if output is None:
        click.echo(text.rstrip("\n"))
        return
    try:
        output.write_text(text)
    except OSError as error:
        raise RunwrightError(ErrorCode.INVALID_ARGUMENT, f"Cannot write {output}: {error.strerror}.") from None
    if is_terminal():
        click.echo(f"{output}: {_summary(plan)}")


@command("import-dbt")
@click.argument("manifest", type=click.Path(path_type=Path))
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Output file [default: standard output].")
@click.option("--project", metavar="DIR", help="dbt project [default: the parent of the manifest's directory].")
@click.option("--target", metavar="NAME", help="Target of the dbt profile for every step.")
@click.option("--profiles-dir", metavar="DIR", help="Directory of profiles.yml [default: the project].")
@click.option("--gate", is_flag=True, help="Run a node only after the tests of its parents, as `dbt build` does.")
async def import_dbt_command(
    session: Session,
    manifest: Path,
    output: Path | None,
    project: str | None,
    target: str | None,
    profiles_dir: str | None,
    gate: bool,
) -> int:
    """Create a plan from the target/manifest.json of a dbt project, with a step per node."""
    from runwright.plans.writer import plan_yaml

    try:
        body = manifest.read_bytes()
    except OSError as error:
        raise RunwrightError(
            ErrorCode.PLAN_NOT_FOUND, f"Cannot read {manifest}: {error.strerror}. Create it with `dbt parse`."
        ) from None
    folder = project or os.path.relpath(manifest.resolve().parent.parent)
    options = {name: value for name, value in (("target", target), ("profilesDir", profiles_dir)) if value is not None}
    document = plan_from_manifest(body, folder, options=options, gate=gate)
    try:
        plan = read_data(document).plan
    except PlanInvalid as invalid:
        show_problems(session, invalid.problems)
        return EXIT_REFUSED
    _write(plan_body(plan).decode() if session.as_json else plan_yaml(plan, all_tools()), output, plan)
    return EXIT_OK


for _each in (validate_command, check_command, show_command, hash_command, graph_command, import_dbt_command):
    plan_command.add_command(_each)
