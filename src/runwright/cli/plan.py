"""`runwright plan ...`: look at a plan without running it."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click
import msgspec

from runwright.contract.capabilities import EMBEDDED, validation_report
from runwright.contract.errors import ErrorCode, RunwrightError
from runwright.contract.plan import ExecutionPlan, Step, content_hash, plan_body, plan_version
from runwright.control.planfile import read_data, read_plan_file
from runwright.plans.problems import Loaded, PlanInvalid, Problem
from runwright.tools.registry import all_tools

from .render import is_terminal, plain, plural
from .session import DONE, REFUSED, Session, command

_file = click.argument("plan_file", metavar="PLAN", type=click.Path(path_type=Path))


@click.group("plan")
def plan_command() -> None:
    """Look at a plan without running it."""


def load_or_show(session: Session, plan_file: Path) -> Loaded | None:
    """The plan; None if it has problems, which are then shown, all of them. Nothing is made, not even a store."""
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
    """`file:line:column: CODE sentence`, the code in colour where there is any."""
    before, code, after = plain(str(problem)).partition(f" {problem.code} ")
    colour = "yellow" if problem.code == "WARNING" else "red"
    return f"{before} {click.style(code.strip(), fg=colour, bold=True)} {after}"


@command("validate")
@_file
async def validate_command(session: Session, plan_file: Path) -> int:
    """Find everything that is wrong with a plan. Warnings alone are no failure."""
    plan: ExecutionPlan | None = None
    errors: list[Problem] = []
    warnings: list[Problem] = []
    checks: dict[str, Any] = {}
    try:
        loaded = read_plan_file(plan_file)
        plan, warnings = loaded.plan, list(loaded.warnings)
        checks = dict(validation_report(plan, "embedded", EMBEDDED) or {})
        for warning in checks.get("warnings", []):
            warnings.append(Problem(str(plan_file), None, None, warning["code"], warning["message"]))
    except PlanInvalid as invalid:
        errors = list(invalid.problems)
    except RunwrightError as error:
        if error.code != ErrorCode.CAPABILITY_NOT_SUPPORTED:
            raise
        errors = [Problem(str(plan_file), None, None, error.code, error.detail)]
    if session.as_json:
        session.print_json(_report(plan, errors, warnings, checks))
    else:
        for problem in (*errors, *warnings):
            click.echo(_line(problem))
        if plan is not None and not errors:
            click.echo(f"{click.style('ok', fg='green', bold=True)}  {_gist(plan)}")
    return REFUSED if errors else DONE


def _report(
    plan: ExecutionPlan | None, errors: list[Problem], warnings: list[Problem], checks: dict[str, Any]
) -> dict[str, Any]:
    return {
        "planId": None if plan is None else plan.plan_id,
        "planVersion": None if plan is None else plan_version(plan),
        "targetAdapter": "embedded",
        "status": "ERRORS" if errors else "WARNINGS" if warnings else "VALID",
        "capabilityChecks": checks.get("capabilityChecks", []),
        "errors": errors,
        "warnings": warnings,
    }


def _gist(plan: ExecutionPlan) -> str:
    return f"{plain(plan.plan_id)}: {plural(len(plan.steps), 'step')}, {plan.order}, {_hash(plan)[:16]}"


def _hash(plan: ExecutionPlan) -> str:
    return content_hash(plan_body(plan))


@command("show")
@_file
async def show_command(session: Session, plan_file: Path) -> int:
    """Show a plan in full, as Runwright understands it."""
    from runwright.plans.write import plan_yaml

    loaded = load_or_show(session, plan_file)
    if loaded is None:
        return REFUSED
    click.echo(plan_body(loaded.plan) if session.as_json else plan_yaml(loaded.plan, all_tools()).rstrip("\n"))
    return DONE


@command("hash")
@_file
async def hash_command(session: Session, plan_file: Path) -> int:
    """Show the hash of a plan's content: the same plan has the same hash, however it is written."""
    loaded = load_or_show(session, plan_file)
    if loaded is None:
        return REFUSED
    plan = loaded.plan
    if session.as_json:
        session.print_json({"planId": plan.plan_id, "planVersion": plan_version(plan), "sha256": _hash(plan)})
    else:
        click.echo(_hash(plan))
    return DONE


@command("graph")
@_file
@click.option("--svg", is_flag=True, help="As a picture (SVG) instead of text.")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Write it here instead of to standard output.")
async def graph_command(session: Session, plan_file: Path, svg: bool, output: Path | None) -> int:
    """Show which step comes after which."""
    from runwright.plans.graph import graph_svg, graph_text

    loaded = load_or_show(session, plan_file)
    if loaded is None:
        return REFUSED
    plan = loaded.plan
    drawn = graph_svg(plan) if svg else graph_text(plan)
    if session.as_json:
        steps = [_edges(step) for step in plan.steps]
        drawn = msgspec.json.encode({"planId": plan.plan_id, "order": plan.order, "steps": steps}).decode()
    _put(drawn, output, plan)
    return DONE


def _edges(step: Step) -> dict[str, Any]:
    """What comes before a step of a plan; what comes after one of a playbook."""
    if step.route is None:
        return {"stepId": step.step_id, "dependsOn": step.depends_on}
    arcs = [{"step": arc.step} | ({} if arc.when is None else {"when": arc.when}) for arc in step.route.arcs]
    return {"stepId": step.step_id, "next": arcs}


def _put(text: str, output: Path | None, plan: ExecutionPlan) -> None:
    """To standard output, or to a file."""
    if output is None:
        click.echo(text.rstrip("\n"))
        return
    try:
        output.write_text(text)
    except OSError as error:
        raise RunwrightError(ErrorCode.INVALID_ARGUMENT, f"{output} cannot be written: {error.strerror}.") from None
    if is_terminal():
        click.echo(f"{output}: {_gist(plan)}")


@command("import-dbt")
@click.argument("manifest", type=click.Path(path_type=Path))
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Write it here instead of to standard output.")
@click.option("--project", metavar="DIR", help="The dbt project. Default: the folder above the manifest's.")
@click.option("--target", metavar="NAME", help="The target of the profile that every step uses.")
@click.option("--profiles-dir", metavar="DIR", help="Where profiles.yml is. Default: the project.")
@click.option("--gate", is_flag=True, help="What builds on a node waits for the node's tests, as in `dbt build`.")
async def import_dbt_command(
    session: Session,
    manifest: Path,
    output: Path | None,
    project: str | None,
    target: str | None,
    profiles_dir: str | None,
    gate: bool,
) -> int:
    """Make a plan of a dbt project, from its target/manifest.json: each node a step."""
    from runwright.plans.dbt import plan_of_manifest
    from runwright.plans.write import plan_yaml

    try:
        body = manifest.read_bytes()
    except OSError as error:
        raise RunwrightError(
            ErrorCode.PLAN_NOT_FOUND, f"{manifest} cannot be read: {error.strerror}. `dbt parse` writes it."
        ) from None
    folder = project or os.path.relpath(manifest.resolve().parent.parent)
    options = {name: value for name, value in (("target", target), ("profilesDir", profiles_dir)) if value is not None}
    document = plan_of_manifest(body, folder, options=options, gate=gate)
    try:
        plan = read_data(document).plan
    except PlanInvalid as invalid:
        show_problems(session, invalid.problems)
        return REFUSED
    _put(plan_body(plan).decode() if session.as_json else plan_yaml(plan, all_tools()), output, plan)
    return DONE


for _each in (validate_command, show_command, hash_command, graph_command, import_dbt_command):
    plan_command.add_command(_each)
