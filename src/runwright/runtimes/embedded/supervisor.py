"""Background polling of an engine: signals accepted by other processes, runs whose owner died, runs that this process
wants to resume, and runs that it may own without driving them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Protocol

from runwright.contract.clock import Clock
from runwright.contract.errors import RETRYABLE_STORE_CODES, STORE_CODES, ErrorCode, RunwrightError
from runwright.log.append.authority import Fence
from runwright.log.run_log import RunLog

from .lease_keeper import LeaseKeeper

logger = logging.getLogger("runwright.runtimes")

SIGNAL_POLL = 0.1  # seconds
RECOVERY_POLL = 1.0
WATCH_POLL = 0.5
RECLAIM_AT_ONCE = 16  # runs
RELEASE_MICROS = 60_000_000  # until a run that cannot be driven here is tried again


class SupervisedEngine(Protocol):
    """The part of an engine that the supervisor uses."""

    @property
    def log(self) -> RunLog: ...
    @property
    def clock(self) -> Clock: ...
    @property
    def keeper(self) -> LeaseKeeper: ...
    @property
    def has_runs(self) -> bool: ...
    @property
    def is_closing(self) -> bool: ...

    def on_signal(self, run_id: str) -> None: ...
    def is_driven(self, run_id: str) -> bool: ...
    def on_ownership_lost(self, run_id: str) -> None: ...
    async def resume(self, run_id: str) -> bool: ...
    async def drive_claimed(self, run_id: str) -> bool: ...


class Supervisor:
    def __init__(self, engine: SupervisedEngine) -> None:
        self._engine = engine
        self._cursor = ""  # signals were read up to here
        self._watched: set[str] = set()  # runs that other processes drive, to be resumed here once they stop
        self._is_ownership_unknown = False  # this process may own runs that it does not drive

    async def open(self) -> None:
        self._cursor = await self._engine.log.end_cursor()

    async def watch_signals(self) -> None:
        while True:
            await self._engine.clock.sleep(SIGNAL_POLL)
            if not self._engine.has_runs:
                continue
            try:
                run_ids, self._cursor = await self._engine.log.runs_signalled_since(self._cursor)
            except RunwrightError as error:
                logger.warning("Polling for signals failed, retrying: %s", error)
                continue
            for run_id in run_ids:
                self._engine.on_signal(run_id)

    def watch_run(self, run_id: str) -> None:
        """Resume the run once no other process drives it."""
        self._watched.add(run_id)

    def on_ownership_unknown(self) -> None:
        """A claim, a release or the creation of a run failed, and may have been carried out nevertheless. While this
        process is alive no other one would drive such a run: drive it here."""
        self._is_ownership_unknown = True

    async def resume_loop(self) -> None:
        while True:
            await self._engine.clock.sleep(WATCH_POLL)
            if self._is_ownership_unknown:
                await self._resume_owned()
            for run_id in list(self._watched):
                try:
                    await self._engine.resume(run_id)
                    self._watched.discard(run_id)
                except RunwrightError as error:
                    if error.code not in (ErrorCode.RUN_OWNED, *STORE_CODES):
                        logger.warning("Resuming run %s failed: %s", run_id, error)
                        self._watched.discard(run_id)

    async def _resume_owned(self) -> None:
        """Drive the runs that this process owns and does not drive."""
        assert self._engine.keeper.lease is not None
        try:
            owned = await self._engine.log.leases.owned_runs(self._engine.keeper.lease)
        except RunwrightError as error:
            logger.warning("Reading the owned runs failed, retrying: %s", error)
            return
        self._is_ownership_unknown = False
        for run_id in owned:
            if not self._engine.is_driven(run_id):
                await self._drive_or_release(run_id, self._engine.resume)

    async def reclaim(self, run_ids: list[str]) -> None:
        """Resume the runs of a lease that was lost, unless another process has claimed them."""
        for start in range(0, len(run_ids), RECLAIM_AT_ONCE):
            await asyncio.gather(*map(self._reclaim, run_ids[start : start + RECLAIM_AT_ONCE]))

    async def _reclaim(self, run_id: str) -> None:
        while not self._engine.is_closing:
            try:
                await self._engine.resume(run_id)
                return
            except RunwrightError as error:
                if error.code not in (ErrorCode.LEASE_LOST, *RETRYABLE_STORE_CODES):
                    logger.warning("Stopped driving run %s: %s", run_id, error.code)
                    self._engine.on_ownership_lost(run_id)
                    return
            await self._engine.clock.sleep(WATCH_POLL)

    async def recovery_loop(self) -> None:
        while True:
            await self.recover_abandoned_runs()
            await self._engine.clock.sleep(RECOVERY_POLL)

    async def recover_abandoned_runs(self) -> list[str]:
        """Claim every run that is due and that no live process drives, and drive it."""
        assert self._engine.keeper.lease is not None
        try:
            claimed = await self._engine.log.leases.claim_due(self._engine.keeper.lease)
        except RunwrightError as error:
            logger.warning("Claiming abandoned runs failed, retrying: %s", error)
            self.on_ownership_unknown()
            return []
        return [run_id for run_id in claimed if await self._drive_or_release(run_id, self._engine.drive_claimed)]

    async def _drive_or_release(self, run_id: str, drive: Callable[[str], Awaitable[bool]]) -> bool:
        """Drive a run that this process owns; if that is impossible, release it. Whether it is driven."""
        try:
            return await drive(run_id)
        except RunwrightError as error:
            logger.warning("Run %s cannot be driven here: %s", run_id, error)
            if error.code in RETRYABLE_STORE_CODES:
                self.on_ownership_unknown()
            else:  # another process may be able to drive it; if not, this one tries again later
                await self.release(run_id, self._engine.keeper.fence, self._engine.clock.now() + RELEASE_MICROS)
            return False

    async def release(self, run_id: str, fence: Fence, wake_at: int | None = None) -> None:
        """Stop owning a run, which becomes due at `wake_at`; without it, an operator has to resume the run."""
        try:
            await self._engine.log.leases.release_run(run_id, fence, wake_at)
        except RunwrightError as error:
            logger.warning("Releasing run %s failed: %s", run_id, error)
            self.on_ownership_unknown()
