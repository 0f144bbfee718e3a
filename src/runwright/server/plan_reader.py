"""Reads the plans that callers send, on threads of their own: however large they are, nothing else waits for them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar
from weakref import WeakValueDictionary

from runwright.contract.errors import ErrorCode, RunwrightError
from runwright.plans.load_limits import LoadCancelled, load_limits

T = TypeVar("T")

THREADS = 2


class PlanReader:
    """Every caller has one plan read at a time, so that none occupies all threads."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="runwright-plan")
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def read(self, caller: str, read: Callable[[], T], disconnected: Awaitable[None]) -> T:
        """Read a plan. `disconnected` ends when the caller has gone: then the plan is not read to its end."""
        gone = asyncio.ensure_future(disconnected)
        work = asyncio.ensure_future(self._read_in_turn(caller, read))
        try:
            await asyncio.wait((work, gone), return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                raise RunwrightError(ErrorCode.REQUEST_TIMEOUT, "The caller has disconnected.")
            return work.result()
        finally:
            gone.cancel()
            work.cancel()

    async def _read_in_turn(self, caller: str, read: Callable[[], T]) -> T:
        turn = self._turns.setdefault(caller, asyncio.Lock())
        async with turn:
            is_cancelled = threading.Event()

            def work() -> T:
                with load_limits(is_cancelled=is_cancelled.is_set):
                    return read()

            future = self._pool.submit(work)
            try:
                return await asyncio.wrap_future(future)
            except asyncio.CancelledError:
                is_cancelled.set()
                raise
            except LoadCancelled:
                raise RunwrightError(ErrorCode.REQUEST_TIMEOUT, "The caller has disconnected.") from None

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)
