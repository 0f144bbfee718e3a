"""The lease of a process: the claim to be alive on which its ownership of runs rests."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from runwright.contract.clock import Clock
from runwright.contract.errors import ErrorCode, RunwrightError
from runwright.log.append.authority import Fence
from runwright.log.leases import this_process
from runwright.log.model import Lease
from runwright.log.run_log import RunLog

logger = logging.getLogger("runwright.runtimes")

_SAFETY = 0.9  # of the lease: this process stops a little before others may claim its runs


class LeaseKeeper:
    """Renews one lease. By the clock of this process it expires before other processes consider it expired."""

    def __init__(
        self, log: RunLog, clock: Clock, owner: str, ttl: float, on_lost: Callable[[], Awaitable[None]]
    ) -> None:
        self._log = log
        self._clock = clock
        self._owner = owner
        self._ttl = ttl
        self._on_lost = on_lost
        self._valid_until = 0.0
        self._replacing = asyncio.Lock()
        self.lease: Lease | None = None

    @property
    def fence(self) -> Fence:
        assert self.lease is not None, "the engine is open"
        return Fence(self.lease.owner, self.lease.epoch)

    async def acquire(self) -> None:
        requested = self._clock.monotonic()
        self.lease = await self._log.leases.acquire(self._owner, self._ttl, this_process())
        self._valid_until = requested + self._ttl * _SAFETY

    @property
    def is_valid(self) -> bool:
        return self._clock.monotonic() <= self._valid_until

    def check(self) -> None:
        """Raise STALE_FENCE once the lease may have expired: no run may be driven under it any more."""
        if self._clock.monotonic() > self._valid_until:
            raise RunwrightError(ErrorCode.STALE_FENCE, "The lease of this process has expired.")

    async def ensure(self) -> None:
        """Make sure that the lease is valid: it may have expired while this process could not renew it."""
        if self.is_valid or self.lease is None:
            return
        lease = self.lease
        try:
            await self._renew(lease)
        except RunwrightError as error:
            if error.code != ErrorCode.LEASE_LOST:
                raise
            await self.replace(lease, error)

    async def _renew(self, lease: Lease) -> None:
        requested = self._clock.monotonic()
        self.lease = await self._log.leases.renew(lease)
        self._valid_until = requested + self._ttl * _SAFETY

    async def renew_loop(self) -> None:
        """Renew the lease periodically, and replace it when it is lost."""
        while True:
            await self._clock.sleep(self._ttl / 3)
            assert self.lease is not None
            requested, lease = self._clock.monotonic(), self.lease
            try:
                await self._renew(lease)
            except RunwrightError as error:
                if error.code == ErrorCode.STORE_CLOSED:
                    return
                if error.code != ErrorCode.LEASE_LOST and requested < self._valid_until:
                    logger.warning("Renewing the lease failed, retrying: %s", error)
                    continue
                await self.replace(lease, error)

    async def replace(self, lost: Lease, reason: RunwrightError) -> RunwrightError | None:
        """Acquire a new lease instead of a lost one, unless that was done already. Returns the error if it failed."""
        async with self._replacing:
            if self.lease is not None and self.lease.epoch != lost.epoch:
                return None
            logger.warning("The lease was lost; other processes may claim its runs: %s", reason)
            try:
                await self.acquire()
            except RunwrightError as error:
                logger.warning("Acquiring a new lease failed: %s", error)
                return error
            await self._on_lost()
            return None

    async def release(self) -> None:
        if self.lease is not None:
            await self._log.leases.release(self.lease)
