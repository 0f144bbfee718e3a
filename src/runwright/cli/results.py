"""Results: what runs, steps and tasks gave back, and what of it may be deleted."""

from __future__ import annotations

import click

from runwright.contract.errors import ErrorCode, RunwrightError
from runwright.control.open import open_operations

from .accompany import engine
from .session import DONE, Session, command


@click.group("results")
def results_command() -> None:
    """See what a run, a step or a task gave back, and delete what nobody wants any more."""


@command("get")
@click.argument("run")
@click.argument("ref", required=False)
async def _get(session: Session, run: str, ref: str | None) -> int:
    """Print what a run gave back, as JSON; or a step of it, or the task's result that an address names
    (noetl://execution/...)."""
    async with engine(session) as operations:
        run_id = (await operations.log.resolve(run)).identity.run_id
        value = await (operations.run_result(run_id) if ref is None else operations.result(run_id, ref))
    session.print_json(value)
    return DONE


@command("prune")
async def _prune(session: Session) -> int:
    """Delete large results of tasks whose time is over, or whose step or run has ended, by the scope and the time that
    the playbook gave them. A server does so every hour."""
    if session.server is not None:
        raise RunwrightError(ErrorCode.INVALID_ARGUMENT, "Prune where the results lie: on the server's machine.")
    async with open_operations(session.store) as operations:
        gone = await operations.engine.prune_results()
    deleted = {name: count for name, count in gone.items() if isinstance(count, int)}
    if session.as_json:
        session.print_json({"deleted": deleted})
    else:
        for name, count in deleted.items():
            click.echo(f"{name}: {count:,} deleted")
    troubles = [error for error in gone.values() if isinstance(error, RunwrightError)]
    if troubles:  # the others are done
        raise RunwrightError(troubles[0].code, " ".join(error.detail for error in troubles))
    return DONE


for _command in (_get, _prune):
    results_command.add_command(_command)
