"""Sub-runs: steps that are runs of other plans. A sub-run has its own log, and ends no later than its parent.

Its id is derived from its parent: `<parent>/<step>`, with `~2` for the second attempt. So a process that recovers the
parent finds it again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from hashlib import sha256
from typing import Any, Protocol

from runwright.auth.roles import ENGINE, Actor
from runwright.contract import payloads
from runwright.contract.errors import STORE_CODES, ErrorCode, RunwrightError
from runwright.contract.events import RunIdentity
from runwright.contract.refs import ErrorInfo
from runwright.contract.snapshot import RunSnapshot
from runwright.contract.transitions import RunStatus
from runwright.core.fold.payload_reader import read_payload
from runwright.log.run_log import RunLog
from runwright.runtimes.executor.executor import Outcome, Work
from runwright.runtimes.protocols import Execution
from runwright.runtimes.services import RunServices
from runwright.storage.json_encoding import encode_result

logger = logging.getLogger("runwright.control")

MAX_ID_LENGTH = 512
TRANSIENT_CODES = frozenset({*STORE_CODES, ErrorCode.STALE_FENCE, ErrorCode.RUN_OWNED, ErrorCode.LEASE_LOST})
"""Transient errors: the sub-run moves to another process, or the store is unavailable."""


def child_id(parent_run_id: str, path: str, attempt: int) -> str:
    """The id of the sub-run of an attempt."""
    name = f"{parent_run_id}/{path}" + (f"~{attempt}" if attempt > 1 else "")
    return (
        name if len(name) <= MAX_ID_LENGTH else f"{name[: MAX_ID_LENGTH - 33]}/{sha256(name.encode()).hexdigest()[:32]}"
    )


class ChildRuns(Protocol):
    """The operations that sub-runs need."""

    @property
    def log(self) -> RunLog: ...
    @property
    def services(self) -> RunServices: ...

    async def start_child(self, run_id: str, work: Work, parent: RunIdentity) -> None: ...
    async def wait(self, run_id: str, timeout: float | None = None) -> RunSnapshot: ...
    async def run_result(self, run_id: str) -> Any: ...
    async def signal_as(
        self, actor: Actor, run_id: str, signal_type: str, payload: dict[str, Any], reason: str
    ) -> object: ...


class SubRuns:
    def __init__(self, operations: ChildRuns) -> None:
        self._operations = operations

    def start(self, work: Work, parent: RunIdentity, done: Callable[[Outcome], None]) -> Execution:
        return SubRun(self._operations, work, parent, done)

    async def stop(self, parent: RunIdentity, path: str, attempt: int) -> None:
        """Cancel the sub-run of a parent that ends, and whose driver is gone."""
        await _send(self._operations, parent, child_id(parent.run_id, path, attempt), "CANCEL", {})


class SubRun:
    """The execution of a step that is a run."""

    def __init__(self, operations: ChildRuns, work: Work, parent: RunIdentity, done: Callable[[Outcome], None]) -> None:
        self._operations = operations
        self._work = work
        self._parent = parent
        self._done = done
        self._stopping = False
        self._started = asyncio.Event()  # also set if it will never start
        self.run_id = child_id(parent.run_id, work.context.step_id, work.context.attempt)
        self._task = asyncio.create_task(self._execute())

    def cancel(self, grace: float) -> None:  # noqa: ARG002 - its own steps have their grace
        if not self._stopping:
            self._stopping = True
            self._operations.services.spawn(self._stop("CANCEL", {}))

    def kill(self) -> None:
        self._stopping = True
        self._operations.services.spawn(self._stop("EMERGENCY_STOP", {"reason": _reason(self._parent)}))

    def detach(self) -> None:
        self._task.cancel()

    async def _stop(self, signal_type: str, payload: dict[str, Any]) -> None:
        await self._started.wait()
        await _send(self._operations, self._parent, self.run_id, signal_type, payload)

    async def _execute(self) -> None:
        try:
            outcome = await self._run()
        except RunwrightError as error:
            outcome = Outcome(error=ErrorInfo(error.code, error.detail, retryable=False, category="plan"))
        except Exception as error:
            logger.exception("The sub-run %s failed", self.run_id)
            outcome = Outcome(error=ErrorInfo("SUBRUN_FAILED", f"{type(error).__name__}: {error}", False, "system"))
        finally:
            self._started.set()
        self._work.context.end_output()
        self._done(outcome)

    async def _run(self) -> Outcome:
        self._work.context.write("out", f"This step is the run {self.run_id}\n".encode())
        while True:
            try:
                if not self._started.is_set():
                    await self._operations.start_child(self.run_id, self._work, self._parent)
                    self._started.set()
                return await self._outcome(await self._operations.wait(self.run_id))
            except RunwrightError as error:
                if error.code not in TRANSIENT_CODES:
                    raise
                await self._operations.services.wait_for_store()

    async def _outcome(self, ended: RunSnapshot) -> Outcome:
        if ended.status is RunStatus.COMPLETED:
            return Outcome(encode_result(await self._operations.run_result(self.run_id)))
        if ended.status is RunStatus.CANCELLED:
            message = f"The run {self.run_id} was cancelled."
            return Outcome(error=ErrorInfo("SUBRUN_CANCELLED", message, retryable=False, category="operator"))
        cause = ended.root_cause
        why = "." if cause is None else f", at step {cause.step_id!r}: {cause.code} {cause.message or ''}"
        retryable = await self._is_retryable()
        return Outcome(error=ErrorInfo("SUBRUN_FAILED", f"The run {self.run_id} failed{why}", retryable, "user"))

    async def _is_retryable(self) -> bool:
        """Not if the error of the sub-run is not retryable."""
        record = await self._operations.log.find_event(self.run_id, "RunFailed")
        error = None if record is None else read_payload(payloads.RunEnded, record).error
        return error is None or error.retryable is not False


async def _send(
    operations: ChildRuns, parent: RunIdentity, run_id: str, signal_type: str, payload: dict[str, Any]
) -> None:
    """Send a stop signal to a sub-run, retrying while the store is unavailable."""
    actor = Actor(f"run:{parent.run_id}"[:256], ("Admin",), ENGINE)
    while True:
        try:
            await operations.signal_as(actor, run_id, signal_type, payload, _reason(parent))
            return
        except RunwrightError as error:
            if error.code == ErrorCode.RUN_NOT_FOUND:
                return  # it never started
            if error.code not in TRANSIENT_CODES or operations.services.is_closing:
                logger.warning("Stopping the sub-run %s failed: %s", run_id, error)
                return
            await operations.services.wait_for_store()


def _reason(parent: RunIdentity) -> str:
    return f"Its parent run {parent.run_id} ends."[:500]
