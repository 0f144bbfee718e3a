"""`runwright results`: show and prune results of runs, steps and tasks."""

from __future__ import annotations

import click

from runwright.cli.attach import open_run_operations
from runwright.cli.run_argument import resolve_run_id
from runwright.cli.session import EXIT_OK, Session, command
from runwright.contract.errors import ErrorCode, RunwrightError
from runwright.control.bootstrap import open_operations


@click.group("results")
def results_command() -> None:
    """Show results of runs, steps and tasks; prune expired results."""


@command("get")
@click.argument("run")
@click.argument("ref", required=False)
async def _get(session: Session, run: str, ref: str | None) -> int:
    """Print the result of a run as JSON.

    REF selects the result of a step, or of a task by its address (noetl://execution/...).
    """
    async with open_run_operations(session) as operations:
        run_id = await resolve_run_id(operations.log, run)
        value = await (operations.run_result(run_id) if ref is None else operations.result(run_id, ref))
    session.print_json(value)
    return EXIT_OK


@command("prune")
async def _prune(session: Session) -> int:
    """Delete expired results: large task results whose time to live is over or whose scope (step, run) has ended.

    The playbook sets both. A server prunes every hour.
    """
    if session.server is not None:
        detail = "Results can only be pruned on the server's machine, with --store."
        raise RunwrightError(ErrorCode.INVALID_ARGUMENT, detail)
    async with open_operations(session.store) as operations:
        outcomes = await operations.engine.prune_results()
    deleted = {name: count for name, count in outcomes.items() if isinstance(count, int)}
    if session.as_json:
        session.print_json({"deleted": deleted})
    else:
        for name, count in deleted.items():
            click.echo(f"{name}: {count:,} deleted")
    errors = [error for error in outcomes.values() if isinstance(error, RunwrightError)]
    if errors:  # The other stores are pruned.
        raise RunwrightError(errors[0].code, " ".join(error.detail for error in errors))
    return EXIT_OK


for _command in (_get, _prune):
    results_command.add_command(_command)
