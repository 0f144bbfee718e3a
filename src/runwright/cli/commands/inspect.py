"""`list`, `show`, `events` and `alerts`: inspect runs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import click
import msgspec

from runwright.cli.run_argument import resolve_run_id
from runwright.cli.run_view import plan_of_run
from runwright.cli.session import EXIT_OK, Session, command
from runwright.cli.terminal.formatting import (
    bold,
    format_duration,
    format_elapsed,
    format_time,
    is_terminal,
    plural,
    print_table,
    printable,
    styled_status,
)
from runwright.contract.errors import ErrorCode, RunwrightError
from runwright.contract.events import RunEventRecord
from runwright.contract.noetl.view import noetl_event, parse_event_types
from runwright.contract.plan import ExecutionPlan
from runwright.contract.snapshot import RunSnapshot, StepSnapshot
from runwright.contract.timestamps import from_micros
from runwright.contract.transitions import ENDED, RunStatus
from runwright.control.run_views import undriven_runs
from runwright.control.time_text import parse_time
from runwright.log.model import EventFilter, RunFilter, RunRow
from runwright.log.protocols import LogReader


@command("list")
@click.option(
    "--status",
    type=click.Choice([str(value) for value in RunStatus], case_sensitive=False),
    help="Only runs with this status.",
)
@click.option("--plan", metavar="ID", help="Only runs of this plan.")
@click.option("--tenant", metavar="ID", help="Only runs of this tenant.")
@click.option("--since", metavar="TIME", help="Only runs created since (2h, or RFC 3339).")
@click.option("--limit", default=50, show_default=True, type=click.IntRange(1), help="Maximum number of runs.")
async def list_command(
    session: Session, status: str | None, plan: str | None, tenant: str | None, since: str | None, limit: int
) -> int:
    """List runs, newest first."""
    async with session.open() as log:
        after = None if since is None else parse_time(since, log.clock.now())
        run_filter = RunFilter(None if status is None else RunStatus(status.upper()), plan, tenant, after)
        rows = [row async for row in _read_runs(log, run_filter, limit)]
        undriven = await undriven_runs(log, rows)
    documents = [{**row.to_json(), **undriven.get(row.identity.run_id, {})} for row in rows]
    if session.as_json:
        for document in documents:
            session.print_json(document)
        return EXIT_OK
    if not rows:
        click.echo("No runs.")
        return EXIT_OK
    print_table(
        ("RUN", "STATUS", "PLAN", "STEPS", "EVENTS", "STARTED", "DURATION"), [_list_row(row) for row in documents]
    )
    return EXIT_OK


async def _read_runs(log: LogReader, run_filter: RunFilter, limit: int) -> AsyncIterator[RunRow]:
    cursor: str | None = None
    while limit > 0:
        page = await log.list_runs(run_filter, cursor=cursor, limit=min(limit, 1000))
        for row in page.runs:
            yield row
        limit -= len(page.runs)
        cursor = page.cursor
        if cursor is None:
            return


def _list_row(document: dict[str, Any]) -> tuple[str, ...]:
    status = [document["status"], document["substatus"] or "", "INCONSISTENT" if document["inconsistent"] else ""]
    done = document["completedSteps"] + document["skippedSteps"]
    return (
        document["runId"],
        " ".join(filter(None, status)),
        document["planId"],
        f"{done}/{document['totalSteps']}",
        str(document["lastEventSeq"]),
        format_time(document["startedAt"]),
        format_elapsed(document["startedAt"], document["completedAt"]),
    )


@command("show")
@click.argument("run")
@click.option("--at", metavar="SEQ|TIME", help="Show the run as of this event or time (2h, or RFC 3339).")
async def show_command(session: Session, run: str, at: str | None) -> int:
    """Show a run. RUN is an id, a unique prefix of an id, or @last."""
    async with session.open() as log:
        row = await log.resolve_run(run)
        point: int | str | None = at
        if at is not None and at.isascii() and at.isdecimal():
            point = int(at)
        elif at is not None:
            point = from_micros(parse_time(at, log.clock.now()))
        snapshot = await log.snapshot(row.identity.run_id, at=point)
        if at is None and (undriven := await undriven_runs(log, [row])):
            snapshot = msgspec.structs.replace(snapshot, **undriven[row.identity.run_id])
        plan = None if session.as_json else await plan_of_run(log, row.identity.run_id)
        alerts = await log.alerts(row.identity.run_id)
    if session.as_json:
        session.print_json(snapshot.to_json())
        return EXIT_OK
    _show_run(snapshot, row.last_seq, plan)
    for alert in alerts:
        click.echo(f"{click.style(f'{alert.severity} {alert.code}', fg='red', bold=True)} {printable(alert.detail)}")
    return EXIT_OK


def short_version(version: str) -> str:
    """Abbreviate a version that is a content hash."""
    return f"{version[:12]}…" if len(version) == 64 else version


def _show_run(snapshot: RunSnapshot, last_seq: int, plan: ExecutionPlan | None) -> None:
    at = "" if snapshot.last_event_seq == last_seq else f"  (as of event {snapshot.last_event_seq} of {last_seq})"
    status = styled_status(snapshot.status) + (f" {snapshot.substatus}" if snapshot.substatus else "")
    click.echo(f"{bold(printable(snapshot.run_id))}  {status}{at}")
    details = [
        f"plan {snapshot.plan_id} {short_version(snapshot.plan_version)}",
        plural(snapshot.last_event_seq, "event"),
        f"started {format_time(snapshot.started_at)}" if snapshot.started_at else "",
        f"duration {format_duration(snapshot.total_duration_ms)}" if snapshot.total_duration_ms is not None else "",
        plural(snapshot.pauses, "pause") if snapshot.pauses else "",
        f"rerun of {snapshot.origin_run_id}" if snapshot.origin_run_id else "",
    ]
    click.echo(printable("  ".join(filter(None, details))))
    if snapshot.message:
        click.echo(snapshot.message)
    if snapshot.reason:
        click.echo(printable(f"reason: {snapshot.reason}"))
    if snapshot.root_cause is not None:
        cause = snapshot.root_cause
        step = f" in step {cause.step_id}" if cause.step_id else ""
        click.echo(printable(f"cause: {cause.code or 'unknown'}{step} {cause.message or ''}".rstrip()))
    if snapshot.inconsistent:
        click.echo(styled_status("INCONSISTENT") + " the log contains illegal transitions, which were ignored")
    rows = [_step_row(step) for step in snapshot.steps]
    # The snapshot has only steps that events name; the others are pending.
    named = {step.step_id for step in snapshot.steps}
    if plan is not None and snapshot.status not in ENDED:
        rows += [(step.step_id, "PENDING", "", "", "", "") for step in plan.steps if step.step_id not in named]
    if rows:
        print_table(("STEP", "STATUS", "ATTEMPT", "STARTED", "DURATION", ""), rows)


def _step_row(step: StepSnapshot) -> tuple[str, ...]:
    note = ""
    if step.error is not None:
        note = " ".join(filter(None, (step.error.code, step.error.message)))
    elif step.reason_code:
        note = step.reason_code
    if step.retry_scheduled:
        note = f"retry scheduled: {note}"
    if step.iterations is not None:
        note = f"{step.iterations.done:,}/{step.iterations.total:,} {note}".rstrip()
    elapsed = format_elapsed(step.started_at, step.completed_at)
    return (step.step_id, str(step.status), str(step.logical_attempt_id), format_time(step.started_at), elapsed, note)


@command("events")
@click.argument("run", required=False)
@click.option("--follow", is_flag=True, help="Follow new events until Ctrl-C.")
@click.option(
    "--after", default=0, metavar="SEQ", type=click.IntRange(0), help="Only events after this sequence number."
)
@click.option(
    "--type", "types", metavar="NAMES", help="Only these event types, comma-separated; NoETL names are accepted."
)
@click.option("--entity", metavar="STEP", help="Only events of this step, iteration or task and its children.")
@click.option(
    "--since", metavar="TIME", help="With --type and without RUN: events of all runs since (2h, or RFC 3339)."
)
@click.option(
    "--format",
    "event_format",
    type=click.Choice(["runevents", "noetl"]),
    default="runevents",
    show_default=True,
    help="Event format; noetl prints JSON lines of the NoETL event model.",
)
async def events_command(session: Session, run: str | None, event_format: str, **selection: Any) -> int:
    """Show or follow the events of a run, in order."""
    async with session.open() as log:
        async for record in await _select_events(log, run, **selection):
            if event_format == "noetl":
                click.echo(msgspec.json.encode(noetl_event(record)))
            elif session.as_json:
                click.echo(msgspec.json.encode(record))
            else:
                click.echo(
                    _event_line(record) if run is not None else f"{printable(record.run_id)}  {_event_line(record)}"
                )
    return EXIT_OK


async def _select_events(
    log: LogReader,
    run: str | None,
    *,
    follow: bool,
    after: int,
    types: str | None,
    entity: str | None,
    since: str | None,
) -> AsyncIterator[RunEventRecord]:
    """Return the selected events. Raises INVALID_ARGUMENT for options that cannot be combined."""
    names = None if types is None else parse_event_types(types)
    if run is None:
        if names is None or since is None or entity is not None or follow or after:
            raise RunwrightError(
                ErrorCode.INVALID_ARGUMENT, "RUN is required, or --type and --since for events of all runs."
            )
        return _search(log, names, from_micros(parse_time(since, log.clock.now())))
    run_id = await resolve_run_id(log, run)
    if names is None and entity is None and since is None:
        return log.follow(run_id, after) if follow else log.events(run_id, after)
    if follow or since is not None:
        raise RunwrightError(
            ErrorCode.INVALID_ARGUMENT,
            "--follow cannot be combined with --type or --entity, and --since cannot be combined with RUN.",
        )
    return _read_filtered(log, run_id, after, EventFilter(names, entity))


async def _search(log: LogReader, types: list[str], since: str) -> AsyncIterator[RunEventRecord]:
    cursor: str | None = None
    while True:
        page = await log.search(types, since, cursor=cursor)
        for record in page.records:
            yield record
        if page.cursor == cursor:
            return
        cursor = page.cursor


async def _read_filtered(
    log: LogReader, run_id: str, after: int, event_filter: EventFilter
) -> AsyncIterator[RunEventRecord]:
    while records := await log.select(run_id, event_filter, after):
        for record in records:
            yield record
        after = records[-1].run_seq


def _event_line(record: RunEventRecord) -> str:
    """One event as a line: sequence number, time of the producer, type, entity, and a summary of its payload."""
    attempt = f"#{record.logical_attempt_id}" if record.logical_attempt_id > 1 else ""
    name = printable(f"{record.event_type:<20}")
    if is_terminal():
        name = click.style(name, fg=_color(record.event_type))
    entity = printable((record.step_id or "") + attempt)
    line = f"{record.run_seq:>5}  {format_time(record.emitted_at)}  {name}  {entity:<24}"
    return f"{line}  {printable(_payload_summary(record))}".rstrip()


def _color(event_type: str) -> str | None:
    for suffix, color in (("Failed", "red"), ("Completed", "green"), ("Started", "cyan"), ("Paused", "yellow")):
        if event_type.endswith(suffix):
            return color
    return None


def _payload_summary(record: RunEventRecord) -> str:
    if record.redacted:
        return "(payload erased)"
    payload: dict[str, Any] = record.payload or {}
    outcome: Any = payload.get("outcome")
    error = payload.get("error") or (outcome.get("error") if isinstance(outcome, dict) else None)  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    if isinstance(error, dict):
        return " ".join(str(error[name]) for name in ("code", "message") if error.get(name))  # pyright: ignore[reportUnknownArgumentType, reportUnknownMemberType]
    action: Any = payload.get("action")
    if isinstance(action, dict):
        due = payload.get("next_attempt_at")
        return f"do: {action.get('do')}{'' if due is None else f' at {due}'}"  # pyright: ignore[reportUnknownMemberType]
    for name in ("reasonCode", "reason", "nextAttemptAt", "signalType", "engineRunRef"):
        if payload.get(name):
            return f"{name}: {payload[name]}"
    return ""


@command("alerts")
@click.argument("run", required=False)
async def alerts_command(session: Session, run: str | None) -> int:
    """List alerts of one run or of all runs, oldest first."""
    async with session.open() as log:
        run_id = None if run is None else await resolve_run_id(log, run)
        alerts = await log.alerts(run_id)
    if session.as_json:
        session.print_json(alerts)
    elif alerts:
        rows = [(format_time(a.raised_at), a.severity, a.code, a.run_id or "", a.detail) for a in alerts]
        print_table(("RAISED", "", "CODE", "RUN", "DETAIL"), rows)
    else:
        click.echo("No alerts.")
    return EXIT_OK
