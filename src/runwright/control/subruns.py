"""Steps that are runs of other plans. Such a run has a log of its own, and ends no later than its parent.

Its id says where it belongs: `<parent>/<step>`, with `~2` for the second attempt. So whoever takes the parent up after
a crash finds it again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from runwright.contract import payloads
from runwright.contract.errors import STORE_CODES, ErrorCode, RunwrightError
from runwright.contract.events import RunIdentity
from runwright.contract.refs import ErrorInfo
from runwright.contract.snapshot import RunSnapshot
from runwright.contract.transitions import RunStatus
from runwright.core.reading import read_payload
from runwright.results.encoding import encode_result
from runwright.runtimes.executor import Outcome, Work
from runwright.runtimes.work import Execution

from .access import ENGINE, Actor

if TYPE_CHECKING:
    from .operations import Operations

logger = logging.getLogger("runwright.engine")

LONGEST_ID = 512
PASSING = frozenset({*STORE_CODES, ErrorCode.STALE_FENCE, ErrorCode.RUN_OWNED, ErrorCode.LEASE_LOST})
"""Troubles with the other run that are over sooner or later: it changes hands, or the store is away."""

STORE_PAUSE = 0.5


def child_id(parent_run_id: str, path: str, attempt: int) -> str:
    """The id of the run that an attempt of a step is."""
    name = f"{parent_run_id}/{path}" + (f"~{attempt}" if attempt > 1 else "")
    return name if len(name) <= LONGEST_ID else f"{name[: LONGEST_ID - 33]}/{sha256(name.encode()).hexdigest()[:32]}"


class SubRuns:
    def __init__(self, operations: Operations) -> None:
        self._operations = operations

    def start(self, work: Work, parent: RunIdentity, done: Callable[[Outcome], None]) -> Execution:
        return SubRun(self._operations, work, parent, done)

    async def stop(self, parent: RunIdentity, path: str, attempt: int) -> None:
        """The parent ends, and whoever drove it is gone: see that its run ends too."""
        await _send(self._operations, parent, child_id(parent.run_id, path, attempt), "CANCEL", {})


class SubRun:
    """A run that is somebody's step. To the parent's driver it is a piece of work like any other."""

    def __init__(
        self, operations: Operations, work: Work, parent: RunIdentity, done: Callable[[Outcome], None]
    ) -> None:
        self._operations = operations
        self._work = work
        self._parent = parent
        self._done = done
        self._stopping = False
        self._begun = asyncio.Event()  # or it is known that it never will be
        self.run_id = child_id(parent.run_id, work.context.step_id, work.context.attempt)
        self._task = asyncio.create_task(self._live())

    def cancel(self, grace: float) -> None:  # noqa: ARG002 - its own steps have theirs
        if not self._stopping:
            self._stopping = True
            self._operations.engine.do(self._stop("CANCEL", {}))

    def kill(self) -> None:
        self._stopping = True
        self._operations.engine.do(self._stop("EMERGENCY_STOP", {"reason": _why(self._parent)}))

    def let_go(self) -> None:
        self._task.cancel()

    async def _stop(self, signal_type: str, payload: dict[str, Any]) -> None:
        await self._begun.wait()
        await _send(self._operations, self._parent, self.run_id, signal_type, payload)

    async def _live(self) -> None:
        try:
            outcome = await self._run()
        except RunwrightError as error:
            outcome = Outcome(error=ErrorInfo(error.code, error.detail, retryable=False, category="plan"))
        except Exception as error:
            logger.exception("The sub-run %s failed", self.run_id)
            outcome = Outcome(error=ErrorInfo("SUBRUN_FAILED", f"{type(error).__name__}: {error}", False, "system"))
        finally:
            self._begun.set()
        self._work.context.end_output()
        self._done(outcome)

    async def _run(self) -> Outcome:
        self._work.context.write("out", f"This step is the run {self.run_id}\n".encode())
        while True:
            try:
                if not self._begun.is_set():
                    await self._operations.start_child(self.run_id, self._work, self._parent)
                    self._begun.set()
                return await self._outcome(await self._operations.wait(self.run_id))
            except RunwrightError as error:
                if error.code not in PASSING:
                    raise
                await self._operations.engine.clock.sleep(STORE_PAUSE)

    async def _outcome(self, ended: RunSnapshot) -> Outcome:
        if ended.status is RunStatus.COMPLETED:
            return Outcome(encode_result(await self._operations.run_result(self.run_id)))
        if ended.status is RunStatus.CANCELLED:
            message = f"The run {self.run_id} was cancelled."
            return Outcome(error=ErrorInfo("SUBRUN_CANCELLED", message, retryable=False, category="operator"))
        cause = ended.root_cause
        why = "." if cause is None else f", at step {cause.step_id!r}: {cause.code} {cause.message or ''}"
        retryable = await self._may_be_tried_again()
        return Outcome(error=ErrorInfo("SUBRUN_FAILED", f"The run {self.run_id} failed{why}", retryable, "user"))

    async def _may_be_tried_again(self) -> bool:
        """Not if what failed in it says that it would fail again."""
        record = await self._operations.log.find_event(self.run_id, "RunFailed")
        error = None if record is None else read_payload(payloads.RunEnded, record).error
        return error is None or error.retryable is not False


async def _send(
    operations: Operations, parent: RunIdentity, run_id: str, signal_type: str, payload: dict[str, Any]
) -> None:
    """Have a run stopped. The store may have to come back first."""
    actor = Actor(f"run:{parent.run_id}"[:256], ("Admin",), ENGINE)
    while True:
        try:
            await operations.acting_as(actor).signal(run_id, signal_type, payload, reason=_why(parent))
            return
        except RunwrightError as error:
            if error.code == ErrorCode.RUN_NOT_FOUND:
                return  # it never began
            if error.code not in PASSING or operations.engine.is_closing:
                logger.warning("The sub-run %s could not be stopped: %s", run_id, error)
                return
            await operations.engine.clock.sleep(STORE_PAUSE)


def _why(parent: RunIdentity) -> str:
    return f"Its parent, run {parent.run_id}, stops."[:500]
