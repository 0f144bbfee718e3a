"""What an engine keeps an eye on beside the runs it drives: signals given elsewhere, and runs that nobody drives."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from runwright.contract.errors import STORE_CODES, STORE_CODES_TO_WAIT_FOR, ErrorCode, RunwrightError

if TYPE_CHECKING:
    from .engine import Engine

logger = logging.getLogger("runwright.engine")

SIGNAL_POLL = 0.1
RECOVER_POLL = 1.0
WANTED_POLL = 0.5
TAKEN_BACK = 16  # runs at once
GIVEN_BACK_MICROS = 60_000_000


class Lookout:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._seen = ""  # how far signals were read
        self._wanted: set[str] = set()  # runs that others drive, and that we would

    async def open(self) -> None:
        self._seen = await self._engine.log.end_cursor()

    async def watch_signals(self) -> None:
        while True:
            await self._engine.clock.sleep(SIGNAL_POLL)
            if not self._engine.has_runs:
                continue
            try:
                run_ids, self._seen = await self._engine.log.signalled(self._seen)
            except RunwrightError as error:
                logger.warning("Signals cannot be read for now: %s", error)
                continue
            for run_id in run_ids:
                self._engine.signalled(run_id)

    def want(self, run_id: str) -> None:
        """Take the run up once nobody else drives it any more."""
        self._wanted.add(run_id)

    async def claim_wanted(self) -> None:
        while True:
            await self._engine.clock.sleep(WANTED_POLL)
            for run_id in list(self._wanted):
                try:
                    await self._engine.resume(run_id)
                    self._wanted.discard(run_id)
                except RunwrightError as error:
                    if error.code not in (ErrorCode.RUN_OWNED, *STORE_CODES):
                        logger.warning("Run %s cannot be taken up: %s", run_id, error)
                        self._wanted.discard(run_id)

    async def take_back(self, run_ids: list[str]) -> None:
        """Take up again what was driven under a lease that has ended, unless somebody else has it by now."""
        for some in range(0, len(run_ids), TAKEN_BACK):
            await asyncio.gather(*map(self._take_back, run_ids[some : some + TAKEN_BACK]))

    async def _take_back(self, run_id: str) -> None:
        while not self._engine.is_closing:
            try:
                await self._engine.resume(run_id)
                return
            except RunwrightError as error:
                if error.code not in (ErrorCode.LEASE_LOST, *STORE_CODES_TO_WAIT_FOR):
                    logger.warning("Run %s was left: %s", run_id, error.code)
                    self._engine.left_to_others(run_id)
                    return
            await self._engine.clock.sleep(WANTED_POLL)

    async def take_over(self) -> None:
        while True:
            await self.take_over_once()
            await self._engine.clock.sleep(RECOVER_POLL)

    async def take_over_once(self) -> list[str]:
        """Claim every run that nobody drives although somebody should, and drive it."""
        assert self._engine.keeper.lease is not None
        try:
            claimed = await self._engine.log.claim_due(self._engine.keeper.lease)
        except RunwrightError as error:
            logger.warning("Runs of others cannot be taken over for now: %s", error)
            return []
        taken: list[str] = []
        for run_id in claimed:
            try:
                if await self._engine.take_up(run_id):
                    taken.append(run_id)
            except RunwrightError as error:
                logger.warning("Run %s cannot be taken up here: %s", run_id, error)
                await self._give_back(run_id)
        return taken

    async def _give_back(self, run_id: str) -> None:
        """Somebody else may be able to drive it; if not, we try again later."""
        engine = self._engine
        try:
            await engine.log.release_run(run_id, engine.keeper.fence, engine.clock.now() + GIVEN_BACK_MICROS)
        except RunwrightError as error:
            logger.warning("Run %s could not be given back: %s", run_id, error)
