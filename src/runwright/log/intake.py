"""Appends on their way to the store: who waits for what, and for how long.

A request that is still queued when its write budget ends is withdrawn: it was certainly not written.
One that the store has already taken up may or may not get in: its caller is told so, and settles it
by appending the same events again (their keys make that safe), never by appending the opposite.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

from runwright.contract.errors import ErrorCode, RunwrightError

from .judge import Unit

T = TypeVar("T")


class Request:
    """One append call: its units, and the future that its caller awaits."""

    __slots__ = (
        "_begun",
        "_failed_units",
        "_gate",
        "_open_units",
        "_withdrawn",
        "deadline",
        "error",
        "future",
        "units",
    )

    def __init__(self, units: Sequence[Unit], future: asyncio.Future[None], deadline: float) -> None:
        self.units = units
        self.future = future
        self.deadline = deadline
        self.error: RunwrightError | None = None
        self._failed_units = 0
        self._gate = threading.Lock()  # the store may be another thread
        self._begun = self._withdrawn = False
        self._open_units = len(units)

    def begin(self) -> bool:
        """The store takes the request up; False if it was withdrawn before."""
        with self._gate:
            self._begun = self._begun or not self._withdrawn
            return self._begun

    def withdraw(self) -> bool:
        """Nobody waits for the request any more; False if the store has taken it up already."""
        with self._gate:
            self._withdrawn = self._withdrawn or not self._begun
            return self._withdrawn

    def unit_done(self, error: RunwrightError | None = None) -> None:
        """Note that one unit has its results, or failed. With the last one the caller is woken, on its loop."""
        self._open_units -= 1
        if error is not None:
            self._failed_units += 1
            if self.error is None or error.facts.get("outcome") == "unknown":
                self.error = RunwrightError(error.code, error.detail, **error.facts)
        if self._open_units:
            return
        if self.error is not None and self._failed_units < len(self.units):
            self.error.facts["outcome"] = "unknown"  # a part of it went in
        self.settle()

    def settle(self) -> None:
        """Wake the caller. Runs on the caller's loop."""
        if self.future.done():
            return
        if self.error is not None:
            self.future.set_exception(self.error)
        else:
            self.future.set_result(None)


class Intake:
    """The requests under way, oldest first, and the alarm for the oldest one's budget."""

    def __init__(self, budget: float, monotonic: Callable[[], float]) -> None:
        self.budget = budget
        self._monotonic = monotonic
        self._under_way: dict[Request, None] = {}
        self._alarm: asyncio.TimerHandle | None = None

    async def submit(self, units: Sequence[Unit], enqueue: Callable[[Request], None]) -> None:
        """Queue the units and wait until all of them have results."""
        loop = asyncio.get_running_loop()
        request = Request(units, loop.create_future(), self._monotonic() + self.budget)
        self._under_way[request] = None
        if self._alarm is None:
            self._alarm = loop.call_later(self.budget, self._check_budgets, loop)
        try:
            enqueue(request)
            await request.future
        except asyncio.CancelledError:
            request.withdraw()
            raise
        finally:
            del self._under_way[request]

    async def in_time(self, future: asyncio.Future[T]) -> T:
        """Wait for something else than an append, for as long as an append may take."""
        try:
            async with asyncio.timeout(self.budget):  # wait_for may swallow a cancellation
                return await future
        except TimeoutError:
            raise RunwrightError(
                ErrorCode.STORE_WRITE_BUDGET_EXCEEDED,
                f"The store did not answer within {self.budget:g} s. Try again.",
                outcome="unknown",
                retryable=True,
            ) from None

    def _check_budgets(self, loop: asyncio.AbstractEventLoop) -> None:
        self._alarm = None
        now = self._monotonic()
        for request in list(self._under_way):
            if request.deadline > now:
                self._alarm = loop.call_later(request.deadline - now, self._check_budgets, loop)
                return
            if not request.future.done():
                request.future.set_exception(self._too_late(request))

    def _too_late(self, request: Request) -> RunwrightError:
        withdrawn = request.withdraw()
        outcome = (
            "It was not written."
            if withdrawn
            else "Whether it was written is unknown: append the same events again to find out."
        )
        return RunwrightError(
            ErrorCode.STORE_WRITE_BUDGET_EXCEEDED,
            f"The store did not confirm the append within {self.budget:g} s. {outcome}",
            outcome="withdrawn" if withdrawn else "unknown",
            retryable=True,
        )

    def close(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
