"""Looking at runs: list, show, events, alerts."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import click
import msgspec

from runwright.contract.errors import ErrorCode, RunwrightError
from runwright.contract.events import RunEventRecord
from runwright.contract.noetl import noetl_event, types_in
from runwright.contract.plan import ExecutionPlan
from runwright.contract.snapshot import RunSnapshot, StepSnapshot
from runwright.contract.timestamps import from_micros
from runwright.contract.transitions import ENDED, RunStatus
from runwright.control.moments import moment
from runwright.control.views import RECOVERING, left_behind
from runwright.log.model import EventFilter, RunFilter, RunRow
from runwright.log.reader import LogReader

from .render import between, clock_time, duration, heading, is_terminal, plain, plural, status, table
from .session import DONE, Session, command
from .story import plan_of_run


@command("list")
@click.option("--status", "wanted", type=click.Choice([str(value) for value in RunStatus], case_sensitive=False))
@click.option("--plan", metavar="ID", help="Only runs of this plan.")
@click.option("--tenant", metavar="ID", help="Only runs of this tenant.")
@click.option("--since", metavar="TIME", help="Only runs made since: 2h ago, or an RFC 3339 time.")
@click.option("--limit", default=50, show_default=True, type=click.IntRange(1))
async def list_command(
    session: Session, wanted: str | None, plan: str | None, tenant: str | None, since: str | None, limit: int
) -> int:
    """List runs, newest first."""
    async with session.open() as log:
        after = None if since is None else moment(since, log.clock.now())
        which = RunFilter(None if wanted is None else RunStatus(wanted.upper()), plan, tenant, after)
        rows = [row async for row in _pages(log, which, limit)]
        left = await left_behind(log, rows)
    documents = [{**row.to_json(), **(RECOVERING if row.identity.run_id in left else {})} for row in rows]
    if session.as_json:
        for document in documents:
            session.print_json(document)
        return DONE
    if not rows:
        click.echo("No runs.")
        return DONE
    table(("RUN", "STATUS", "PLAN", "STEPS", "EVENTS", "STARTED", "TOOK"), [_list_row(row) for row in documents])
    return DONE


async def _pages(log: LogReader, which: RunFilter, limit: int) -> AsyncIterator[RunRow]:
    cursor: str | None = None
    while limit > 0:
        page = await log.list_runs(which, cursor=cursor, limit=min(limit, 1000))
        for row in page.runs:
            yield row
        limit -= len(page.runs)
        cursor = page.cursor
        if cursor is None:
            return


def _list_row(document: dict[str, Any]) -> tuple[str, ...]:
    words = [document["status"], document["substatus"] or "", "INCONSISTENT" if document["inconsistent"] else ""]
    done = document["completedSteps"] + document["skippedSteps"]
    return (
        document["runId"],
        " ".join(filter(None, words)),
        document["planId"],
        f"{done}/{document['totalSteps']}",
        str(document["lastEventSeq"]),
        clock_time(document["startedAt"]),
        between(document["startedAt"], document["completedAt"]),
    )


@command("show")
@click.argument("run")
@click.option("--at", metavar="SEQ|TIME", help="As it was at this event, or at this time (RFC 3339 UTC, or 2h ago).")
async def show_command(session: Session, run: str, at: str | None) -> int:
    """Show a run: RUN is its id, the beginning of its id, or @last."""
    async with session.open() as log:
        row = await log.resolve(run)
        point: int | str | None = at
        if at is not None and at.isascii() and at.isdecimal():
            point = int(at)
        elif at is not None:
            point = from_micros(moment(at, log.clock.now()))
        snapshot = await log.snapshot(row.identity.run_id, at=point)
        if at is None and await left_behind(log, [row]):
            snapshot = msgspec.structs.replace(snapshot, **RECOVERING)
        plan = None if session.as_json else await plan_of_run(log, row.identity.run_id)
        alerts = await log.alerts(row.identity.run_id)
    if session.as_json:
        session.print_json(snapshot.to_json())
        return DONE
    _show_run(snapshot, row.last_seq, plan)
    for alert in alerts:
        click.echo(f"{click.style(f'{alert.severity} {alert.code}', fg='red', bold=True)} {plain(alert.detail)}")
    return DONE


def short_version(version: str) -> str:
    """A version that is a content hash, as much of it as people need."""
    return f"{version[:12]}…" if len(version) == 64 else version


def _show_run(snapshot: RunSnapshot, last_seq: int, plan: ExecutionPlan | None) -> None:
    at = "" if snapshot.last_event_seq == last_seq else f"  (as of event {snapshot.last_event_seq} of {last_seq})"
    words = status(snapshot.status) + (f" {snapshot.substatus}" if snapshot.substatus else "")
    click.echo(f"{heading(plain(snapshot.run_id))}  {words}{at}")
    facts = [
        f"plan {snapshot.plan_id} {short_version(snapshot.plan_version)}",
        plural(snapshot.last_event_seq, "event"),
        f"started {clock_time(snapshot.started_at)}" if snapshot.started_at else "",
        f"took {duration(snapshot.total_duration_ms)}" if snapshot.total_duration_ms is not None else "",
        plural(snapshot.pauses, "pause") if snapshot.pauses else "",
        f"made from {snapshot.origin_run_id}" if snapshot.origin_run_id else "",
    ]
    click.echo(plain("  ".join(filter(None, facts))))
    if snapshot.message:
        click.echo(snapshot.message)
    if snapshot.reason:
        click.echo(plain(f"reason: {snapshot.reason}"))
    if snapshot.root_cause is not None:
        cause = snapshot.root_cause
        where = f" in step {cause.step_id}" if cause.step_id else ""
        click.echo(plain(f"cause: {cause.code or 'unknown'}{where} {cause.message or ''}".rstrip()))
    if snapshot.inconsistent:
        click.echo(status("INCONSISTENT") + " this log holds events that could not have happened; they changed nothing")
    rows = [_step_row(step) for step in snapshot.steps]
    named = {step.step_id for step in snapshot.steps}  # the fold knows those that an event names; the plan knows all
    if plan is not None and snapshot.status not in ENDED:
        rows += [(step.step_id, "PENDING", "", "", "", "") for step in plan.steps if step.step_id not in named]
    if rows:
        table(("STEP", "STATUS", "ATTEMPT", "STARTED", "TOOK", ""), rows)


def _step_row(step: StepSnapshot) -> tuple[str, ...]:
    note = ""
    if step.error is not None:
        note = " ".join(filter(None, (step.error.code, step.error.message)))
    elif step.reason_code:
        note = step.reason_code
    if step.retry_scheduled:
        note = f"will be tried again: {note}"
    if step.iterations is not None:
        note = f"{step.iterations.done:,}/{step.iterations.total:,} {note}".rstrip()
    took = between(step.started_at, step.completed_at)
    return (step.step_id, str(step.status), str(step.logical_attempt_id), clock_time(step.started_at), took, note)


@command("events")
@click.argument("run", required=False)
@click.option("--follow", is_flag=True, help="Go on with events as they come; Ctrl-C ends it.")
@click.option("--after", default=0, metavar="SEQ", type=click.IntRange(0), help="Only events beyond this one.")
@click.option("--type", "types", metavar="NAMES", help="Only these types, with commas between; dotted names will do.")
@click.option("--entity", metavar="STEP", help="Only what is about this step, iteration or task, or beneath it.")
@click.option(
    "--since", metavar="WHEN", help="With --type and without RUN: those of every run since then (30m, 2h, a time)."
)
@click.option("--format", "shape", type=click.Choice(["runevents", "noetl"]), default="runevents", show_default=True)
async def events_command(session: Session, run: str | None, shape: str, **choice: Any) -> int:
    """Show a run's events in order; in NoETL's words they are JSON lines."""
    async with session.open() as log:
        async for record in await _stream(log, run, **choice):
            if shape == "noetl":
                click.echo(msgspec.json.encode(noetl_event(record)))
            elif session.as_json:
                click.echo(msgspec.json.encode(record))
            else:
                click.echo(_timeline(record) if run is not None else f"{plain(record.run_id)}  {_timeline(record)}")
    return DONE


async def _stream(
    log: LogReader,
    run: str | None,
    *,
    follow: bool,
    after: int,
    types: str | None,
    entity: str | None,
    since: str | None,
) -> AsyncIterator[RunEventRecord]:
    """The events that were asked for."""
    names = None if types is None else types_in(types)
    if run is None:
        if names is None or since is None or entity is not None or follow or after:
            raise RunwrightError(
                ErrorCode.INVALID_ARGUMENT, "Name a run; or, for those of every run, --type and --since."
            )
        return _found(log, names, from_micros(moment(since, log.clock.now())))
    run_id = (await log.resolve(run)).identity.run_id
    if names is None and entity is None and since is None:
        return log.follow(run_id, after) if follow else log.events(run_id, after)
    if follow or since is not None:
        raise RunwrightError(
            ErrorCode.INVALID_ARGUMENT, "--follow shows all of a run's events, and --since is for all runs."
        )
    return _selected(log, run_id, after, EventFilter(names, entity))


async def _found(log: LogReader, types: list[str], since: str) -> AsyncIterator[RunEventRecord]:
    cursor: str | None = None
    while True:
        page = await log.search(types, since, cursor=cursor)
        for record in page.records:
            yield record
        if page.cursor == cursor:
            return
        cursor = page.cursor


async def _selected(log: LogReader, run_id: str, after: int, wanted: EventFilter) -> AsyncIterator[RunEventRecord]:
    while records := await log.select(run_id, wanted, after):
        for record in records:
            yield record
        after = records[-1].run_seq


def _timeline(record: RunEventRecord) -> str:
    """One event as a line: number, the producer's time, what, who, and the gist of its payload."""
    attempt = f"#{record.logical_attempt_id}" if record.logical_attempt_id > 1 else ""
    name = plain(f"{record.event_type:<20}")
    if is_terminal():
        name = click.style(name, fg=_colour(record.event_type))
    line = (
        f"{record.run_seq:>5}  {clock_time(record.emitted_at)}  {name}  {plain((record.step_id or '') + attempt):<24}"
    )
    return f"{line}  {plain(_gist(record))}".rstrip()


def _colour(event_type: str) -> str | None:
    for ending, colour in (("Failed", "red"), ("Completed", "green"), ("Started", "cyan"), ("Paused", "yellow")):
        if event_type.endswith(ending):
            return colour
    return None


def _gist(record: RunEventRecord) -> str:
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
    """List alerts, of one run or of all, oldest first."""
    async with session.open() as log:
        run_id = None if run is None else (await log.resolve(run)).identity.run_id
        alerts = await log.alerts(run_id)
    if session.as_json:
        session.print_json(alerts)
    elif alerts:
        rows = [(clock_time(a.raised_at), a.severity, a.code, a.run_id or "", a.detail) for a in alerts]
        table(("RAISED", "", "CODE", "RUN", "DETAIL"), rows)
    else:
        click.echo("No alerts.")
    return DONE
