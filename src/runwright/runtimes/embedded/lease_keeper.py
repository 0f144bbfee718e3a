"""The lease of a process: the claim to be alive on which its ownership of runs rests.

A lease that expires because this process was stalled, or its store unavailable, is extended as soon as possible. Runs
that no other process has claimed meanwhile are still owned, and what they execute goes on.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable

from runwright.contract.clock import Clock
from runwright.contract.errors import ErrorCode, RunwrightError
from runwright.log.append.authority import Fence
from runwright.log.lease_liveness import stale_fence
from runwright.log.model import Lease
from runwright.log.process_identity import this_process
from runwright.log.run_log import RunLog

from .lease_thread import LeaseThread

logger = logging.getLogger("runwright.runtimes")

_SAFETY = 0.9  # of the lease: this process stops a little before others may claim its runs
_RETRY_SECONDS = 0.2  # between attempts to extend a lease that may have expired


class LeaseKeeper:
    """Renews one lease. By the clock of this process it expires before other processes consider it expired.

    It is renewed by a thread if the store permits that, else by the event loop. A lease that was lost, or that may have
    expired, is always renewed by the event loop.

    `on_regained` is called with a lease that was extended after it may have expired, before it is valid again;
    `on_lost` when a lease was replaced by a new one, under which no run is owned.
    """

    def __init__(
        self,
        log: RunLog,
        clock: Clock,
        owner: str,
        ttl: float,
        loop_timeout: float = 60.0,
        *,
        on_regained: Callable[[Lease], Awaitable[None]],
        on_lost: Callable[[], Awaitable[None]],
    ) -> None:
        self._log = log
        self._clock = clock
        self._owner = owner
        self._ttl = ttl
        self._on_regained = on_regained
        self._on_lost = on_lost
        self._valid_until = 0.0
        self._lock = threading.Lock()  # guards `lease` and `_valid_until`
        self._loop_timeout = loop_timeout
        self._thread: LeaseThread | None = None
        self._attention = asyncio.Event()  # the event loop has to renew the lease
        self._replacing = asyncio.Lock()
        self._changed = asyncio.Event()
        self.lease: Lease | None = None

    @property
    def fence(self) -> Fence:
        assert self.lease is not None, "the engine is open"
        return Fence(self.lease.owner, self.lease.epoch)

    async def acquire(self) -> None:
        requested = self._clock.monotonic()
        lease = await self._log.leases.acquire(self._owner, self._ttl, this_process())
        self._set_valid(lease, requested)

    @property
    def is_valid(self) -> bool:
        """Whether no other process can have claimed the runs of this one. Thread-safe."""
        return self.remaining() >= 0

    def remaining(self) -> float:
        """Seconds in which no other process can claim the runs of this one; negative if one may have. Thread-safe."""
        return self._valid_until - self._clock.monotonic()

    def check(self) -> None:
        """Raise STALE_FENCE while the lease may have expired."""
        if not self.is_valid:
            raise RunwrightError(ErrorCode.STALE_FENCE, "The lease of this process has expired.")

    async def wait(self, fence: Fence) -> None:
        """Wait until the lease of this fence is valid. Raises STALE_FENCE if it was replaced."""
        while self.fence == fence:
            if self.is_valid:
                return
            await self._changed.wait()
        raise stale_fence()

    async def ensure(self) -> None:
        """Make sure that the lease is valid: it may have expired while this process could not renew it."""
        if not self.is_valid and self.lease is not None:
            await self.renew_or_replace(self.lease)

    async def renew_or_replace(self, lease: Lease) -> None:
        """Extend a lease now, or acquire a new one if it is lost."""
        try:
            await self._renew(lease)
        except RunwrightError as error:
            if error.code != ErrorCode.LEASE_LOST:
                raise
            await self._replace(lease, error)

    @property
    def renewal_pause(self) -> float:
        """Seconds until the next renewal."""
        return self._ttl / 3 if self.is_valid else min(_RETRY_SECONDS, self._ttl / 3)

    def start_thread(self) -> None:
        """Renew the lease from a thread, if the store permits that."""
        renewer = self._log.store.lease_renewer()
        if renewer is not None:
            self._thread = LeaseThread(self, renewer, self._clock, self._loop_timeout, self._attention.set)

    async def stop_thread(self) -> None:
        if self._thread is not None:
            await self._thread.close()

    async def renew_loop(self) -> None:
        """Renew the lease when that is the task of the event loop, and replace it if it is lost."""
        while True:
            if self._thread is None:
                await self._clock.sleep(self.renewal_pause)
            else:
                await self._attention.wait()
                self._attention.clear()
            assert self.lease is not None
            try:
                await self.renew_or_replace(self.lease)
            except RunwrightError as error:
                if error.code == ErrorCode.STORE_CLOSED:
                    return
                logger.warning("Renewing the lease failed, retrying: %s", error)

    def extend(self, renewed: Lease, requested: float) -> bool:
        """Extend the lease from the time of the request. False if it may have expired before. Thread-safe."""
        with self._lock:
            if not self.is_valid or self.lease is None or self.lease.epoch != renewed.epoch:
                return False
            self.lease = renewed
            self._valid_until = max(self._valid_until, requested + self._ttl * _SAFETY)
            return True

    async def release(self) -> None:
        if self.lease is not None:
            await self._log.leases.release(self.lease)

    async def _renew(self, lease: Lease) -> None:
        requested, valid_until = self._clock.monotonic(), self._valid_until
        renewed = await self._log.leases.renew(lease)
        if self._clock.monotonic() > valid_until:
            await self._on_regained(renewed)
        if self.lease is not None and self.lease.epoch == lease.epoch:
            self._set_valid(renewed, requested)

    async def _replace(self, lost: Lease, reason: RunwrightError) -> None:
        """Acquire a new lease instead of a lost one, unless that was done already."""
        async with self._replacing:
            if self.lease is not None and self.lease.epoch != lost.epoch:
                return
            logger.warning("The lease was lost; other processes may claim its runs: %s", reason)
            await self.acquire()
            await self._on_lost()

    def _set_valid(self, lease: Lease, since: float) -> None:
        with self._lock:
            self.lease = lease
            self._valid_until = since + self._ttl * _SAFETY
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
