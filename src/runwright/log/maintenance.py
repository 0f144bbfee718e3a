"""Log maintenance: verify hash chains, rebuild summaries, redact payloads."""

from __future__ import annotations

from collections.abc import AsyncIterator

from runwright.contract.errors import ErrorCode, RunwrightError
from runwright.contract.snapshot import RunSummary
from runwright.core.integrity.verify import Finding, RunVerifier

from .model import RebuildReport, RunRow
from .replay import summary_differs
from .row_mapping import detect_corruption, store_corrupt
from .store import PAGE, Store


class Maintenance:
    """Maintenance operations on a store."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def verify(self, run_id: str | None = None) -> AsyncIterator[Finding]:
        """Report every difference from the appended events, in one run or in all runs."""
        if run_id is not None:
            async for finding in self._verify_run(await self._store.get_run(run_id)):
                yield finding
            return
        async for name, row in self._iterate_runs():
            if row is None:
                yield Finding(name, "CHANGED", "the run's row contains values that Runwright did not write")
                continue
            async for finding in self._verify_run(row):
                yield finding
        for run_key in await self._store.find_orphaned_runs():
            yield Finding(f"#{run_key}", "MISSING", "the row of the run was deleted, but it has events")

    async def _verify_run(self, row: RunRow) -> AsyncIterator[Finding]:
        verifier = RunVerifier(row.identity, row.enforcement)
        after = -(2**62)  # Includes events inserted before the first one.
        while True:
            rows = await self._store.read_events(row.run_key, after, PAGE)
            for event in rows:
                after = event.run_seq
                for finding in verifier.check(event):
                    yield finding
            if rows:
                continue
            now = await self._store.find_run(row.identity.run_id)  # The run may have grown while it was read.
            if now is None or now.last_seq <= verifier.seq or not await self._store.read_events(row.run_key, after, 1):
                break
        end = now or row
        for finding in verifier.finish(end.last_seq, end.head, end.created_at, end.persisted_at):
            yield finding
        for run_seq in await self._store.find_misplaced_events(row.run_key):
            yield Finding(row.identity.run_id, "CHANGED", "the event was moved to another position in the log", run_seq)

    async def heads(self) -> AsyncIterator[tuple[str, int, bytes]]:
        """Yield each run with the number and hash of its last event: the content of an anchor."""
        async for name, row in self._iterate_runs():
            if row is None:
                raise store_corrupt(f"The row of run {name!r}")
            yield name, row.last_seq, row.head

    async def hash_at(self, run_id: str, seq: int) -> bytes | None:
        """Return the stored hash of one event; None if there is no such run or event."""
        row = await self._store.find_run(run_id)
        rows = [] if row is None else await self._store.read_events(row.run_key, seq - 1, 1)
        return rows[0].hash if rows and rows[0].run_seq == seq else None

    async def rebuild(self, *, check: bool = False) -> RebuildReport:
        """Fold every run and compare its summary; store summaries that differ, unless `check` is set."""
        different: list[str] = []
        count = 0
        async for name, row in self._iterate_runs():
            count += 1
            if row is None:
                different.append(name)  # Not repairable: the identity of the run is unknown.
                continue
            with detect_corruption(f"Run {row.identity.run_id!r}"):
                summary = (await self._store.fold(row, row.last_seq, None)).summary
            if not summary_differs(row, summary):
                continue
            different.append(row.identity.run_id)
            if not check:
                await self._store_summary(row, summary)
        return RebuildReport(count, different)

    async def redact(self, run_id: str, run_seq: int) -> None:
        """Erase an event's payload; see `RunLog.redact`."""
        row = await self._store.get_run(run_id)
        rows = await self._store.read_events(row.run_key, run_seq - 1, 1)
        if not rows or rows[0].run_seq != run_seq:
            raise RunwrightError(
                ErrorCode.INVALID_ARGUMENT, f"Event {run_seq} not found: the run has events 1 to {row.last_seq}."
            )
        if rows[0].raw_payload is None and rows[0].payload_digest is None:
            raise RunwrightError(ErrorCode.INVALID_ARGUMENT, f"Event {run_seq} has no payload to erase.")
        await self._store.erase_payload(row, run_seq)

    async def _store_summary(self, row: RunRow, summary: RunSummary) -> None:
        """Store a run's summary; if the run has grown since it was folded, fold it again."""
        while not await self._store.save_summary(row, summary):
            row = await self._store.get_run(row.identity.run_id)
            summary = (await self._store.fold(row, row.last_seq, None)).summary

    async def _iterate_runs(self) -> AsyncIterator[tuple[str, RunRow | None]]:
        """Yield every run id and row, newest first; the row is None if it is corrupt."""
        before = 2**62
        while names := await self._store.list_run_ids(before, PAGE):
            for _, name in names:
                try:
                    yield name, await self._store.find_run(name)
                except RunwrightError as error:
                    if error.code != ErrorCode.STORE_CORRUPT:
                        raise
                    yield name, None
            before = names[-1][0]
