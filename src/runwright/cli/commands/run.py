"""`run` starts or continues a run and attaches to it; `watch` shows a run that any process drives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from runwright.cli.attach import STATUS_EXIT_CODES, RunAttachment, attach_and_drive, open_reader, open_run_operations
from runwright.cli.detach import start_detached
from runwright.cli.hints import CommandHints
from runwright.cli.param_option import parse_params
from runwright.cli.run_report import RunReporter
from runwright.cli.run_view import load_run_view
from runwright.cli.session import EXIT_OK, EXIT_REFUSED, Session, command
from runwright.cli.terminal.formatting import printable
from runwright.contract.plan import ExecutionPlan
from runwright.contract.transitions import ENDED
from runwright.control.protocols import RunOperations
from runwright.control.run_scope import RunScope
from runwright.log.model import RunRow
from runwright.log.protocols import run_or_none

from .plan import load_or_show


@command("run")
@click.argument("plan_file", metavar="[PLAN]", required=False, type=click.Path(path_type=Path))
@click.option("--param", "pairs", multiple=True, metavar="K=V", help="Set a parameter of the plan. May be repeated.")
@click.option("--run-id", metavar="ID", help="Run id; an existing run is continued.")
@click.option("--tenant", metavar="ID", default="default", show_default=True, help="Tenant of the run.")
@click.option(
    "--runtime",
    type=click.Choice(["embedded", "mock"]),
    default="embedded",
    show_default=True,
    help="Runtime; mock simulates the plan without executing steps.",
)
@click.option("--detach", is_flag=True, help="Run in the background and return immediately.")
async def run_command(
    session: Session,
    plan_file: Path | None,
    pairs: tuple[str, ...],
    run_id: str | None,
    tenant: str,
    runtime: str,
    detach: bool,
) -> int:
    """Run a plan and show live progress.

    With the --run-id of an existing run, that run is continued and PLAN may be omitted. A finished run is not
    executed again: its result is shown and determines the exit code. Ctrl-C asks whether to pause, cancel or leave
    the run.
    """
    if plan_file is None:
        return await _continue_run(session, pairs, run_id, runtime, detach)
    loaded = load_or_show(session, plan_file)
    if loaded is None:
        return EXIT_REFUSED
    for warning in loaded.warnings:
        click.echo(printable(str(warning)), err=True)
    params = parse_params(loaded.plan, pairs)
    if session.server is not None:
        return await _run_on_server(session, loaded.plan, params, run_id, RunScope(tenant), detach)
    if detach and (exit_code := await start_detached(session, plan_file, pairs, run_id, tenant, runtime)) is not None:
        return exit_code
    return await _run(session, loaded.plan, params, run_id, tenant, runtime)


@command("watch")
@click.argument("run")
async def watch_command(session: Session, run: str) -> int:
    """Watch a run until it ends, without driving it. Exits with 0 if it completed, otherwise with 1."""
    async with open_reader(session) as (log, step_logs):
        row = await log.resolve_run(run)
        return await RunAttachment(session, log, step_logs, row.identity.run_id).run()


async def _run(
    session: Session, plan: ExecutionPlan, params: dict[str, Any], run_id: str | None, tenant: str, runtime: str
) -> int:
    if queues := sorted({work.dispatch["queue"] for work in plan.tool_calls() if work.dispatch is not None}):
        notice = f"Steps for task queues {', '.join(queues)} run in this process: only a server dispatches to workers."
        click.echo(printable(notice), err=True)
    async with open_run_operations(session, must_exist=False, runtime=runtime) as operations:
        before = None if run_id is None else await run_or_none(operations.log, run_id)
        run_id = await operations.start(plan, params=params, run_id=run_id, place=RunScope(tenant))
        return await _attach(session, operations, run_id, before)


async def _run_on_server(
    session: Session, plan: ExecutionPlan, params: dict[str, Any], run_id: str | None, scope: RunScope, detach: bool
) -> int:
    async with open_run_operations(session) as operations:
        before = None if run_id is None else await run_or_none(operations.log, run_id)
        run_id = await operations.start(plan, params=params, run_id=run_id, place=scope)
        if not detach:
            return await _attach(session, operations, run_id, before)
    if session.as_json:
        session.print_json({"runId": run_id})
    else:
        click.echo(printable(run_id))
        click.echo(f"  watch:  {CommandHints(session, run_id).watch}", err=True)
    return EXIT_OK


async def _continue_run(
    session: Session, pairs: tuple[str, ...], run_id: str | None, runtime: str, detach: bool
) -> int:
    if run_id is None or pairs:
        raise click.UsageError("Missing PLAN: runwright run PLAN. (`runwright init` writes a starter plan.)")
    async with session.open() as log:
        before = await log.resolve_run(run_id)
    run_id = before.identity.run_id
    tenant = before.identity.tenant_id
    if detach and session.server is None:
        exit_code = await start_detached(session, None, (), run_id, tenant, runtime)
        if exit_code is not None:
            return exit_code
    async with open_run_operations(session, runtime=runtime) as operations:
        await operations.resume(run_id)
        return await _attach(session, operations, run_id, before)


async def _attach(session: Session, operations: RunOperations, run_id: str, before: RunRow | None) -> int:
    """Attach to the run. `before`: its row before this command, None if it is new."""
    if before is None or session.as_json:
        return await attach_and_drive(session, operations, run_id)
    if before.status in ENDED:
        view = await load_run_view(operations.log, run_id)
        reporter = RunReporter(operations.log, operations.engine.step_logs, CommandHints(session, run_id))
        click.echo(await reporter.run_end(view))
        return STATUS_EXIT_CODES[view.status]
    click.echo(printable(f"Run {run_id} is {before.status}, at event {before.last_seq}."))
    return await attach_and_drive(session, operations, run_id, after=before.last_seq)
