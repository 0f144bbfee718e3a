"""The process's lease: the claim to be alive on which its claims to runs rest."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from runwright.contract.clock import Clock
from runwright.contract.errors import ErrorCode, RunwrightError
from runwright.log.base import RunLog
from runwright.log.holder import this_process
from runwright.log.judge import Fence
from runwright.log.model import Lease

logger = logging.getLogger("runwright.engine")

DEFAULT_TTL = 5.0


class LeaseKeeper:
    """Keeps one lease alive. By this process's own clock it ends a little before others may think so."""

    def __init__(self, log: RunLog, clock: Clock, owner: str, ttl: float, lost: Callable[[], Awaitable[None]]) -> None:
        self._log = log
        self._clock = clock
        self._owner = owner
        self._ttl = ttl
        self._lost = lost
        self._good_until = 0.0
        self._beginning = asyncio.Lock()
        self.lease: Lease | None = None

    @property
    def fence(self) -> Fence:
        assert self.lease is not None, "the engine is open"
        return Fence(self.lease.owner, self.lease.epoch)

    async def acquire(self) -> None:
        asked = self._clock.monotonic()
        self.lease = await self._log.acquire_lease(self._owner, self._ttl, this_process())
        self._good_until = asked + self._ttl * 0.9

    @property
    def is_good(self) -> bool:
        return self._clock.monotonic() <= self._good_until

    def check(self) -> None:
        """STALE_FENCE once the lease may have ended: nothing must be driven on it any more."""
        if self._clock.monotonic() > self._good_until:
            raise RunwrightError(ErrorCode.STALE_FENCE, "The lease of this process has ended.")

    async def ensure(self) -> None:
        """Make sure that the lease is good: it may have run out while this process was kept from renewing it."""
        if self.is_good or self.lease is None:
            return
        lease = self.lease
        try:
            await self._renew(lease)
        except RunwrightError as error:
            if error.code != ErrorCode.LEASE_LOST:
                raise
            await self.begin_anew(lease, error)

    async def _renew(self, lease: Lease) -> None:
        asked = self._clock.monotonic()
        self.lease = await self._log.renew_lease(lease)
        self._good_until = asked + self._ttl * 0.9

    async def keep(self) -> None:
        """Renew for ever; when the lease is lost, say so and begin a new life."""
        while True:
            await self._clock.sleep(self._ttl / 3)
            assert self.lease is not None
            asked, lease = self._clock.monotonic(), self.lease
            try:
                await self._renew(lease)
            except RunwrightError as error:
                if error.code == ErrorCode.STORE_CLOSED:
                    return
                if error.code != ErrorCode.LEASE_LOST and asked < self._good_until:
                    logger.warning("The lease could not be renewed yet: %s", error)
                    continue
                await self.begin_anew(lease, error)

    async def begin_anew(self, lost: Lease, why: RunwrightError) -> RunwrightError | None:
        """Get another lease in the place of one that is lost, unless somebody has done so already; or why that cannot
        be done yet."""
        async with self._beginning:
            if self.lease is not None and self.lease.epoch != lost.epoch:
                return None
            logger.warning("The lease was lost; its runs are left to whoever claims them first: %s", why)
            try:
                await self.acquire()
            except RunwrightError as error:
                logger.warning("No new lease yet: %s", error)
                return error
            await self._lost()
            return None

    async def release(self) -> None:
        if self.lease is not None:
            await self._log.release_lease(self.lease)


def ends_with_loop(task: asyncio.Task[Any]) -> None:
    """A background task of the engine must not die unseen."""
    if not task.cancelled() and (error := task.exception()) is not None:
        logger.error("A part of the engine failed", exc_info=error)
