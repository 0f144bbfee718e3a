"""A thread that renews the lease of this process, so that work on the event loop cannot delay it.

It stops renewing when the event loop has not answered for `loop_timeout`: then other processes take over the runs.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from typing import Protocol

from runwright.contract.clock import Clock
from runwright.contract.errors import ErrorCode, RunwrightError
from runwright.log.model import Lease
from runwright.log.store import LeaseRenewer

logger = logging.getLogger("runwright.runtimes")


class RenewedLease(Protocol):
    """The lease that the thread renews. All methods are thread-safe."""

    @property
    def lease(self) -> Lease | None: ...

    @property
    def renewal_pause(self) -> float:
        """Seconds until the next renewal."""
        ...

    def extend(self, renewed: Lease, requested: float) -> bool:
        """Extend the lease from the time of the request. False if it may have expired before: then the event loop has
        to find out which runs are still owned."""
        ...


class LeaseThread:
    """`on_attention` is called on the event loop when the lease was lost, or may have expired."""

    def __init__(
        self,
        kept: RenewedLease,
        renewer: LeaseRenewer,
        clock: Clock,
        loop_timeout: float,
        on_attention: Callable[[], None],
    ) -> None:
        self._kept = kept
        self._renewer = renewer
        self._clock = clock
        self._loop_timeout = loop_timeout
        self._on_attention = on_attention
        self._loop = asyncio.get_running_loop()
        self._asked_at: float | None = None  # when the event loop was asked, until it answers
        self._is_silent = False
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="runwright-lease", daemon=True)
        self._thread.start()

    async def close(self) -> None:
        self._stop.set()
        await asyncio.to_thread(self._thread.join)

    # On the thread

    def _run(self) -> None:
        try:
            while not self._stop.wait(self._kept.renewal_pause):
                try:
                    if self._is_loop_alive():
                        self._renew()
                except RuntimeError as error:
                    if self._loop.is_closed():
                        return
                    logger.error("Renewing the lease failed, retrying", exc_info=error)
        finally:
            self._renewer.close()

    def _on_answer(self) -> None:
        """Runs on the event loop."""
        self._asked_at = None

    def _is_loop_alive(self) -> bool:
        now, asked_at = self._clock.monotonic(), self._asked_at
        if asked_at is None:
            asked_at = self._asked_at = now
            self._loop.call_soon_threadsafe(self._on_answer)
        silence = now - asked_at
        was_silent, self._is_silent = self._is_silent, silence > self._loop_timeout
        if self._is_silent and not was_silent:
            logger.error("The event loop has not answered for %.0f s: the lease is not renewed any more", silence)
        return not self._is_silent

    def _renew(self) -> None:
        lease, requested = self._kept.lease, self._clock.monotonic()
        if lease is None:
            return
        try:
            is_extended = self._kept.extend(self._renewer.renew(lease), requested)
        except RunwrightError as error:
            if error.code != ErrorCode.LEASE_LOST:
                logger.warning("Renewing the lease failed, retrying: %s", error)
                return
            is_extended = False
        if not is_extended:
            self._loop.call_soon_threadsafe(self._on_attention)
