"""New life for old runs: `rerun` makes a new run from one that ended, `recover` goes on with those that were left."""

from __future__ import annotations

import asyncio

import click

from runwright.contract.transitions import ENDED, RunStatus
from runwright.control.open import open_operations
from runwright.control.operations import Operations
from runwright.log.model import RunFilter

from .accompany import drive, engine
from .follow import overheard
from .interrupt import Interrupts
from .outlet import Pipe
from .recovery import Recovery
from .render import plain
from .session import DONE, Session, command


@command("rerun")
@click.argument("run")
@click.option("--from", "from_step", metavar="STEP", help="Run this step and all after it again.")
@click.option("--force", is_flag=True, help="Run everything again, also what succeeded.")
@click.option("--run-id", metavar="ID", help="The new run's name.")
async def rerun_command(session: Session, run: str, from_step: str | None, force: bool, run_id: str | None) -> int:
    """Make a new run from one that has ended; what succeeded is carried over, unless --force.

    The new run names the old one, which stays as it is. A playbook begins anew.
    """
    async with engine(session) as operations:
        row = await operations.log.resolve(run)
        origin = row.identity.run_id
        made = await operations.rerun(origin, from_step=from_step, force=force, new_id=run_id)
        if not session.as_json:
            click.echo(plain(f"Run {made}, made from {origin}."))
        return await drive(session, operations, made)


@command("recover")
async def recover_command(session: Session) -> int:
    """Take over runs whose process died or was stopped, and drive them to their end."""
    if session.server is not None:
        click.echo("A server takes over runs by itself.", err=True)
        return DONE
    session.open_store()  # says what is missing; opens nothing yet
    async with open_operations(session.store) as operations:
        recovery = Recovery(session, operations)
        with Interrupts() as interrupts, overheard(recovery.notices):
            working = asyncio.create_task(recovery.to_the_end())
            came = asyncio.create_task(interrupts.next())
            await asyncio.wait({working, came}, return_when=asyncio.FIRST_COMPLETED)
            if not working.done():
                working.cancel()
                await asyncio.gather(working, return_exceptions=True)
                await Pipe().write("Left as they are; `runwright recover` goes on.", err=session.as_json)
                return 128 + came.result()
            came.cancel()
            await working
        if session.as_json:
            session.print_json({"runs": [{"runId": name, "status": str(how)} for name, how in recovery.ended.items()]})
        elif not recovery.ended:
            click.echo(await _nothing(operations))
    return DONE


async def _nothing(operations: Operations) -> str:
    """Nothing to take over; but perhaps something to know."""
    log, now = operations.log, operations.log.clock.now()
    page = await log.list_runs(RunFilter(RunStatus.RUNNING), limit=1000)
    later = [row.wake_at for row in page.runs if row.owner is None and row.wake_at is not None and row.wake_at > now]
    if not later:
        return "Nothing to take over: every run has ended, is paused, or is driven by a live process."
    assert all(row.status not in ENDED for row in page.runs)
    seconds = (min(later) - now) / 1e6
    which = "a run waits" if len(later) == 1 else f"{len(later):,} runs wait"
    return f"Nothing to take over yet: {which}, the first of them for another {seconds:.0f} s."
