"""`runwright run`: start a run, or take one up, and stay with it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from runwright.contract.plan import ExecutionPlan
from runwright.contract.transitions import ENDED
from runwright.control.interface import RunOperations
from runwright.control.operations import Place
from runwright.log.model import RunRow
from runwright.log.reader import run_or_none

from .accompany import EXIT_CODES, drive, engine
from .detach import start_apart
from .hints import Commands
from .params import read_params
from .plan import load_or_show
from .render import plain
from .report import Reporter
from .session import DONE, REFUSED, Session, command
from .story import tell_story


@command("run")
@click.argument("plan_file", metavar="[PLAN]", required=False, type=click.Path(path_type=Path))
@click.option("--param", "given", multiple=True, metavar="K=V", help="Set a parameter of the plan. May be repeated.")
@click.option("--run-id", metavar="ID", help="The run's name; a run that exists is taken up where it is.")
@click.option("--tenant", metavar="ID", default="default", show_default=True, help="Whose run this is.")
@click.option(
    "--runtime",
    type=click.Choice(["embedded", "mock"]),
    default="embedded",
    show_default=True,
    help="What runs it; mock plays the plan without carrying anything out.",
)
@click.option("--detach", is_flag=True, help="Run it in the background and return at once.")
async def run_command(
    session: Session,
    plan_file: Path | None,
    given: tuple[str, ...],
    run_id: str | None,
    tenant: str,
    runtime: str,
    detach: bool,
) -> int:
    """Run a plan and show how it goes.

    With --run-id of a run that exists, go on with that run; PLAN may then be left out. One that has ended is not
    run again: how it ended is shown, and is the exit code. Ctrl-C asks whether to pause, cancel or leave it.
    """
    if plan_file is None:
        return await _take_up(session, given, run_id, runtime, detach)
    loaded = load_or_show(session, plan_file)
    if loaded is None:
        return REFUSED
    for warning in loaded.warnings:
        click.echo(plain(str(warning)), err=True)
    params = read_params(loaded.plan, given)
    if session.server is not None:
        return await _ask_server(session, loaded.plan, params, run_id, Place(tenant), detach)
    if detach and (started := await start_apart(session, plan_file, given, run_id, tenant, runtime)) is not None:
        return started
    return await _run(session, loaded.plan, params, run_id, tenant, runtime)


async def _run(
    session: Session, plan: ExecutionPlan, params: dict[str, Any], run_id: str | None, tenant: str, runtime: str
) -> int:
    if queues := sorted({work.dispatch["queue"] for work in plan.work() if work.dispatch is not None}):
        told = f"What is for workers of {', '.join(queues)} is carried out here: only a server hands it to workers."
        click.echo(plain(told), err=True)
    async with engine(session, must_exist=False, runtime=runtime) as operations:
        before = None if run_id is None else await run_or_none(operations.log, run_id)
        run_id = await operations.start(plan, params=params, run_id=run_id, place=Place(tenant))
        return await _stay(session, operations, run_id, before)


async def _ask_server(
    session: Session, plan: ExecutionPlan, params: dict[str, Any], run_id: str | None, place: Place, detach: bool
) -> int:
    async with engine(session) as operations:
        before = None if run_id is None else await run_or_none(operations.log, run_id)
        run_id = await operations.start(plan, params=params, run_id=run_id, place=place)
        if not detach:
            return await _stay(session, operations, run_id, before)
    if session.as_json:
        session.print_json({"runId": run_id})
    else:
        click.echo(plain(run_id))
        click.echo(f"  watch:  {Commands(session, run_id).watch}", err=True)
    return DONE


async def _take_up(session: Session, given: tuple[str, ...], run_id: str | None, runtime: str, detach: bool) -> int:
    if run_id is None or given:
        raise click.UsageError("Name a plan: runwright run PLAN. (`runwright init` writes one to start from.)")
    async with session.open() as log:
        before = await log.resolve(run_id)
    run_id = before.identity.run_id
    tenant = before.identity.tenant_id
    apart = detach and session.server is None
    if apart and (started := await start_apart(session, None, (), run_id, tenant, runtime)) is not None:
        return started
    async with engine(session, runtime=runtime) as operations:
        await operations.take_up(run_id)
        return await _stay(session, operations, run_id, before)


async def _stay(session: Session, operations: RunOperations, run_id: str, before: RunRow | None) -> int:
    """`before`: the run as it was when we came, if it was there."""
    if before is None or session.as_json:
        return await drive(session, operations, run_id)
    if before.status in ENDED:
        story = await tell_story(operations.log, run_id)
        reporter = Reporter(operations.log, operations.engine.step_logs, Commands(session, run_id))
        click.echo(await reporter.of_end(story))
        return EXIT_CODES[story.status]
    click.echo(plain(f"Run {run_id} is {before.status}, at event {before.last_seq}."))
    return await drive(session, operations, run_id, after=before.last_seq)
