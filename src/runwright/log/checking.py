"""Checking a log: whether it is as it was appended, and whether its summaries are the fold of its events."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import AsyncIterator

from runwright.contract.errors import ErrorCode, RunwrightError
from runwright.contract.snapshot import RunSummary
from runwright.core.state import RunState
from runwright.core.verify import Finding, RunVerifier

from .folding import summary_differs
from .model import RebuildReport, RunRow
from .rows import damaged, guarded
from .store import Store

PAGE = 1000


class Checking(Store):
    @abstractmethod
    async def find_run(self, run_id: str) -> RunRow:
        """A run by its id; RUN_NOT_FOUND if there is none."""

    @abstractmethod
    async def _fold(self, row: RunRow, until_seq: int | None, until_time: int | None) -> RunState: ...

    async def verify(self, run_id: str | None = None) -> AsyncIterator[Finding]:
        """Everything that is not as it was appended, in one run or in all of them."""
        if run_id is not None:
            async for finding in self._verify_run(await self.find_run(run_id)):
                yield finding
            return
        async for name, row in self._every_run():
            if row is None:
                yield Finding(name, "CHANGED", "the run's row holds values that Runwright never wrote")
                continue
            async for finding in self._verify_run(row):
                yield finding
        for run_key in await self._orphans():
            yield Finding(f"#{run_key}", "MISSING", "events are left of a run whose row was removed")

    async def _verify_run(self, row: RunRow) -> AsyncIterator[Finding]:
        verifier = RunVerifier(row.identity, row.enforcement)
        after = -(2**62)  # also what was slipped in before the first event
        while True:
            rows = await self._rows(row.run_key, after, PAGE)
            for event in rows:
                after = event.run_seq
                for finding in verifier.check(event):
                    yield finding
            if rows:
                continue
            now = await self._find(row.identity.run_id)  # it may have grown while it was read
            if now is None or now.last_seq <= verifier.seq or not await self._rows(row.run_key, after, 1):
                break
        end = now or row
        for finding in verifier.finish(end.last_seq, end.head, end.created_at, end.persisted_at):
            yield finding
        for run_seq in await self._misplaced(row.run_key):
            yield Finding(row.identity.run_id, "CHANGED", "the event was moved to another place in the log", run_seq)

    async def heads(self) -> AsyncIterator[tuple[str, int, bytes]]:
        """Each run with its last event and hash: what an anchor is made of."""
        async for name, row in self._every_run():
            if row is None:
                raise damaged(f"The row of run {name!r}")
            yield name, row.last_seq, row.head

    async def hash_at(self, run_id: str, seq: int) -> bytes | None:
        """The stored hash of one event; None if there is no such run or event."""
        row = await self._find(run_id)
        rows = [] if row is None else await self._rows(row.run_key, seq - 1, 1)
        return rows[0].hash if rows and rows[0].run_seq == seq else None

    async def rebuild(self, *, check: bool = False) -> RebuildReport:
        """Fold every run anew and compare its summary; write it again where it differs, unless only checking."""
        different: list[str] = []
        count = 0
        async for name, row in self._every_run():
            count += 1
            if row is None:
                different.append(name)  # beyond mending: even what its events belong to is in doubt
                continue
            with guarded(f"Run {row.identity.run_id!r}"):
                summary = (await self._fold(row, row.last_seq, None)).summary
            if not summary_differs(row, summary):
                continue
            different.append(row.identity.run_id)
            if not check:
                await self._mend(row, summary)
        return RebuildReport(count, different)

    async def redact(self, run_id: str, run_seq: int) -> None:
        """Erase an event's payload for good. Its digest stays, so the chain holds and verify says REDACTED.

        Refused while the run's state hangs on that payload (a run that waits for the approval it asks for).
        """
        row = await self.find_run(run_id)
        rows = await self._rows(row.run_key, run_seq - 1, 1)
        if not rows or rows[0].run_seq != run_seq:
            raise RunwrightError(
                ErrorCode.INVALID_ARGUMENT, f"The run has events 1 to {row.last_seq}; there is no {run_seq}."
            )
        if rows[0].raw_payload is None and rows[0].payload_digest is None:
            raise RunwrightError(ErrorCode.INVALID_ARGUMENT, f"Event {run_seq} has no payload: nothing to erase.")
        await self._erase(row, run_seq)

    async def _mend(self, row: RunRow, summary: RunSummary) -> None:
        """Write a run's summary; if the run has grown since it was folded, fold it again."""
        while not await self._save_summary(row, summary):
            row = await self.find_run(row.identity.run_id)
            summary = (await self._fold(row, row.last_seq, None)).summary

    async def _every_run(self) -> AsyncIterator[tuple[str, RunRow | None]]:
        """Every run, newest first; None for one whose row makes no sense."""
        before = 2**62
        while names := await self._names(before, PAGE):
            for _, name in names:
                try:
                    yield name, await self._find(name)
                except RunwrightError as error:
                    if error.code != ErrorCode.STORE_CORRUPT:
                        raise
                    yield name, None
            before = names[-1][0]
