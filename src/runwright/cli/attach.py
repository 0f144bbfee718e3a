"""Attach the terminal to a run until it ends: show it, drive it unless another process does, and handle Ctrl-C."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from signal import Signals
from typing import TYPE_CHECKING

import click

from runwright.cli.terminal.formatting import is_terminal, printable
from runwright.cli.terminal.input import InterruptChoice, Interrupts, is_foreground
from runwright.contract.errors import ErrorCode, RunwrightError
from runwright.contract.transitions import ENDED, RunStatus
from runwright.control.bootstrap import open_operations, step_logs_of
from runwright.control.protocols import OutputReader, RunOperations
from runwright.control.signal_rules import SignalDecision
from runwright.log.protocols import LogReader

from .event_text import EventFormatter
from .follower import Follower, capture_warnings
from .hints import CommandHints
from .outputs import JsonOutput, Output, PlainOutput, StdoutWriter
from .run_report import RunReporter
from .run_view import RunView, plan_of_run
from .session import EXIT_OK, EXIT_PROBLEMS, EXIT_UNAVAILABLE, Session

if TYPE_CHECKING:
    from runwright.cli.terminal.live_view import LiveView

STATUS_EXIT_CODES = {
    RunStatus.COMPLETED: EXIT_OK,
    RunStatus.FAILED: EXIT_PROBLEMS,
    RunStatus.CANCELLED: EXIT_PROBLEMS,
}
MAX_STALLED_RESUMES = 3
"""Consecutive resumes without a new event after which the engine is considered unable to drive the run."""
_SIGNALS = {InterruptChoice.PAUSE: "PAUSE", InterruptChoice.RESUME: "RESUME", InterruptChoice.CANCEL: "CANCEL"}


@asynccontextmanager
async def open_run_operations(
    session: Session, *, must_exist: bool = True, runtime: str = "embedded"
) -> AsyncGenerator[RunOperations]:
    """Connect to the session's server, or open an engine on its store."""
    if session.server is not None:
        async with session.remote() as remote:
            yield remote
        return
    if must_exist:
        session.open()  # Raises if the store does not exist; nothing is opened yet.
    async with open_operations(session.store, runtime=runtime) as operations:
        yield operations


@asynccontextmanager
async def open_reader(session: Session) -> AsyncGenerator[tuple[LogReader, OutputReader]]:
    """Open the log and the step output for reading, without an engine."""
    if session.server is not None:
        async with session.remote() as remote:
            yield remote.log, remote.engine.step_logs
        return
    async with session.open_store() as log:
        yield log, step_logs_of(log, session.store)


class RunAttachment:
    """The attachment of this terminal to one run. Without `operations` the run is only watched."""

    def __init__(
        self,
        session: Session,
        log: LogReader,
        step_logs: OutputReader,
        run_id: str,
        operations: RunOperations | None = None,
    ) -> None:
        self._session = session
        self._log = log
        self._step_logs = step_logs
        self._run_id = run_id
        self._operations = operations
        self._commands = CommandHints(session, run_id)
        self._reporter = RunReporter(log, step_logs, self._commands)
        self._is_watching = False  # Another process drives the run.
        self._stalled_resumes, self._last_seq = 0, -1
        self._undriven_ticks = 0
        self._output: Output = PlainOutput(StdoutWriter(), EventFormatter(None))
        self._live: LiveView | None = None  # The output, if it is a live view.
        self._end_waiter: asyncio.Task[object] | None = None

    async def run(self, *, after: int = 0) -> int:
        """Stay attached until the run ends or the user detaches; return the exit code."""
        view = RunView(self._run_id, await plan_of_run(self._log, self._run_id))
        output = self._output = self._create_output(view)
        on_second = self._watch_tick if self._operations is None else self._drive_tick
        follower = Follower(self._log, view, output, self._reporter, after=after, on_second=on_second)
        try:
            with Interrupts() as interrupts, capture_warnings(follower.notices):
                if self._live is not None:
                    interrupts.on_suspend(self._live.on_suspend, self._live.on_continue)
                detach_code = await self._follow(follower, view, interrupts)
        finally:
            if self._end_waiter is not None:
                self._end_waiter.cancel()
            await output.close()
        if detach_code is not None:
            if self._operations is not None:
                await StdoutWriter().write(self._detach_message(view.status), err=self._session.as_json)
            return detach_code
        if not self._session.as_json:
            is_live = self._live is not None
            report = await self._reporter.run_end(view, with_run_id=not is_live)  # The live view shows the run id.
            await StdoutWriter().write(f"\n{report}" if is_live else report)
        return STATUS_EXIT_CODES[view.status]

    def _create_output(self, view: RunView) -> Output:
        if self._session.as_json:
            return JsonOutput(StdoutWriter())
        if is_terminal() and is_foreground() and os.environ.get("TERM", "dumb") not in ("dumb", "unknown"):
            from runwright.cli.terminal.live_view import LiveView  # Imports rich, which only terminals need.

            hint = "Ctrl-C ends watching" if self._operations is None else "Ctrl-C: pause, cancel or leave"
            self._live = LiveView(view, self._step_logs, self._commands, self._log.clock, hint)
            return self._live
        return PlainOutput(StdoutWriter(), EventFormatter(view.plan))

    async def _follow(self, follower: Follower, view: RunView, interrupts: Interrupts) -> int | None:
        """Follow the run. Returns None when it has ended, or the exit code if the user detaches."""
        following = asyncio.create_task(follower.follow_to_end())
        try:
            while True:
                interrupt = asyncio.create_task(interrupts.next())
                await asyncio.wait({following, interrupt}, return_when=asyncio.FIRST_COMPLETED)
                if following.done():
                    interrupt.cancel()
                    await following
                    return None
                if await self._should_detach(interrupt.result(), view, interrupts):
                    return 128 + interrupt.result()
        finally:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)

    async def _should_detach(self, number: Signals, view: RunView, interrupts: Interrupts) -> bool:
        """Ask what to do if there is a keyboard, and do it. Return True if this process is to detach."""
        live = self._live
        if self._operations is None or number is not Signals.SIGINT or live is None or not live.can_prompt:
            return True
        choice = await live.prompt_choice(interrupts, is_paused=view.status is RunStatus.PAUSED)
        if choice is InterruptChoice.LEAVE:
            return True
        signal_type = _SIGNALS.get(choice)
        if signal_type is not None and not view.has_ended:
            await self._send(self._operations, signal_type)
        return False

    async def _send(self, operations: RunOperations, signal_type: str) -> None:
        try:
            decision: SignalDecision = await operations.signal(self._run_id, signal_type)
        except RunwrightError as error:
            await self._output.write_notice(printable(str(error)))
            return
        if decision.code is not None:
            await self._output.write_notice(printable(f"{decision.code} {decision.reason or ''}"))

    def _detach_message(self, status: RunStatus) -> str:
        commands = self._commands
        if self._session.server is not None:
            return f"Detached. The run continues on the server. Watch it with: {commands.watch}"
        if self._is_watching:
            return "Detached. The run continues in the process that is driving it."
        recover = commands.recover
        if status is RunStatus.PAUSED:
            return f"Detached. Resume the paused run with: {commands.resume}\nthen continue with: {recover}"
        return f"Detached. Continue with: {commands.continue_run}\nor recover all abandoned runs with: {recover}"

    # Once a second: check that the run is still driven.

    async def _watch_tick(self) -> None:
        """Report once if no process drives the watched run."""
        row = await self._log.find_run(self._run_id)
        is_undriven = row.owner is None and row.status is RunStatus.RUNNING
        self._undriven_ticks = self._undriven_ticks + 1 if is_undriven else 0
        if self._undriven_ticks == 2:  # One tick may fall between two owners.
            notice = f"No process is driving this run. Continue with: {self._commands.continue_run}"
            await self._output.write_notice(notice)

    async def _drive_tick(self) -> None:
        """Claim the run unless a live process drives it. Then watch, and claim it if that process dies."""
        operations = self._operations
        assert operations is not None
        self._check_driver()
        if operations.engine.is_driven(self._run_id):
            await self._report_recovery()
            if self._end_waiter is None:
                self._end_waiter = asyncio.create_task(operations.engine.wait_until_ended(self._run_id))
            return
        row = await self._log.find_run(self._run_id)
        if row.status in ENDED:
            return
        self._check_progress(row.last_seq)
        await operations.resume(self._run_id)
        if operations.engine.is_driven(self._run_id):
            await self._report_recovery()
        elif not self._is_watching:
            self._is_watching = True
            notice = f"Another process is driving this run{_owner_suffix(row.owner)}; this process only watches."
            await self._output.write_notice(notice)

    async def _report_recovery(self) -> None:
        if self._is_watching:
            self._is_watching = False
            await self._output.write_notice("The process that drove this run is gone; this process has recovered it.")

    def _check_progress(self, seq: int) -> None:
        if self._is_watching:
            return
        self._stalled_resumes = self._stalled_resumes + 1 if seq == self._last_seq else 0
        self._last_seq = seq
        if self._stalled_resumes > MAX_STALLED_RESUMES:
            raise EngineFailed(f"resumed {self._stalled_resumes} times without progress")

    def _check_driver(self) -> None:
        """Raise the error with which the driver of the run failed, unless another process claimed the run."""
        task = self._end_waiter
        if task is None or not task.done():
            return
        self._end_waiter = None
        error = None if task.cancelled() else task.exception()
        is_lost = isinstance(error, RunwrightError) and error.code in (ErrorCode.RUN_OWNED, ErrorCode.STALE_FENCE)
        if error is not None and not is_lost:
            raise EngineFailed(repr(error)) from error


class EngineFailed(Exception):
    """The engine cannot drive a run, for a reason that is not in the run."""


def _owner_suffix(owner: str | None) -> str:
    return "" if owner is None else printable(f" ({owner.rpartition(':')[0]})")


async def attach_and_drive(session: Session, operations: RunOperations, run_id: str, *, after: int = 0) -> int:
    """Attach to a run and drive it unless another process does; return the exit code."""
    attachment = RunAttachment(session, operations.log, operations.engine.step_logs, run_id, operations)
    try:
        return await attachment.run(after=after)
    except EngineFailed as error:
        message = click.style("The engine cannot continue this run", fg="red")
        alerts = CommandHints(session, run_id).alerts
        click.echo(f"{message}: {printable(str(error))}. See also: {alerts}", err=True)
        return EXIT_UNAVAILABLE
