"""Driving what others left, many runs at once, told in plain lines."""

from __future__ import annotations

import asyncio
from collections import deque

import click

from runwright.contract.errors import RunwrightError
from runwright.contract.transitions import ENDED, RunStatus
from runwright.control.operations import Operations
from runwright.core.state import substatus

from .follow import Patience
from .hints import Commands
from .outlet import Pipe
from .render import plain
from .session import Session
from .words import Narrator

POLL = 0.1
LOOK_FOR_MORE = 1.0


class Recovery:
    def __init__(self, session: Session, operations: Operations) -> None:
        self._session = session
        self._operations = operations
        self._log = operations.log
        self._pipe = Pipe()
        self._open: set[str] = set()
        self._cursor = ""
        self._narrator = Narrator(None)
        self.ended: dict[str, RunStatus] = {}
        self.notices: deque[str] = deque(maxlen=100)
        self._patience = Patience(self._log.clock, self.notices)

    async def to_the_end(self) -> None:
        """Until nothing is left that nobody drives, and all that we took up has ended, or rests until it is resumed."""
        self._cursor = await self._log.end_cursor()
        looked = float("-inf")
        while True:
            now = self._log.clock.monotonic()
            try:
                if now - looked >= LOOK_FOR_MORE:
                    looked = now
                    await self._take_over()
                await self._tell()
                self._patience.over()
            except RunwrightError as error:
                await self._patience.bear(error)
                continue
            if not self._open:
                return
            await asyncio.sleep(POLL)

    async def _take_over(self) -> None:
        while taken := await self._operations.engine.lookout.take_over_once():
            again = self._open & set(taken)
            self._open |= set(taken)  # before anything can fail: nobody else looks after them
            for run_id in taken:
                if run_id in again:
                    continue  # it was ours before its store went away
                row = await self._log.find_run(run_id)
                is_paused = row.status is RunStatus.PAUSED
                how = "is PAUSED, and rests" if is_paused else f"goes on: it is {row.status}"
                await self._say(f"Run {run_id} of plan {row.identity.plan_id} {how}.")
                if is_paused:
                    await self._say(f"  resume it:  {Commands(self._session, run_id).resume}")

    async def _tell(self) -> None:
        while self.notices:
            await self._pipe.write(click.style(plain(f"! {self.notices.popleft()}"), fg="yellow"), err=True)
        over: dict[str, RunStatus] = {}  # asked before the events are read, so that none of theirs is missed
        for run_id in self._open:
            row = await self._log.find_run(run_id)
            rests = row.status is RunStatus.PAUSED and substatus(row.summary)[0] is None  # nothing is under way in it
            if row.status in ENDED or rests:
                over[run_id] = row.status
        while True:
            page = await self._log.read_all(self._cursor)
            self._cursor = page.cursor
            if not page.records:
                break
            records = [record for record in page.records if record.run_id in self._open]
            if records and not self._session.as_json:
                several = len(self._open) + len(self.ended) > 1
                await self._pipe.write("\n".join(self._narrator.line(record, named=several) for record in records))
        self._open -= over.keys()
        self.ended.update(over)

    async def _say(self, text: str) -> None:
        if not self._session.as_json:
            await self._pipe.write(plain(text))
