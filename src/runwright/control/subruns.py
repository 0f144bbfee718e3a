"""Sub-runs: steps that are runs of other plans. A sub-run has its own log, and ends no later than its parent.

The log of the parent names the sub-run before it is created, so that a process that recovers the parent finds it again.
The id is `<parent>/<step>`, with `~2` for the second attempt; if it is taken, a random suffix is added. An id proves
nothing: a run is a sub-run only if its own log names the parent and the plan, in the same tenant (`is_child_run`). The
parent acts on it with the rights of its own tenant.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from hashlib import sha256
from secrets import token_hex
from typing import Any, Protocol

import msgspec

from runwright.auth.roles import ENGINE, Actor
from runwright.contract import payloads
from runwright.contract.errors import STORE_CODES, ErrorCode, RunwrightError
from runwright.contract.events import RunIdentity
from runwright.contract.refs import ErrorInfo
from runwright.contract.snapshot import RunSnapshot
from runwright.contract.transitions import RunStatus
from runwright.core.fold.execution_state import ChildRun
from runwright.core.fold.payload_reader import read_payload
from runwright.log.protocols import run_or_none
from runwright.log.run_log import RunLog
from runwright.plans.registry import hash_from_ref
from runwright.runtimes.executor.executor import Outcome, Work
from runwright.runtimes.protocols import Execution, NamedChildRuns
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


def _with_random_suffix(run_id: str) -> str:
    suffix = f".{token_hex(8)}"
    return run_id[: MAX_ID_LENGTH - len(suffix)] + suffix


async def is_child_run(log: RunLog, child: ChildRun, parent: RunIdentity) -> bool:
    """Return whether the run's own log names this parent, and the plan that the parent named."""
    row = await run_or_none(log, child.run_id)
    if row is None or row.identity.tenant_id != parent.tenant_id:
        return False
    queued = await log.find_event(child.run_id, "RunQueued")
    started = await log.find_event(child.run_id, "RunStarted")
    if queued is None or started is None:
        return False
    plan_ref = read_payload(payloads.RunStarted, started).plan_ref
    named_parent = read_payload(payloads.RunQueued, queued).parent_run_id
    return named_parent == parent.run_id and plan_ref is not None and plan_ref.sha256 == child.plan_sha256


class ChildRuns(Protocol):
    """The operations that sub-runs need."""

    @property
    def log(self) -> RunLog: ...
    @property
    def services(self) -> RunServices: ...

    async def start_child(self, child: ChildRun, work: Work, parent: RunIdentity, before: ChildRun | None) -> None: ...
    async def wait(self, run_id: str, timeout: float | None = None) -> RunSnapshot: ...
    async def run_result(self, run_id: str) -> Any: ...
    async def signal_as(
        self, actor: Actor, run_id: str, signal_type: str, payload: dict[str, Any], reason: str
    ) -> object: ...


class SubRuns:
    def __init__(self, operations: ChildRuns) -> None:
        self._operations = operations

    def start(
        self, work: Work, parent: RunIdentity, named: NamedChildRuns, done: Callable[[Outcome], None]
    ) -> Execution:
        return SubRun(self._operations, work, parent, named, done)

    async def stop(self, parent: RunIdentity, child: ChildRun) -> None:
        """Cancel the sub-run of a parent that ends, and whose driver is gone."""
        await _send(self._operations, parent, child, "CANCEL", {})


class SubRun:
    """The execution of a step that is a run."""

    def __init__(
        self,
        operations: ChildRuns,
        work: Work,
        parent: RunIdentity,
        named: NamedChildRuns,
        done: Callable[[Outcome], None],
    ) -> None:
        self._operations = operations
        self._work = work
        self._parent = parent
        self._named = named
        self._done = done
        self._stopping = False
        self._started = asyncio.Event()  # also set if it will never start
        self._child: ChildRun | None = None  # set when it exists
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
        if self._child is not None:
            await _send(self._operations, self._parent, self._child, signal_type, payload)

    async def _execute(self) -> None:
        try:
            outcome = await self._run()
        except RunwrightError as error:
            outcome = Outcome(error=ErrorInfo(error.code, error.detail, retryable=False, category="plan"))
        except Exception as error:
            logger.exception("A sub-run of run %s failed", self._parent.run_id)
            outcome = Outcome(error=ErrorInfo("SUBRUN_FAILED", f"{type(error).__name__}: {error}", False, "system"))
        finally:
            self._started.set()
        self._work.context.end_output()
        self._done(outcome)

    async def _run(self) -> Outcome:
        while True:
            try:
                if self._child is None:
                    self._child = await self._start()
                    self._work.context.write("out", f"This step is the run {self._child.run_id}\n".encode())
                    self._started.set()
                ended = await self._operations.wait(self._child.run_id)
                return await self._outcome(self._child.run_id, ended)
            except RunwrightError as error:
                if error.code not in TRANSIENT_CODES:
                    raise
                await self._operations.services.wait_for_store()

    async def _start(self) -> ChildRun:
        """Start the sub-run, or resume it. The log of the parent names it first."""
        attempt = self._work.context.attempt
        before = self._named.find(attempt - 1)
        while True:
            child = self._named.find(attempt) or await self._name(is_taken=False)
            try:
                await self._operations.start_child(child, self._work, self._parent, before)
            except RunwrightError as error:
                if error.code != ErrorCode.RUN_ALREADY_EXISTS:
                    raise
                await self._name(is_taken=True)
            else:
                return child

    async def _name(self, *, is_taken: bool) -> ChildRun:
        """Write an id for the sub-run to the log of the parent: the derived one, unless another run has it."""
        context = self._work.context
        run_id = child_id(self._parent.run_id, context.step_id, context.attempt)
        child = ChildRun(context.attempt, run_id, hash_from_ref(self._work.inputs.ref))
        log = self._operations.log
        if is_taken or (await run_or_none(log, run_id) and not await is_child_run(log, child, self._parent)):
            child = msgspec.structs.replace(child, run_id=_with_random_suffix(run_id))
        await self._named.add(child)
        return child

    async def _outcome(self, run_id: str, ended: RunSnapshot) -> Outcome:
        if ended.status is RunStatus.COMPLETED:
            return Outcome(encode_result(await self._operations.run_result(run_id)))
        if ended.status is RunStatus.CANCELLED:
            message = f"The run {run_id} was cancelled."
            return Outcome(error=ErrorInfo("SUBRUN_CANCELLED", message, retryable=False, category="operator"))
        cause = ended.root_cause
        why = "." if cause is None else f", at step {cause.step_id!r}: {cause.code} {cause.message or ''}"
        retryable = await self._is_retryable(run_id)
        return Outcome(error=ErrorInfo("SUBRUN_FAILED", f"The run {run_id} failed{why}", retryable, "user"))

    async def _is_retryable(self, run_id: str) -> bool:
        """Not if the error of the sub-run is not retryable."""
        record = await self._operations.log.find_event(run_id, "RunFailed")
        error = None if record is None else read_payload(payloads.RunEnded, record).error
        return error is None or error.retryable is not False


async def _send(
    operations: ChildRuns, parent: RunIdentity, child: ChildRun, signal_type: str, payload: dict[str, Any]
) -> None:
    """Send a stop signal to a sub-run, retrying while the store is unavailable."""
    actor = Actor(f"run:{parent.run_id}"[:256], ("Admin",), ENGINE, parent.tenant_id)
    while True:
        try:
            if not await is_child_run(operations.log, child, parent):
                return  # it never started, or another run took its id
            await operations.signal_as(actor, child.run_id, signal_type, payload, _reason(parent))
            return
        except RunwrightError as error:
            if error.code not in TRANSIENT_CODES or operations.services.is_closing:
                logger.warning("Stopping the sub-run %s failed: %s", child.run_id, error)
                return
            await operations.services.wait_for_store()


def _reason(parent: RunIdentity) -> str:
    return f"Its parent run {parent.run_id} ends."[:500]
