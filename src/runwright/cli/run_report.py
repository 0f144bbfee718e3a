"""The report on a run that ended or waits: the error first, then the attempts, then the command to continue."""

from __future__ import annotations

import asyncio
from collections import deque

import click

from runwright.cli.terminal.formatting import format_elapsed, format_time, plural, printable, strip_ansi, styled_status
from runwright.contract import payloads
from runwright.contract.paths import EntityPath
from runwright.contract.refs import ErrorInfo
from runwright.contract.transitions import RunStatus
from runwright.control.protocols import OutputReader
from runwright.core.fold.payload_reader import read_payload
from runwright.log.protocols import LogReader

from .hints import CommandHints
from .run_view import InputRequest, RunView

LAST_LINES = 10
MAX_ATTEMPTS = 10
MAX_STEPS = 5


class RunReporter:
    def __init__(self, log: LogReader, step_logs: OutputReader, commands: CommandHints) -> None:
        self._log = log
        self._step_logs = step_logs
        self._commands = commands

    async def step_failure(self, view: RunView, step_id: str, *, is_waiting: bool) -> str:
        """Report why a step failed. `is_waiting`: the run stays open until an operator retries or skips the step."""
        step = view.step_state(step_id)
        assert step is not None, "a failed step is in the run view"
        lines = [f"{_red('FAILED')} step {_bold(step_id)}  {_error(step.error)}".rstrip()]
        entity, attempt = step_id, step.attempt
        loop = view.state.loops.get(step_id)
        if loop is not None and loop.failures:
            lines += [f"  iteration {each.index}  {_error(each.error)}".rstrip() for each in loop.failures]
            entity = str(EntityPath(step_id, attempt=step.attempt, indexes=(loop.failures[0].index,)))
            attempt = None
        output = await asyncio.to_thread(self._last_lines, view.run_id, entity, attempt)
        lines += [f"  {click.style('|', dim=True)} {line}" for line in output]
        lines += await self._attempts(view, step_id)
        if is_waiting:
            lines.append(f"  retry:  {_bold(self._commands.retry(step_id))}")
            lines.append(f"  skip:   {_bold(self._commands.skip(step_id))}")
        return "\n".join(lines)

    async def _attempts(self, view: RunView, step_id: str) -> list[str]:
        step = view.step_state(step_id)
        assert step is not None
        lines: list[str] = []
        for attempt in range(max(1, step.attempt - MAX_ATTEMPTS + 1), step.attempt + 1):
            started = await self._log.find_event(view.run_id, "StepStarted", step_id, attempt)
            failed = await self._log.find_event(view.run_id, "StepFailed", step_id, attempt)
            started_at = None if started is None else started.emitted_at
            failed_at = None if failed is None else failed.emitted_at
            error = None if failed is None else read_payload(payloads.StepFailed, failed).error
            # The message of the step's error is printed above; repeat only the code.
            is_same = error is not None and step.error is not None and error.message == step.error.message
            cause = (error.code or "") if is_same and error else _error_text(error)
            details = printable(f"{format_elapsed(started_at, failed_at):>9}  {cause}")
            lines.append(f"  attempt {attempt}  {format_time(started_at)}  {details}".rstrip())
        omitted = step.attempt - len(lines)
        return [*([f"  ({plural(omitted, 'earlier attempt')})"] if omitted else []), *lines]

    def pending_input(self, step_id: str, request: InputRequest) -> str:
        return f"  answer:  {_bold(self._commands.answer(step_id, request))}"

    def pause(self) -> str:
        return f"  resume:  {_bold(self._commands.resume)}"

    def _last_lines(self, run_id: str, entity: str, attempt: int | None) -> list[str]:
        lines = self._step_logs.read(run_id, entity, attempt=attempt)
        return [strip_ansi(line.text) for line in deque(lines, maxlen=LAST_LINES)]

    async def run_end(self, view: RunView, *, with_run_id: bool = True) -> str:
        """Report on a run that has ended: its failed steps, then its summary."""
        lines: list[str] = []
        cause = view.state.summary.root_cause
        if view.status is RunStatus.FAILED:
            first = [] if cause is None or cause.step_id not in view.failed else [cause.step_id]
            failed = list(dict.fromkeys([*first, *view.failed]))
            if not first and cause is not None:
                lines.append(f"{_red('FAILED')} {_error(ErrorInfo(cause.code, cause.message))}")
            lines += [await self.step_failure(view, step_id, is_waiting=False) for step_id in failed[:MAX_STEPS]]
            if len(failed) > MAX_STEPS:
                lines.append(f"({plural(len(failed) - MAX_STEPS, 'more step')} failed)")
        lines.append(self.summary(view, with_run_id=with_run_id))
        if view.status is not RunStatus.COMPLETED:
            lines.append(f"  retry:  {_bold(self._commands.rerun)}")
        return "\n".join(lines)

    def summary(self, view: RunView, *, with_run_id: bool) -> str:
        """The run in one line."""
        summary = view.state.summary
        counts = (
            (summary.completed_steps, "done"),
            (summary.failed_steps, "failed"),
            (summary.skipped_steps, "skipped"),
        )
        counted = ", ".join(f"{count:,} {label}" for count, label in counts if count)
        elapsed = format_elapsed(summary.started_at, summary.completed_at)
        steps = f"{plural(view.total, 'step')}: {counted}" if counted else ""
        parts = [styled_status(view.status), printable(view.plan_id), steps]
        parts += [f"in {elapsed}" if elapsed else "", printable(view.run_id) if with_run_id else ""]
        line = "  ".join(filter(None, parts))
        if summary.reason and view.status is RunStatus.CANCELLED:
            line += f"\n  reason: {printable(summary.reason)}"
        return line


def _error_text(error: ErrorInfo | None) -> str:
    return "" if error is None else " ".join(filter(None, (error.code, error.message)))


def _error(error: ErrorInfo | None) -> str:
    if error is None:
        return ""
    return f"{_red(error.code or '')} {printable(error.message or '')}".strip()


def _red(text: str) -> str:
    return click.style(printable(text), fg="red", bold=True)


def _bold(text: str) -> str:
    return click.style(printable(text), bold=True)
