"""Everything that one server process has: the engine, its books, and whether it is open to callers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from runwright.contract.errors import ErrorCode, RunwrightError
from runwright.contract.transitions import ENDED
from runwright.control.access import ROLES, SCOPES, Actor
from runwright.control.audit import Audit, keep_audit
from runwright.control.open import open_operations
from runwright.control.operations import Operations, local_actor
from runwright.control.tokens import Tokens
from runwright.runtimes.settings import EngineSettings
from runwright.runtimes.tasks import TaskTable

from .desks import Desks
from .gathering import Gathering
from .hub import Hub
from .measures import Measures
from .rates import FAILED_LOGINS, Rates
from .settings import ServerSettings

LOOK_AGAIN = 5.0
ENDINGS = ("RunCompleted", "RunFailed", "RunCancelled")


class Service:
    def __init__(self, operations: Operations, settings: ServerSettings) -> None:
        self.operations = operations
        self.log = operations.log
        self.settings = settings
        self.tokens = Tokens(self.log.desk, self.log.clock)
        self.audit = Audit(self.log.desk, self.log.clock)
        self.hub = Hub(self.log)
        self.gathering = Gathering(self.log)
        self.measures = Measures(self)
        self.rates = Rates(settings.rate, self.log.clock.monotonic)
        self.failed_logins = Rates(FAILED_LOGINS, self.log.clock.monotonic)
        self.desks = Desks(TaskTable(self.log))
        self.log.on_ring(self.desks.ring)
        self.was_open = False  # when it started
        self.is_closing = False

    async def is_open(self) -> bool:
        """Whether anybody at this machine may do anything: only where nobody else can reach us, and has no token."""
        return self.settings.is_local and not await self.tokens.any()

    async def until_ended(self, run_id: str, seconds: float) -> None:
        """Until the run has ended, whoever drives it, or the time is up."""
        listener = await self.hub.join(run_id, None)
        try:
            async with asyncio.timeout(seconds):
                while (await self.log.find_run(run_id)).status not in ENDED and not self.hub.is_closed:
                    if listener.is_behind:
                        self.hub.join_again(listener, run_id)
                    ended = False
                    while not ended and not listener.is_behind:
                        await listener.wait(LOOK_AGAIN)
                        taken = listener.take()
                        ended = not taken or any(told.record.event_type in ENDINGS for told in taken)
        except TimeoutError:
            pass
        finally:
            self.hub.leave(listener, run_id)

    def local(self, source_ip: str | None, user_agent: str | None) -> Actor:
        name = local_actor().actor_id
        return Actor(name, ROLES, "api", None, SCOPES, None, source_ip, user_agent)


@asynccontextmanager
async def open_service(store: str | None, settings: ServerSettings) -> AsyncGenerator[Service]:
    """A service on a store. Refuses to be reachable from elsewhere before there is a token."""
    engine_settings = EngineSettings(recover=True, workers="all" if settings.steps == "workers" else "named")
    async with open_operations(store, settings=engine_settings) as operations:
        service = Service(operations, settings)
        if not settings.is_local and not await service.tokens.any():
            raise RunwrightError(
                ErrorCode.AUTHN_REQUIRED,
                f"{settings.host} can be reached from elsewhere, and nobody has a token yet. Make one first: "
                "runwright token create NAME --role Admin",
            )
        service.was_open = await service.is_open()
        works = [asyncio.create_task(work) for work in (keep_audit(service.audit), service.hub.run())]
        try:
            yield service
        finally:
            service.is_closing = True
            service.hub.close()
            for work in works:
                work.cancel()
            await asyncio.gather(*works, return_exceptions=True)
