"""`rerun` starts a new run from a finished one; `recover` drives abandoned runs."""

from __future__ import annotations

import asyncio
from pathlib import Path

import click

from runwright.cli.attach import attach_and_drive, open_run_operations
from runwright.cli.follower import capture_warnings
from runwright.cli.outputs import StdoutWriter
from runwright.cli.param_option import parse_params
from runwright.cli.recover_runs import RunRecovery
from runwright.cli.run_view import plan_of_run
from runwright.cli.session import EXIT_OK, EXIT_REFUSED, Session, command
from runwright.cli.terminal.formatting import printable
from runwright.cli.terminal.input import Interrupts
from runwright.contract.transitions import ENDED, RunStatus
from runwright.control.bootstrap import open_operations
from runwright.control.operations import Operations
from runwright.log.model import RunFilter

from .plan import load_or_show


@command("rerun")
@click.argument("run")
@click.option("--from", "from_step", metavar="STEP", help="Rerun this step and all steps after it.")
@click.option("--force", is_flag=True, help="Rerun all steps, including successful ones.")
@click.option("--run-id", metavar="ID", help="Id of the new run.")
@click.option(
    "--plan", "plan_file", metavar="FILE", type=click.Path(path_type=Path), help="A corrected plan for the new run."
)
@click.option("--param", "pairs", multiple=True, metavar="K=V", help="Change a parameter. May be repeated.")
async def rerun_command(
    session: Session,
    run: str,
    from_step: str | None,
    force: bool,
    run_id: str | None,
    plan_file: Path | None,
    pairs: tuple[str, ...],
) -> int:
    """Start a new run from a finished one, reusing successful steps.

    The new run refers to the old one, which does not change. With --plan, steps whose definition and inputs are
    unchanged are reused: `runwright plan check FILE --run RUN` lists them. A playbook starts from the beginning.
    """
    loaded = None
    if plan_file is not None and (loaded := load_or_show(session, plan_file)) is None:
        return EXIT_REFUSED
    async with open_run_operations(session) as operations:
        row = await operations.log.resolve_run(run)
        origin = row.identity.run_id
        plan = None if loaded is None else loaded.plan
        known = plan or await plan_of_run(operations.log, origin)
        params = {} if known is None else parse_params(known, pairs)
        new_run_id = await operations.rerun(
            origin, from_step=from_step, force=force, new_id=run_id, plan=plan, params=params
        )
        if not session.as_json:
            click.echo(printable(f"Run {new_run_id}, rerun of {origin}."))
        return await attach_and_drive(session, operations, new_run_id)


@command("recover")
async def recover_command(session: Session) -> int:
    """Recover abandoned runs and run them to completion.

    A run is abandoned if its process died or was stopped.
    """
    if session.server is not None:
        click.echo("Servers recover abandoned runs automatically.", err=True)
        return EXIT_OK
    session.open_store()  # Raises if the store does not exist; nothing is opened yet.
    async with open_operations(session.store) as operations:
        recovery = RunRecovery(session, operations)
        with Interrupts() as interrupts, capture_warnings(recovery.notices):
            recovering = asyncio.create_task(recovery.run_to_end())
            interrupt = asyncio.create_task(interrupts.next())
            await asyncio.wait({recovering, interrupt}, return_when=asyncio.FIRST_COMPLETED)
            if not recovering.done():
                recovering.cancel()
                await asyncio.gather(recovering, return_exceptions=True)
                message = "Detached from all runs. Continue with: runwright recover"
                await StdoutWriter().write(message, err=session.as_json)
                return 128 + interrupt.result()
            interrupt.cancel()
            await recovering
        if session.as_json:
            runs = [{"runId": name, "status": str(status)} for name, status in recovery.ended.items()]
            session.print_json({"runs": runs})
        elif not recovery.ended:
            click.echo(await _nothing_to_recover(operations))
    return EXIT_OK


async def _nothing_to_recover(operations: Operations) -> str:
    """Explain why there is nothing to recover; runs that wait for a time are mentioned."""
    log, now = operations.log, operations.log.clock.now()
    page = await log.list_runs(RunFilter(RunStatus.RUNNING), limit=1000)
    due_times = [
        row.wake_at for row in page.runs if row.owner is None and row.wake_at is not None and row.wake_at > now
    ]
    if not due_times:
        return "Nothing to recover: every run has ended, is paused, or is driven by a live process."
    assert all(row.status not in ENDED for row in page.runs)
    seconds = (min(due_times) - now) / 1e6
    runs = "1 run is waiting" if len(due_times) == 1 else f"{len(due_times):,} runs are waiting"
    return f"Nothing to recover yet: {runs}; the first is due in {seconds:.0f} s."
