"""Append requests on their way to the store, each with a write budget.

A request that is still queued when its write budget ends is withdrawn: it was certainly not written. The outcome of
a request that the store has already started is unknown: the error states this, and the caller resolves it by
appending the same events again (their keys make that safe), never by appending the opposite.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

from runwright.contract.errors import ErrorCode, RunwrightError

from .authority import RunAppend

T = TypeVar("T")


def store_closed() -> RunwrightError:
    return RunwrightError(ErrorCode.STORE_CLOSED, "The log is not open. Use `async with rw.open_log(...)`.")


class AppendRequest:
    """One append call: its appends by run, and the future that its caller awaits."""

    __slots__ = (
        "_failed_appends",
        "_is_started",
        "_is_withdrawn",
        "_lock",
        "_open_appends",
        "appends",
        "deadline",
        "error",
        "future",
    )

    def __init__(self, appends: Sequence[RunAppend], future: asyncio.Future[None], deadline: float) -> None:
        self.appends = appends
        self.future = future
        self.deadline = deadline
        self.error: RunwrightError | None = None
        self._failed_appends = 0
        self._lock = threading.Lock()  # The store may run on another thread.
        self._is_started = self._is_withdrawn = False
        self._open_appends = len(appends)

    def start(self) -> bool:
        """Mark the request as started by the store; False if it was withdrawn before."""
        with self._lock:
            self._is_started = self._is_started or not self._is_withdrawn
            return self._is_started

    def cancel(self) -> bool:
        """Withdraw the request; False if the store has already started it."""
        with self._lock:
            self._is_withdrawn = self._is_withdrawn or not self._is_started
            return self._is_withdrawn

    def finish_append(self, error: RunwrightError | None = None) -> None:
        """Record that one append has results, or failed. The last one wakes the caller, on its loop."""
        self._open_appends -= 1
        if error is not None:
            self._failed_appends += 1
            if self.error is None or error.facts.get("outcome") == "unknown":
                self.error = RunwrightError(error.code, error.detail, **error.facts)
        if self._open_appends:
            return
        if self.error is not None and self._failed_appends < len(self.appends):
            self.error.facts["outcome"] = "unknown"  # A part of the request was written.
        self.resolve()

    def resolve(self) -> None:
        """Wake the caller. Runs on the caller's loop."""
        if self.future.done():
            return
        if self.error is not None:
            self.future.set_exception(self.error)
        else:
            self.future.set_result(None)


class AppendQueue:
    """Requests in flight, oldest first, and a timer for the budget of the oldest. Open while its store is."""

    def __init__(self, budget: float, monotonic: Callable[[], float]) -> None:
        self.budget = budget
        self._monotonic = monotonic
        self._in_flight: dict[AppendRequest, None] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._write: Callable[[AppendRequest], None] | None = None

    def open(self, write: Callable[[AppendRequest], None]) -> None:
        """Accept appends. `write` validates and commits a request, which then resolves its future."""
        self._write = write

    async def submit(self, appends: Sequence[RunAppend]) -> None:
        """Pass the appends to the store and wait until all of them have results."""
        if self._write is None:
            raise store_closed()
        loop = asyncio.get_running_loop()
        request = AppendRequest(appends, loop.create_future(), self._monotonic() + self.budget)
        self._in_flight[request] = None
        if self._timer is None:
            self._timer = loop.call_later(self.budget, self._check_budgets, loop)
        try:
            self._write(request)
            await request.future
        except asyncio.CancelledError:
            request.cancel()
            raise
        finally:
            del self._in_flight[request]

    async def within_budget(self, future: asyncio.Future[T]) -> T:
        """Wait for an operation other than an append, for at most the write budget."""
        try:
            async with asyncio.timeout(self.budget):  # asyncio.wait_for may swallow a cancellation.
                return await future
        except TimeoutError:
            raise RunwrightError(
                ErrorCode.STORE_WRITE_BUDGET_EXCEEDED,
                f"The store timed out after {self.budget:g} s. Try again.",
                outcome="unknown",
                retryable=True,
            ) from None

    def _check_budgets(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = None
        now = self._monotonic()
        for request in list(self._in_flight):
            if request.deadline > now:
                self._timer = loop.call_later(request.deadline - now, self._check_budgets, loop)
                return
            if not request.future.done():
                request.future.set_exception(self._budget_exceeded(request))

    def _budget_exceeded(self, request: AppendRequest) -> RunwrightError:
        withdrawn = request.cancel()
        outcome = (
            "It was not written."
            if withdrawn
            else "Whether it was written is unknown: append the same events again to find out."
        )
        return RunwrightError(
            ErrorCode.STORE_WRITE_BUDGET_EXCEEDED,
            f"The append timed out after {self.budget:g} s. {outcome}",
            outcome="withdrawn" if withdrawn else "unknown",
            retryable=True,
        )

    def close(self) -> None:
        self._write = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
