"""How a run ended, or what it waits for: the error first, then the attempts, then the command to go on."""

from __future__ import annotations

import asyncio
from collections import deque

import click

from runwright.contract import payloads
from runwright.contract.paths import EntityPath
from runwright.contract.refs import ErrorInfo
from runwright.contract.transitions import RunStatus
from runwright.control.interface import OutputReader
from runwright.core.reading import read_payload
from runwright.log.reader import LogReader

from .hints import Commands
from .render import between, clock_time, plain, plural, status
from .story import Asking, Story
from .written import readable

LAST_LINES = 10
MOST_ATTEMPTS = 10
MOST_STEPS = 5


class Reporter:
    def __init__(self, log: LogReader, step_logs: OutputReader, commands: Commands) -> None:
        self._log = log
        self._step_logs = step_logs
        self._commands = commands

    async def of_step(self, story: Story, step_id: str, *, waiting: bool) -> str:
        """Why a step failed. `waiting`: the run is open until somebody says how to go on."""
        cell = story.cell(step_id)
        assert cell is not None, "a step that failed is in the story"
        lines = [f"{_red('FAILED')} step {_bold(step_id)}  {_error(cell.error)}".rstrip()]
        entity, attempt = step_id, cell.attempt
        loop = story.state.loops.get(step_id)
        if loop is not None and loop.failures:
            lines += [f"  iteration {each.index}  {_error(each.error)}".rstrip() for each in loop.failures]
            entity = str(EntityPath(step_id, attempt=cell.attempt, indexes=(loop.failures[0].index,)))
            attempt = None
        written = await asyncio.to_thread(self._last_lines, story.run_id, entity, attempt)
        lines += [f"  {click.style('|', dim=True)} {line}" for line in written]
        lines += await self._attempts(story, step_id)
        if waiting:
            lines.append(f"  try again:   {_bold(self._commands.retry(step_id))}")
            lines.append(f"  do without:  {_bold(self._commands.skip(step_id))}")
        return "\n".join(lines)

    async def _attempts(self, story: Story, step_id: str) -> list[str]:
        cell = story.cell(step_id)
        assert cell is not None
        lines: list[str] = []
        for attempt in range(max(1, cell.attempt - MOST_ATTEMPTS + 1), cell.attempt + 1):
            started = await self._log.find_event(story.run_id, "StepStarted", step_id, attempt)
            failed = await self._log.find_event(story.run_id, "StepFailed", step_id, attempt)
            begun = None if started is None else started.emitted_at
            ended = None if failed is None else failed.emitted_at
            error = None if failed is None else read_payload(payloads.StepFailed, failed).error
            # What was said above is not said again.
            same = error is not None and cell.error is not None and error.message == cell.error.message
            said = plain(f"{between(begun, ended):>9}  {(error.code or '') if same and error else _code(error)}")
            lines.append(f"  attempt {attempt}  {clock_time(begun)}  {said}".rstrip())
        left_out = cell.attempt - len(lines)
        return [*([f"  ({plural(left_out, 'earlier attempt')})"] if left_out else []), *lines]

    def of_question(self, step_id: str, asking: Asking) -> str:
        return f"  answer:  {_bold(self._commands.answer(step_id, asking))}"

    def of_pause(self) -> str:
        return f"  go on:  {_bold(self._commands.resume)}"

    def _last_lines(self, run_id: str, entity: str, attempt: int | None) -> list[str]:
        lines = self._step_logs.read(run_id, entity, attempt=attempt)
        return [readable(line.text) for line in deque(lines, maxlen=LAST_LINES)]

    async def of_end(self, story: Story, *, named: bool = True) -> str:
        """All there is to say once the run has ended. `named`: also which run it was."""
        lines: list[str] = []
        cause = story.state.summary.root_cause
        if story.status is RunStatus.FAILED:
            first = [] if cause is None or cause.step_id not in story.failed else [cause.step_id]
            failed = list(dict.fromkeys([*first, *story.failed]))
            if not first and cause is not None:
                lines.append(f"{_red('FAILED')} {_error(ErrorInfo(cause.code, cause.message))}")
            lines += [await self.of_step(story, step_id, waiting=False) for step_id in failed[:MOST_STEPS]]
            if len(failed) > MOST_STEPS:
                lines.append(f"({plural(len(failed) - MOST_STEPS, 'more step')} failed)")
        lines.append(self.summary(story, named=named))
        if story.status is not RunStatus.COMPLETED:
            lines.append(f"  retry:  {_bold(self._commands.rerun)}")
        return "\n".join(lines)

    def summary(self, story: Story, *, named: bool) -> str:
        """The run in one line."""
        summary = story.state.summary
        counts = (
            (summary.completed_steps, "done"),
            (summary.failed_steps, "failed"),
            (summary.skipped_steps, "skipped"),
        )
        told = ", ".join(f"{count:,} {word}" for count, word in counts if count)
        took = between(summary.started_at, summary.completed_at)
        parts = [status(story.status), plain(story.plan_id), f"{plural(story.total, 'step')}: {told}" if told else ""]
        parts += [f"in {took}" if took else "", plain(story.run_id) if named else ""]
        line = "  ".join(filter(None, parts))
        if summary.reason and story.status is RunStatus.CANCELLED:
            line += f"\n  reason: {plain(summary.reason)}"
        return line


def _code(error: ErrorInfo | None) -> str:
    return "" if error is None else " ".join(filter(None, (error.code, error.message)))


def _error(error: ErrorInfo | None) -> str:
    if error is None:
        return ""
    return f"{_red(error.code or '')} {plain(error.message or '')}".strip()


def _red(text: str) -> str:
    return click.style(plain(text), fg="red", bold=True)


def _bold(text: str) -> str:
    return click.style(plain(text), bold=True)
