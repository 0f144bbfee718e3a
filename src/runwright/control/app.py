"""`rw.open()` and `rw.open_async()`: the engine in your own program.

The engine runs on a thread and an event loop of its own, so that a program that blocks its own loop cannot keep the
engine from renewing its lease.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Any, Self, TypeVar

from runwright.contract.errors import ErrorCode, RunwrightError
from runwright.contract.events import RunEventRecord
from runwright.contract.refs import PlanRef
from runwright.contract.snapshot import RunSnapshot
from runwright.contract.transitions import RunStatus
from runwright.contract.workflow_engine import (
    EngineRunRef,
    IWorkflowEngine,
    RunContext,
    RunStatusSnapshot,
    SignalRequest,
)
from runwright.flows.plan_function import PlanFunction
from runwright.flows.user_modules import refuse_during_import
from runwright.runtimes.settings import EngineSettings

from .bootstrap import open_operations
from .operations import Operations
from .plan_loader import AnyPlan
from .protocols import RunOperations
from .signal_rules import SignalDecision
from .workflow_engine import EmbeddedWorkflowEngine

T = TypeVar("T")
Plan = AnyPlan


OpenOperations = Callable[[], AbstractAsyncContextManager[RunOperations]]
"""Opens an engine in this process, or a connection to a server."""


class Host:
    """The thread of the engine or of the connection."""

    def __init__(self, open_operations: OpenOperations) -> None:
        self._open = open_operations
        self._ready: Future[RunOperations] = Future()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._thread = threading.Thread(target=self._main, name="runwright-engine", daemon=True)

    def start(self) -> None:
        refuse_during_import("rw.open() or rw.connect()")
        self._thread.start()
        self._ready.result()

    def _main(self) -> None:
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        try:
            async with self._open() as operations:
                self._ready.set_result(operations)
                await self._stop.wait()
        except BaseException as error:
            if self._ready.done():
                raise
            self._ready.set_exception(error)

    def submit(self, work: Callable[[RunOperations], Coroutine[Any, Any, T]]) -> Future[T]:
        if self._loop is None or not self._thread.is_alive():
            raise RunwrightError(ErrorCode.STORE_CLOSED, "This app is not open. Use `with rw.open() as app:`.")
        return asyncio.run_coroutine_threadsafe(work(self._ready.result()), self._loop)

    def close(self) -> None:
        if self._loop is not None and self._stop is not None and self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()


def _start(
    plan: Plan, params: dict[str, Any], run_id: str | None
) -> Callable[[RunOperations], Coroutine[Any, Any, str]]:
    arguments = plan.params(params) if isinstance(plan, PlanFunction) else params

    async def start(operations: RunOperations) -> str:
        loaded = await asyncio.to_thread(
            operations.load, plan
        )  # off the loop: loading a large plan takes longer than a lease
        return await operations.start(loaded, params=arguments, run_id=run_id)

    return start


def _rerun(
    run_id: str, from_step: str | None, force: bool, plan: Plan | None, params: dict[str, Any] | None
) -> Callable[[RunOperations], Coroutine[Any, Any, str]]:
    async def rerun(operations: RunOperations) -> str:
        loaded = None if plan is None else await asyncio.to_thread(operations.load, plan)
        return await operations.rerun(run_id, from_step=from_step, force=force, plan=loaded, params=params)

    return rerun


def _result(run_id: str, step_id: str | None) -> Callable[[RunOperations], Coroutine[Any, Any, Any]]:
    async def result(operations: RunOperations) -> Any:
        return await (operations.run_result(run_id) if step_id is None else operations.result(run_id, step_id))

    return result


def _typed(plan: Plan | None, step_id: str | None, value: Any) -> Any:
    """Convert a result to the return type of the function of the step."""
    return plan.typed(step_id, value) if isinstance(plan, PlanFunction) else value


async def _page(operations: RunOperations, run_id: str, after: int) -> list[RunEventRecord]:
    return await operations.log.read(run_id, after, 1000)


async def _follow(operations: RunOperations, run_id: str, after: int) -> list[RunEventRecord]:
    """The next events, waiting for them if necessary; empty once the run has ended and all were returned."""
    async for record in operations.events(run_id, after, follow=True):
        more = await operations.log.read(run_id, record.run_seq, 999)
        return [record, *more]
    return []


_ENDED = (RunStatus.COMPLETED, RunStatus.FAILED, RunStatus.CANCELLED)


async def _next_events(operations: RunOperations, run_id: str, after: int, follow: bool) -> list[RunEventRecord]:
    if not follow:
        return await _page(operations, run_id, after)
    row = await operations.log.find_run(run_id)
    if row.status in _ENDED and row.last_seq <= after:
        return []
    return await _follow(operations, run_id, after)


class Run:
    """A run, for synchronous programs."""

    def __init__(self, host: Host, run_id: str, plan: Plan | None = None) -> None:
        self._host = host
        self._plan = plan
        self.run_id = run_id

    def wait(self, timeout: float | None = None) -> RunSnapshot:
        """Wait until the run has ended, or `timeout` seconds have passed; return its snapshot."""
        return self._host.submit(lambda operations: operations.wait(self.run_id, timeout)).result()

    @property
    def status(self) -> RunStatus:
        return self._host.submit(lambda operations: operations.status(self.run_id)).result()

    def snapshot(self, at: int | str | None = None) -> RunSnapshot:
        return self._host.submit(lambda operations: operations.log.snapshot(self.run_id, at)).result()

    def result(self, step_id: str | None = None) -> Any:
        """The result of a step, or of the run."""
        return _typed(self._plan, step_id, self._host.submit(_result(self.run_id, step_id)).result())

    def signal(
        self, signal_type: str, payload: dict[str, Any] | None = None, reason: str | None = None
    ) -> SignalDecision:
        sent = self._host.submit(lambda operations: operations.signal(self.run_id, signal_type, payload, reason=reason))
        return sent.result()

    def events(self, after: int = 0, *, follow: bool = False) -> Iterator[RunEventRecord]:
        """The events of the run so far; with `follow`, also later ones until the run has ended."""
        while page := self._host.submit(lambda ops, at=after: _next_events(ops, self.run_id, at, follow)).result():
            yield from page
            after = page[-1].run_seq


class AsyncRun:
    """A run, for asynchronous programs."""

    def __init__(self, host: Host, run_id: str, plan: Plan | None = None) -> None:
        self._host = host
        self._plan = plan
        self.run_id = run_id

    async def _call(self, work: Callable[[RunOperations], Coroutine[Any, Any, T]]) -> T:
        return await asyncio.wrap_future(self._host.submit(work))

    async def wait(self, timeout: float | None = None) -> RunSnapshot:
        return await self._call(lambda operations: operations.wait(self.run_id, timeout))

    async def status(self) -> RunStatus:
        return await self._call(lambda operations: operations.status(self.run_id))

    async def snapshot(self, at: int | str | None = None) -> RunSnapshot:
        return await self._call(lambda operations: operations.log.snapshot(self.run_id, at))

    async def result(self, step_id: str | None = None) -> Any:
        return _typed(self._plan, step_id, await self._call(_result(self.run_id, step_id)))

    async def signal(
        self, signal_type: str, payload: dict[str, Any] | None = None, reason: str | None = None
    ) -> SignalDecision:
        return await self._call(lambda operations: operations.signal(self.run_id, signal_type, payload, reason=reason))

    async def events(self, after: int = 0, *, follow: bool = False) -> AsyncIterator[RunEventRecord]:
        while page := await self._call(lambda ops, at=after: _next_events(ops, self.run_id, at, follow)):
            for record in page:
                yield record
            after = page[-1].run_seq


class HostedWorkflowEngine(IWorkflowEngine):
    """IWorkflowEngine on the engine of an app. Its coroutines can be awaited on any event loop."""

    def __init__(self, host: Host, provider: str) -> None:
        self._host = host
        self._provider = provider

    async def start_run(self, plan_ref: PlanRef, context: RunContext) -> EngineRunRef:
        return await self._call(lambda engine: engine.start_run(plan_ref, context))

    async def cancel_run(self, engine_run_ref: EngineRunRef) -> None:
        await self._call(lambda engine: engine.cancel_run(engine_run_ref))

    async def get_run_status(self, engine_run_ref: EngineRunRef) -> RunStatusSnapshot:
        return await self._call(lambda engine: engine.get_run_status(engine_run_ref))

    async def signal(self, engine_run_ref: EngineRunRef, request: SignalRequest) -> None:
        await self._call(lambda engine: engine.signal(engine_run_ref, request))

    async def _call(self, work: Callable[[EmbeddedWorkflowEngine], Coroutine[Any, Any, T]]) -> T:
        async def on_engine(operations: RunOperations) -> T:
            if not isinstance(operations, Operations):
                message = "A server has no workflow engine interface. Open its store with rw.open()."
                raise RunwrightError(ErrorCode.CAPABILITY_NOT_SUPPORTED, message)
            if operations.services.provider != self._provider:
                message = f"This engine is {operations.services.provider}, not {self._provider}."
                raise RunwrightError(ErrorCode.CAPABILITY_NOT_SUPPORTED, message)
            return await work(EmbeddedWorkflowEngine(operations))

        return await asyncio.wrap_future(self._host.submit(on_engine))


class App:
    """The engine, for synchronous programs: `with rw.open() as app:`"""

    def __init__(self, open_operations: OpenOperations) -> None:
        self._host = Host(open_operations)

    def __enter__(self) -> Self:
        self._host.start()
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _at: TracebackType | None
    ) -> None:
        self._host.close()

    def start(
        self, plan: Plan, /, *, run_id: str | None = None, params: dict[str, Any] | None = None, **more: Any
    ) -> Run:
        """Start a run of a plan (a function with @rw.plan, a file, a dict), or resume the run that has this id."""
        refuse_during_import("app.start()")
        return Run(self._host, self._host.submit(_start(plan, {**(params or {}), **more}, run_id)).result(), plan)

    def run(self, run_id: str) -> Run:
        """An existing run, by its id or a unique prefix."""
        found = self._host.submit(lambda operations: operations.log.resolve_run(run_id)).result()
        return Run(self._host, found.identity.run_id)

    def rerun(
        self,
        run_id: str,
        *,
        from_step: str | None = None,
        force: bool = False,
        plan: Plan | None = None,
        params: dict[str, Any] | None = None,
    ) -> Run:
        """Start a new run from an ended one, with its plan or a corrected one, reusing successful steps."""
        return Run(self._host, self._host.submit(_rerun(run_id, from_step, force, plan, params)).result(), plan)

    def workflow_engine(self, provider: str = "embedded") -> IWorkflowEngine:
        """The engine behind the interface that every runtime implements."""
        return HostedWorkflowEngine(self._host, provider)


class AsyncApp:
    """The engine, for asynchronous programs: `async with rw.open_async() as app:`"""

    def __init__(self, open_operations: OpenOperations) -> None:
        self._host = Host(open_operations)

    async def __aenter__(self) -> Self:
        await asyncio.to_thread(self._host.start)
        return self

    async def __aexit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _at: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self._host.close)

    async def start(
        self, plan: Plan, /, *, run_id: str | None = None, params: dict[str, Any] | None = None, **more: Any
    ) -> AsyncRun:
        refuse_during_import("app.start()")
        started = self._host.submit(_start(plan, {**(params or {}), **more}, run_id))
        return AsyncRun(self._host, await asyncio.wrap_future(started), plan)

    async def run(self, run_id: str) -> AsyncRun:
        found = await asyncio.wrap_future(self._host.submit(lambda operations: operations.log.resolve_run(run_id)))
        return AsyncRun(self._host, found.identity.run_id)

    async def rerun(
        self,
        run_id: str,
        *,
        from_step: str | None = None,
        force: bool = False,
        plan: Plan | None = None,
        params: dict[str, Any] | None = None,
    ) -> AsyncRun:
        """Start a new run from an ended one, with its plan or a corrected one, reusing successful steps."""
        made = self._host.submit(_rerun(run_id, from_step, force, plan, params))
        return AsyncRun(self._host, await asyncio.wrap_future(made), plan)

    def workflow_engine(self, provider: str = "embedded") -> IWorkflowEngine:
        """The engine behind the interface that every runtime implements."""
        return HostedWorkflowEngine(self._host, provider)


def open(store: str | None = None, *, recover: bool = False) -> App:  # noqa: A001 - `rw.open()` reads best
    """Open an engine on a store, for synchronous programs. With `recover` it also claims runs whose process died."""
    refuse_during_import("rw.open()")
    return App(_embedded(store, recover))


def open_async(store: str | None = None, *, recover: bool = False) -> AsyncApp:
    """Open an engine on a store, for asynchronous programs."""
    refuse_during_import("rw.open_async()")
    return AsyncApp(_embedded(store, recover))


def _embedded(store: str | None, recover: bool) -> OpenOperations:
    return lambda: open_operations(store, settings=EngineSettings(recover=recover))
