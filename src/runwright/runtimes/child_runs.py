"""The runs of the attempts of a step, as the log of its run names them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from runwright.core.fold.execution_state import ChildRun

from .facts import ChildRunNamed, Fact
from .run_session import RunSession


class ChildRunsOfStep:
    """The runs of the attempts of a step: read from the state of the run, and written as facts."""

    def __init__(self, session: RunSession, report: Callable[[Fact], None], path: str) -> None:
        self._session = session
        self._report = report
        self._path = path

    def find(self, attempt: int) -> ChildRun | None:
        return self._session.decider.execution.child_run(self._path, attempt)

    async def add(self, child: ChildRun) -> None:
        durable: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def on_done(error: Exception | None) -> None:
            if durable.done():
                return
            if error is None:
                durable.set_result(None)
            else:
                durable.set_exception(error)

        self._report(ChildRunNamed(self._path, child, on_done))
        await durable
