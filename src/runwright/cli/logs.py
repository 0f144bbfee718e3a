"""`runwright logs`: what steps wrote."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from difflib import get_close_matches
from itertools import islice

import click
import msgspec

from runwright.contract.errors import ErrorCode, RunwrightError
from runwright.contract.paths import parse_path
from runwright.contract.transitions import ENDED
from runwright.control.interface import OutputReader
from runwright.log.reader import LogReader
from runwright.results.steplogs import LogLine

from .accompany import onlooker
from .outlet import Pipe
from .session import DONE, Session, command
from .story import plan_of_run
from .written import readable

BATCH = 500
POLL = 0.2


@command("logs")
@click.argument("run")
@click.argument("step", required=False)
@click.option("--follow", is_flag=True, help="Go on with lines as they come, until the run ends.")
@click.option("--attempt", metavar="N", type=click.IntRange(1), help="Only this attempt.")
async def logs_command(session: Session, run: str, step: str | None, follow: bool, attempt: int | None) -> int:
    """Show what a run's steps wrote, by time. STEP may also be one iteration of a loop, check[3], or a
    task of a playbook: fetch/page, check[3]/page."""
    pipe = Pipe()
    async with onlooker(session) as (log, logs):
        run_id = (await log.resolve(run)).identity.run_id
        if step is not None:
            await _check_step(log, run_id, step)
        batches = _follow(log, logs, run_id, step, attempt) if follow else _read(logs, run_id, step, attempt)
        async for batch in batches:
            await pipe.write("\n".join(_shown(session, line, step) for line in batch))
            if pipe.unheard:
                break
    return DONE


async def _check_step(log: LogReader, run_id: str, step: str) -> None:
    place = parse_path(step)
    plan = await plan_of_run(log, run_id)
    known = {each.step_id for each in (await log.snapshot(run_id)).steps}
    known |= set() if plan is None else {each.step_id for each in plan.steps}
    declared = None if plan is None or place is None else next((s for s in plan.steps if s.step_id == place.step), None)
    if place is not None and place.task is not None and declared is not None and declared.route is not None:
        labels = [task.label for task in declared.route.tasks]
        if place.task not in labels:
            raise RunwrightError(
                ErrorCode.STEP_NOT_FOUND,
                f"The step {place.step!r} has no task {place.task!r}. It has {', '.join(labels)}.",
            )
    if place is None or place.step not in known:
        close = get_close_matches(step, known, 1)
        hint = f" Did you mean {close[0]!r}?" if close else ""
        raise RunwrightError(ErrorCode.STEP_NOT_FOUND, f"The run has no step {step!r}.{hint}")


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
            while (await log.find_run(run_id)).status not in ENDED:  # noqa: ASYNC110 - another process decides when
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


def _shown(session: Session, line: LogLine, step: str | None) -> str:
    if session.as_json:
        return msgspec.json.encode(line).decode()
    text = readable(line.text)
    return text if step is not None and line.entity == step else f"{readable(line.entity)} | {text}"
