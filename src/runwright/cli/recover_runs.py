"""Drive all abandoned runs of a store, with plain output."""

from __future__ import annotations

import asyncio
from collections import deque

import click

from runwright.cli.terminal.formatting import printable
from runwright.contract.errors import RunwrightError
from runwright.contract.transitions import ENDED, RunStatus
from runwright.control.operations import Operations
from runwright.core.fold.run_state import substatus

from .event_text import EventFormatter
from .follower import StoreRetry
from .hints import CommandHints
from .outputs import StdoutWriter
from .session import Session

POLL = 0.1
CLAIM_INTERVAL = 1.0


class RunRecovery:
    def __init__(self, session: Session, operations: Operations) -> None:
        self._session = session
        self._operations = operations
        self._log = operations.log
        self._writer = StdoutWriter()
        self._open: set[str] = set()
        self._cursor = ""
        self._formatter = EventFormatter(None)
        self.ended: dict[str, RunStatus] = {}
        self.notices: deque[str] = deque(maxlen=100)
        self._store_retry = StoreRetry(self._log.clock, self.notices)

    async def run_to_end(self) -> None:
        """Claim abandoned runs until there are none and every claimed run has ended or is paused and drained."""
        self._cursor = await self._log.end_cursor()
        claimed_at = float("-inf")
        while True:
            now = self._log.clock.monotonic()
            try:
                if now - claimed_at >= CLAIM_INTERVAL:
                    claimed_at = now
                    await self._claim_abandoned()
                await self._write_progress()
                self._store_retry.reset()
            except RunwrightError as error:
                await self._store_retry.wait_or_raise(error)
                continue
            if not self._open:
                return
            await asyncio.sleep(POLL)

    async def _claim_abandoned(self) -> None:
        while claimed := await self._operations.engine.supervisor.recover_abandoned_runs():
            reclaimed = self._open & set(claimed)
            self._open |= set(claimed)  # Before anything can fail: no other process drives these runs.
            for run_id in claimed:
                if run_id in reclaimed:
                    continue  # It was already open before the store became unavailable.
                row = await self._log.find_run(run_id)
                is_paused = row.status is RunStatus.PAUSED
                action = "is PAUSED and waits to be resumed" if is_paused else f"continues: it is {row.status}"
                await self._write(f"Run {run_id} of plan {row.identity.plan_id} {action}.")
                if is_paused:
                    await self._write(f"  resume:  {CommandHints(self._session, run_id).resume}")

    async def _write_progress(self) -> None:
        while self.notices:
            await self._writer.write(click.style(printable(f"! {self.notices.popleft()}"), fg="yellow"), err=True)
        # The status is read before the events, so that no event of a run that ended is missed.
        finished = await self._find_finished()
        while True:
            page = await self._log.read_all(self._cursor)
            self._cursor = page.cursor
            if not page.records:
                break
            records = [record for record in page.records if record.run_id in self._open]
            if records and not self._session.as_json:
                is_several = len(self._open) + len(self.ended) > 1
                lines = (self._formatter.line(record, with_run_id=is_several) for record in records)
                await self._writer.write("\n".join(lines))
        self._open -= finished.keys()
        self.ended.update(finished)

    async def _find_finished(self) -> dict[str, RunStatus]:
        """Return the open runs that have ended, or are paused without anything in flight."""
        finished: dict[str, RunStatus] = {}
        for run_id in self._open:
            row = await self._log.find_run(run_id)
            is_drained = row.status is RunStatus.PAUSED and substatus(row.summary)[0] is None
            if row.status in ENDED or is_drained:
                finished[run_id] = row.status
        return finished

    async def _write(self, text: str) -> None:
        if not self._session.as_json:
            await self._writer.write(printable(text))
