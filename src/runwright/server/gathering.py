"""Single events that many callers post at the same time go to the log together.

While some are being written the next are gathered, and go off in one piece. Where there are many callers, a short look
for the rest of them pays: the loop that hears them and the thread that writes would otherwise only take turns.
"""

from __future__ import annotations

import asyncio

from runwright.contract.errors import RunwrightError
from runwright.log.base import RunLog
from runwright.log.model import Outcome

MANY = 16
"""Callers from whom on it pays to wait for the others."""

QUIET_SECONDS = 0.0005
"""When nobody came for so long, whoever is there goes off."""

LONGEST_SECONDS = 0.01


class Gathering:
    def __init__(self, log: RunLog) -> None:
        self._log = log
        self._held: list[tuple[bytes, asyncio.Future[Outcome]]] = []
        self._callers = 0
        self._usual = 0  # callers at a time, lately
        self._writing: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._seen = 0  # when the timer was set, so many were held
        self._until = 0.0

    async def take(self, line: bytes) -> Outcome:
        """Append one event, as JSON: a receipt or a refusal."""
        future: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self._held.append((line, future))
        self._callers += 1
        self._usual = max(self._usual, self._callers)
        self._look()
        try:
            return await future
        finally:
            self._callers -= 1

    def _look(self) -> None:
        if self._writing is not None or not self._held:
            return
        if self._usual < MANY or len(self._held) >= self._usual:
            self._send_off()
        elif self._timer is None:
            self._until = asyncio.get_running_loop().time() + LONGEST_SECONDS
            self._wait()

    def _wait(self) -> None:
        self._seen = len(self._held)
        self._timer = asyncio.get_running_loop().call_later(QUIET_SECONDS, self._is_quiet)

    def _is_quiet(self) -> None:
        self._timer = None
        if self._writing is not None or not self._held:
            return
        if len(self._held) > self._seen and asyncio.get_running_loop().time() < self._until:
            self._wait()
            return
        self._usual = max(len(self._held), self._usual * 3 // 4)  # some of them have gone
        self._send_off()

    def _send_off(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        held, self._held = self._held, []
        self._writing = asyncio.create_task(self._write(held))

    async def _write(self, held: list[tuple[bytes, asyncio.Future[Outcome]]]) -> None:
        try:
            outcomes = await self._log.take_each([line for line, _ in held])
            for (_, future), outcome in zip(held, outcomes, strict=True):
                if not future.done():
                    future.set_result(outcome)
        except RunwrightError as error:
            _fail(held, error)
        except BaseException as error:
            _fail(held, error)
            raise
        finally:
            self._writing = None
            self._look()


def _fail(held: list[tuple[bytes, asyncio.Future[Outcome]]], error: BaseException) -> None:
    for _, future in held:
        if not future.done():
            known = isinstance(error, RunwrightError)
            future.set_exception(RunwrightError(error.code, error.detail, **error.facts) if known else error)
