"""Service: the objects that all requests of one server process share."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from runwright.auth.audit import Audit, run_audit_writer
from runwright.auth.roles import ROLES, SCOPES, Actor
from runwright.auth.tokens import Tokens
from runwright.contract.errors import ErrorCode, RunwrightError
from runwright.contract.transitions import ENDED
from runwright.control.bootstrap import open_operations
from runwright.control.operations import Operations
from runwright.control.run_scope import local_actor
from runwright.runtimes.embedded.task_queue import TaskQueue
from runwright.runtimes.settings import EngineSettings
from runwright.storage.output.writer import LogWriter

from .append_batcher import AppendBatcher
from .event_broadcaster import EventBroadcaster, Subscriber
from .metrics import Metrics
from .plan_reader import PlanReader
from .rate_limit import FAILED_LOGINS_PER_SECOND, CallerSlots, ConcurrencyLimiter, RateLimiter
from .settings import ServerSettings
from .stream_authorization import StreamAuthorization

STATUS_POLL_SECONDS = 5.0
QUEUE_POLL_SECONDS = 1.0
LARGE_RESPONSES_PER_CALLER = 4
"""Interval at which waiting workers check the task queue even without a notification."""
RUN_END_EVENTS = ("RunCompleted", "RunFailed", "RunCancelled")


class WorkerWaiters:
    """Requests of workers that wait for the task queue to change."""

    def __init__(self) -> None:
        self._waiting: set[asyncio.Event] = set()

    def notify(self) -> None:
        for event in self._waiting:
            event.set()

    async def wait(self, seconds: float, disconnected: asyncio.Task[None] | None = None) -> None:
        """Wait for a notification or for the caller to disconnect, at most `seconds` and QUEUE_POLL_SECONDS."""
        event = asyncio.Event()
        self._waiting.add(event)
        if disconnected is not None:
            disconnected.add_done_callback(lambda _: event.set())
        try:
            async with asyncio.timeout(min(seconds, QUEUE_POLL_SECONDS)):
                await event.wait()
        except TimeoutError:
            pass
        finally:
            self._waiting.discard(event)


class Service:
    def __init__(self, operations: Operations, settings: ServerSettings) -> None:
        self.operations = operations
        self.log = operations.log
        self.settings = settings
        self.tokens = Tokens(self.log.store.side_tables, self.log.clock)
        self.audit = Audit(self.log.store.side_tables, self.log.clock)
        self.broadcaster = EventBroadcaster(self.log)
        self.stream_authorization = StreamAuthorization(self.tokens, self.log.clock, self.is_open_to_local_user)
        self.append_batcher = AppendBatcher(self.log)
        self.plan_reader = PlanReader()
        self.large_response_slots = CallerSlots(LARGE_RESPONSES_PER_CALLER)
        self.metrics = Metrics(self.log, operations.engine, self.broadcaster)
        self.rate_limiter = RateLimiter(settings.rate, self.log.clock.monotonic)
        self.concurrency_limiter = ConcurrencyLimiter(settings.connections_per_caller)
        self.failed_login_limiter = RateLimiter(FAILED_LOGINS_PER_SECOND, self.log.clock.monotonic)
        self.task_queue = TaskQueue(self.log.store)
        self.output_writers: dict[str, LogWriter] = {}  # of steps on workers, by lease id
        self.worker_waiters = WorkerWaiters()
        self.log.store.subscribe(self.worker_waiters.notify)
        self.was_open_at_start = False
        self.local_token: str | None = None  # what the local user sends where the kernel does not name users
        self.is_closing = False

    async def is_open_to_local_user(self) -> bool:
        """Whether local callers need no token: only if the server is not reachable from elsewhere and has no tokens."""
        return self.settings.is_local and not await self.tokens.has_any()

    async def wait_until_ended(self, run_id: str, seconds: float) -> None:
        """Wait until a run has ended, in any process, or the time is over."""
        subscriber = await self.broadcaster.subscribe(run_id, None)
        try:
            async with asyncio.timeout(seconds):
                while (await self.log.find_run(run_id)).status not in ENDED and not self.broadcaster.is_closed:
                    if subscriber.is_lagging:
                        self.broadcaster.resubscribe(subscriber, run_id)
                    await self._wait_for_end_event(subscriber)
        except TimeoutError:
            pass
        finally:
            self.broadcaster.unsubscribe(subscriber, run_id)

    async def _wait_for_end_event(self, subscriber: Subscriber) -> None:
        """Return when the status of the run should be read again."""
        while not subscriber.is_lagging:
            await subscriber.wait(STATUS_POLL_SECONDS)
            events = subscriber.drain()
            if not events or any(event.record.event_type in RUN_END_EVENTS for event in events):
                return

    def local_user(self, source_ip: str | None, user_agent: str | None) -> Actor:
        """The actor for callers without a token: the user of this process, with all roles and scopes."""
        name = local_actor().actor_id
        return Actor(name, ROLES, "api", None, SCOPES, None, source_ip, user_agent)


@asynccontextmanager
async def open_service(store: str | None, settings: ServerSettings) -> AsyncGenerator[Service]:
    """Open a service on a store. Raises AUTHN_REQUIRED if it is reachable from elsewhere and has no token yet."""
    workers = "all" if settings.steps == "workers" else "named"
    engine_settings = EngineSettings(recover=True, workers=workers, loop_timeout=settings.stalled_loop_seconds)
    async with open_operations(store, settings=engine_settings) as operations:
        service = Service(operations, settings)
        if not settings.is_local and not await service.tokens.has_any():
            raise RunwrightError(
                ErrorCode.AUTHN_REQUIRED,
                f"{settings.host} is reachable from other machines, and there is no token yet. Create one first: "
                "runwright token create NAME --role Admin",
            )
        service.was_open_at_start = await service.is_open_to_local_user()
        loops = (run_audit_writer(service.audit), service.broadcaster.run(), service.stream_authorization.run())
        tasks = [asyncio.create_task(loop) for loop in loops]
        try:
            yield service
        finally:
            service.is_closing = True
            service.broadcaster.close()
            service.plan_reader.close()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
