"""`export` and `import`: move runs between stores."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from typing import Any

import click
import msgspec

from runwright.cli.session import EXIT_OK, EXIT_REFUSED, Session, command
from runwright.cli.terminal.formatting import plural
from runwright.contract.errors import ErrorCode, RunwrightError
from runwright.contract.events import Refusal
from runwright.log.export_import import Importer, export_run
from runwright.log.noetl_importer import ImportTarget, NoetlImporter

from .append import InputLine, LineReader, print_outcomes


async def _batches(source: str, event_format: str) -> AsyncIterator[list[InputLine]]:
    """Yield batches of lines. A NoETL file is one batch, because its events are imported in the order of `seq`."""
    batches = LineReader(source).batches()
    if event_format != "noetl" or source == "-":
        async for batch in batches:
            yield batch
    else:
        yield [line async for batch in batches for line in batch]


@command("export")
@click.argument("run")
async def export_command(session: Session, run: str) -> int:
    """Export the events of a run to standard output as JSON lines (RunEventRecord)."""
    async with session.open() as log:
        row = await log.resolve_run(run)
        async for line in export_run(log, row.identity.run_id):
            sys.stdout.buffer.write(line + b"\n")
    sys.stdout.buffer.flush()
    return EXIT_OK


@command("import")
@click.argument("source", metavar="FILE|-")
@click.option(
    "--format",
    "event_format",
    type=click.Choice(["runevents", "noetl"]),
    default="runevents",
    show_default=True,
    help="Event format.",
)
@click.option("--tenant", metavar="ID", help="Tenant of runs whose events name none (noetl only).")
@click.option("--project", metavar="ID", help="Project of runs whose events name none (noetl only).")
@click.option("--environment", metavar="ID", help="Environment of runs whose events name none (noetl only).")
@click.option("--plan", metavar="ID", help="Plan of runs whose events name no playbook (noetl only).")
async def import_command(session: Session, source: str, event_format: str, **scope: str | None) -> int:
    """Import events from another log: records written by `export`, RunEventWrites, or streams from before v2.

    With --format noetl, JSON lines of the NoETL event model; names of earlier versions of the model are converted.
    Events of a file with a `seq` are imported in that order.

    Illegal transitions are stored and marked, not refused: the run is shown as INCONSISTENT, with an alert.
    Importing is idempotent. Exits with 2 if any line was refused.
    """
    defaults = {f"{name}_id": value for name, value in scope.items() if value is not None}
    if defaults and event_format != "noetl":
        detail = "--tenant, --project, --environment and --plan require --format noetl."
        raise RunwrightError(ErrorCode.INVALID_ARGUMENT, detail)
    refusals = appended = duplicates = 0
    documents: list[dict[str, Any]] = []
    async with session.open(must_exist=False) as log:
        importer = NoetlImporter(log, ImportTarget(**defaults)) if event_format == "noetl" else Importer(log)
        async for batch in _batches(source, event_format):
            outcomes = await importer.import_lines([line.content for line in batch])
            appended += sum(outcome.status == "appended" for outcome in outcomes)
            duplicates += sum(outcome.status == "duplicate" for outcome in outcomes)
            indexes = [index for index, outcome in enumerate(outcomes) if isinstance(outcome, Refusal)]
            numbers, refused = [batch[index].number for index in indexes], [outcomes[index] for index in indexes]
            refusals += len(refused)
            if session.as_json:
                documents += [{**msgspec.to_builtins(o), "line": n} for n, o in zip(numbers, refused, strict=True)]
            else:
                print_outcomes(session, numbers, refused)
    if session.as_json:
        session.print_json({"imported": appended, "duplicates": duplicates, "refused": documents})
    else:
        click.echo(f"{plural(appended, 'event')} imported, {plural(duplicates, 'duplicate')}, {refusals:,} refused")
    return EXIT_REFUSED if refusals else EXIT_OK
