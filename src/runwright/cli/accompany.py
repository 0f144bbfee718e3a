"""Staying with a run until it ends: showing it, driving it if it is ours to drive, and answering Ctrl-C."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from signal import Signals
from typing import TYPE_CHECKING

import click

from runwright.contract.errors import ErrorCode, RunwrightError
from runwright.contract.transitions import ENDED, RunStatus
from runwright.control.interface import OutputReader, RunOperations
from runwright.control.open import open_operations, step_logs_of
from runwright.control.signals import SignalDecision
from runwright.log.reader import LogReader

from .follow import Follower, overheard
from .hints import Commands
from .interrupt import Choice, Interrupts, ask
from .keyboard import in_foreground
from .outlet import JsonLines, Outlet, Pipe, PlainLines
from .render import is_terminal, plain
from .report import Reporter
from .session import DONE, FOUND_SOMETHING, UNREACHABLE, Session
from .story import Story, plan_of_run
from .words import Narrator

if TYPE_CHECKING:
    from .live import Live

EXIT_CODES = {RunStatus.COMPLETED: DONE, RunStatus.FAILED: FOUND_SOMETHING, RunStatus.CANCELLED: FOUND_SOMETHING}
FRUITLESS = 3
"""How often a run is taken up in vain before we say that the engine cannot go on with it."""


@asynccontextmanager
async def engine(
    session: Session, *, must_exist: bool = True, runtime: str = "embedded"
) -> AsyncGenerator[RunOperations]:
    """Whoever runs things: the server that was named, or an engine on the session's store."""
    if session.server is not None:
        async with session.remote() as remote:
            yield remote
        return
    if must_exist:
        session.open()  # says what is missing; opens nothing yet
    async with open_operations(session.store, runtime=runtime) as operations:
        yield operations


@asynccontextmanager
async def onlooker(session: Session) -> AsyncGenerator[tuple[LogReader, OutputReader]]:
    """The log and what steps wrote, for one who only looks."""
    if session.server is not None:
        async with session.remote() as remote:
            yield remote.log, remote.engine.step_logs
        return
    async with session.open_store() as log:
        yield log, step_logs_of(log, session.store)


class Company:
    """One run, somebody who looks at it, and perhaps the engine that drives it."""

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
        self._commands = Commands(session, run_id)
        self._reporter = Reporter(log, step_logs, self._commands)
        self._is_watching = False
        self._fruitless, self._last_seq = 0, -1
        self._left_for = 0
        self._outlet: Outlet = PlainLines(Pipe(), Narrator(None))
        self._live: Live | None = None  # the outlet, if it is a picture on a terminal
        self._failure: asyncio.Task[object] | None = None

    async def stay(self, *, after: int = 0) -> int:
        """Until the end, or until we are told to leave. The exit code."""
        story = Story(self._run_id, await plan_of_run(self._log, self._run_id))
        outlet = self._outlet = self._choose(story)
        watchful = self._look_on if self._operations is None else self._look_after
        follower = Follower(self._log, story, outlet, self._reporter, after=after, watchful=watchful)
        try:
            with Interrupts() as interrupts, overheard(follower.notices):
                if self._live is not None:
                    interrupts.on_halt(self._live.halt, self._live.wake)
                code = await self._until_ended_or_left(follower, story, interrupts)
        finally:
            if self._failure is not None:
                self._failure.cancel()
            await outlet.close()
        if code is not None:
            if self._operations is not None:
                await Pipe().write(self._goodbye(story.status), err=self._session.as_json)
            return code
        if not self._session.as_json:
            below = self._live is not None  # a picture above has said which run it is
            report = await self._reporter.of_end(story, named=not below)
            await Pipe().write(f"\n{report}" if below else report)
        return EXIT_CODES[story.status]

    def _choose(self, story: Story) -> Outlet:
        if self._session.as_json:
            return JsonLines(Pipe())
        if is_terminal() and in_foreground() and os.environ.get("TERM", "dumb") not in ("dumb", "unknown"):
            from .live import Live  # rich is loaded for terminals only

            hint = "Ctrl-C ends watching" if self._operations is None else "Ctrl-C: pause, cancel or leave"
            self._live = Live(story, self._step_logs, self._commands, self._log.clock, hint)
            return self._live
        return PlainLines(Pipe(), Narrator(story.plan))

    async def _until_ended_or_left(self, follower: Follower, story: Story, interrupts: Interrupts) -> int | None:
        """None when the run has ended; else the code to exit with."""
        following = asyncio.create_task(follower.to_the_end())
        try:
            while True:
                came = asyncio.create_task(interrupts.next())
                await asyncio.wait({following, came}, return_when=asyncio.FIRST_COMPLETED)
                if following.done():
                    came.cancel()
                    await following
                    return None
                if await self._leaves(came.result(), story, interrupts):
                    return 128 + came.result()
        finally:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)

    async def _leaves(self, number: Signals, story: Story, interrupts: Interrupts) -> bool:
        """Ask what to do, if there is somebody to ask; whether we are to go."""
        live = self._live
        if self._operations is None or number is not Signals.SIGINT or live is None or not live.can_ask:
            return True
        choice = await ask(live, interrupts, paused=story.status is RunStatus.PAUSED)
        await live.go_on()
        if choice is Choice.LEAVE:
            return True
        wanted = {Choice.PAUSE: "PAUSE", Choice.RESUME: "RESUME", Choice.CANCEL: "CANCEL"}.get(choice)
        if wanted is not None and not story.has_ended:
            await self._send(self._operations, wanted)
        return False

    async def _send(self, operations: RunOperations, signal_type: str) -> None:
        try:
            decision: SignalDecision = await operations.signal(self._run_id, signal_type)
        except RunwrightError as error:
            await self._outlet.say(plain(str(error)))
            return
        if decision.code is not None:
            await self._outlet.say(plain(f"{decision.code} {decision.reason or ''}"))

    def _goodbye(self, status: RunStatus) -> str:
        if self._session.server is not None:
            return f"Left. The run goes on at the server:  {self._commands.watch}"
        if self._is_watching:
            return "Left. The run goes on in the process that drives it."
        go_on, recover = self._commands.go_on, self._commands.recover
        if status is RunStatus.PAUSED:
            return f"Left as it is, paused. Resume it:  {self._commands.resume}\nand go on with it:  {recover}"
        return f"Left as it is. Go on with it:  {go_on}\nor with every run that was left:  {recover}"

    # Once a second: is the run still driven?

    async def _look_on(self) -> None:
        """For one who only watches: say so if nobody drives the run."""
        row = await self._log.find_run(self._run_id)
        left = row.owner is None and row.status is RunStatus.RUNNING
        self._left_for = self._left_for + 1 if left else 0
        if self._left_for == 2:  # not just between two drivers
            await self._outlet.say(f"Nobody drives this run now. Go on with: {self._commands.go_on}")

    async def _look_after(self) -> None:
        """Take the run up if nobody drives it. If a live process does, watch; take over should it die."""
        operations = self._operations
        assert operations is not None
        self._check_driver()
        if operations.engine.is_driven(self._run_id):
            await self._say_if_taken_over()
            if self._failure is None:
                self._failure = asyncio.create_task(operations.engine.ended(self._run_id))
            return
        row = await self._log.find_run(self._run_id)
        if row.status in ENDED:
            return
        self._check_progress(row.last_seq)
        await operations.take_up(self._run_id)
        if operations.engine.is_driven(self._run_id):
            await self._say_if_taken_over()
        elif not self._is_watching:
            self._is_watching = True
            await self._outlet.say(f"Another process drives this run{_where(row.owner)}; this one watches.")

    async def _say_if_taken_over(self) -> None:
        if self._is_watching:
            self._is_watching = False
            await self._outlet.say("The process that drove this run is gone; this one has taken it over.")

    def _check_progress(self, seq: int) -> None:
        if self._is_watching:
            return
        self._fruitless = self._fruitless + 1 if seq == self._last_seq else 0
        self._last_seq = seq
        if self._fruitless > FRUITLESS:
            raise EngineGaveUp("it was taken up again and again, and nothing came of it")

    def _check_driver(self) -> None:
        """A driver that fails says so to whoever waits for the run's end."""
        task = self._failure
        if task is None or not task.done():
            return
        self._failure = None
        error = None if task.cancelled() else task.exception()
        lost = isinstance(error, RunwrightError) and error.code in (ErrorCode.RUN_OWNED, ErrorCode.STALE_FENCE)
        if error is not None and not lost:
            raise EngineGaveUp(repr(error)) from error


class EngineGaveUp(Exception):
    """The engine cannot go on with a run, for a reason that does not lie in the run."""


def _where(owner: str | None) -> str:
    return "" if owner is None else plain(f" ({owner.rpartition(':')[0]})")


async def drive(session: Session, operations: RunOperations, run_id: str, *, after: int = 0) -> int:
    """Stay with a run that this process drives, or would if nobody else did."""
    company = Company(session, operations.log, operations.engine.step_logs, run_id, operations)
    try:
        return await company.stay(after=after)
    except EngineGaveUp as error:
        word = click.style("The engine cannot go on with this run", fg="red")
        click.echo(f"{word}: {plain(str(error))}. See also: {Commands(session, run_id).alerts}", err=True)
        return UNREACHABLE
