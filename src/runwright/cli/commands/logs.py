"""`runwright logs`: show step output."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from difflib import get_close_matches
from itertools import islice

import click
import msgspec

from runwright.cli.attach import open_reader
from runwright.cli.outputs import StdoutWriter
from runwright.cli.run_argument import resolve_run_id
from runwright.cli.run_view import plan_of_run
from runwright.cli.session import EXIT_OK, Session, command
from runwright.cli.terminal.formatting import strip_ansi
from runwright.contract.errors import ErrorCode, RunwrightError
from runwright.contract.paths import EntityPath, parse_path
from runwright.contract.plan import ExecutionPlan
from runwright.contract.transitions import ENDED
from runwright.control.protocols import OutputReader
from runwright.log.protocols import LogReader
from runwright.storage.output.files import LogLine

BATCH = 500
POLL = 0.2


@command("logs")
@click.argument("run")
@click.argument("step", required=False)
@click.option("--follow", is_flag=True, help="Follow output until the run ends.")
@click.option("--attempt", metavar="N", type=click.IntRange(1), help="Only this attempt.")
async def logs_command(session: Session, run: str, step: str | None, follow: bool, attempt: int | None) -> int:
    """Show step output, ordered by time.

    STEP is a step, an iteration of a loop (check[3]), or a task of a playbook (fetch/page, check[3]/page).
    """
    writer = StdoutWriter()
    async with open_reader(session) as (log, logs):
        run_id = await resolve_run_id(log, run)
        if step is not None:
            await _check_step(log, run_id, step)
        batches = _follow(log, logs, run_id, step, attempt) if follow else _read(logs, run_id, step, attempt)
        async for batch in batches:
            await writer.write("\n".join(_format_line(session, line, step) for line in batch))
            if writer.is_closed:
                break
    return EXIT_OK


async def _check_step(log: LogReader, run_id: str, step: str) -> None:
    """Raise STEP_NOT_FOUND if neither the run nor its plan has the step or task."""
    path = parse_path(step)
    plan = await plan_of_run(log, run_id)
    known = {each.step_id for each in (await log.snapshot(run_id)).steps}
    known |= set() if plan is None else {each.step_id for each in plan.steps}
    if path is not None and plan is not None:
        _check_task(plan, path)
    if path is None or path.step not in known:
        close = get_close_matches(step, known, 1)
        hint = f" Did you mean {close[0]!r}?" if close else ""
        raise RunwrightError(ErrorCode.STEP_NOT_FOUND, f"Step {step!r} not found in this run.{hint}")


def _check_task(plan: ExecutionPlan, path: EntityPath) -> None:
    step = next((step for step in plan.steps if step.step_id == path.step), None)
    if path.task is None or step is None or step.route is None:
        return
    labels = [task.label for task in step.route.tasks]
    if path.task not in labels:
        detail = f"Task {path.task!r} not found in step {path.step!r}. Its tasks: {', '.join(labels)}."
        raise RunwrightError(ErrorCode.STEP_NOT_FOUND, detail)


async def _read(logs: OutputReader, run_id: str, step: str | None, attempt: int | None) -> AsyncIterator[list[LogLine]]:
    lines = await asyncio.to_thread(logs.read, run_id, step, attempt=attempt)
    while batch := list(islice(lines, BATCH)):
        yield batch


async def _follow(
    log: LogReader, logs: OutputReader, run_id: str, step: str | None, attempt: int | None
) -> AsyncIterator[list[LogLine]]:
    ended = asyncio.Event()

    async def watch() -> None:
        try:
            while (await log.find_run(run_id)).status not in ENDED:  # noqa: ASYNC110 - ended by another process
                await asyncio.sleep(POLL)
        finally:
            ended.set()

    watching = asyncio.create_task(watch())
    try:
        async for line in logs.follow(run_id, step, stopped=ended.is_set, attempt=attempt):
            yield [line]
        await watching
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)


def _format_line(session: Session, line: LogLine, step: str | None) -> str:
    if session.as_json:
        return msgspec.json.encode(line).decode()
    text = strip_ansi(line.text)
    return text if step is not None and line.entity == step else f"{strip_ansi(line.entity)} | {text}"
