"""Moving runs between stores: export, import."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from typing import Any

import click
import msgspec

from runwright.contract.errors import ErrorCode, RunwrightError
from runwright.contract.events import Refusal
from runwright.log.noetl_import import Home, NoetlImporter
from runwright.log.transfer import Importer, export_run

from .append import Lines, report
from .render import plural
from .session import DONE, REFUSED, Session, command


async def _batches(source: str, shape: str) -> AsyncIterator[list[tuple[int, bytes]]]:
    """Lines with their numbers. A file of NoETL's is read whole: its events are taken in the order of their `seq`."""
    batches = Lines(source).batches()
    if shape != "noetl" or source == "-":
        async for batch in batches:
            yield batch
    else:
        yield [line async for batch in batches for line in batch]


@command("export")
@click.argument("run")
async def export_command(session: Session, run: str) -> int:
    """Write a run's events to standard output, one JSON object (a RunEventRecord) a line."""
    async with session.open() as log:
        row = await log.resolve(run)
        async for line in export_run(log, row.identity.run_id):
            sys.stdout.buffer.write(line + b"\n")
    sys.stdout.buffer.flush()
    return DONE


@command("import")
@click.argument("source", metavar="FILE|-")
@click.option("--format", "shape", type=click.Choice(["runevents", "noetl"]), default="runevents", show_default=True)
@click.option("--tenant", metavar="ID", help="Whose the runs are, where their events do not say (noetl).")
@click.option("--project", metavar="ID", help="The same for the project.")
@click.option("--environment", metavar="ID", help="The same for the environment.")
@click.option("--plan", metavar="ID", help="The plan of runs whose events name no playbook.")
async def import_command(session: Session, source: str, shape: str, **home: str | None) -> int:
    """Take in events from another log: records as `export` writes them, RunEventWrites, or streams of before v2.

    With --format noetl, events in the words of the NoETL event model, one JSON object a line; names of earlier models
    are brought to today's. Events of a file that have a `seq` are taken in its order.

    Illegal transitions are stored and marked, not refused: the run is shown as INCONSISTENT, with an alert.
    Importing the same file again adds nothing. Exits with 2 if any line was refused.
    """
    given = {f"{name}_id": value for name, value in home.items() if value is not None}
    if given and shape != "noetl":
        raise RunwrightError(ErrorCode.INVALID_ARGUMENT, "The events say where they belong; leave that to them.")
    refusals = appended = duplicates = 0
    kept: list[dict[str, Any]] = []
    async with session.open(must_exist=False) as log:
        importer = NoetlImporter(log, Home(**given)) if shape == "noetl" else Importer(log)
        async for batch in _batches(source, shape):
            outcomes = await importer.take([line for _, line in batch])
            appended += sum(outcome.status == "appended" for outcome in outcomes)
            duplicates += sum(outcome.status == "duplicate" for outcome in outcomes)
            told = [place for place, outcome in enumerate(outcomes) if isinstance(outcome, Refusal)]
            numbers, refused = [batch[place][0] for place in told], [outcomes[place] for place in told]
            refusals += len(refused)
            if session.as_json:
                kept += [{**msgspec.to_builtins(o), "line": n} for n, o in zip(numbers, refused, strict=True)]
            else:
                report(session, numbers, refused)
    if session.as_json:
        session.print_json({"imported": appended, "duplicates": duplicates, "refused": kept})
    else:
        click.echo(f"{plural(appended, 'event')} imported, {duplicates:,} there before, {refusals:,} refused")
    return REFUSED if refusals else DONE
