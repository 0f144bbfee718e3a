"""One request: who asks, and what they may."""

from __future__ import annotations

from typing import Any

from litestar.di import NamedDependency

from runwright.contract.errors import RunwrightError
from runwright.control.access import Act, Actor, permit
from runwright.control.operations import Operations
from runwright.log.model import RunRow

from .service import Service

KEY = "runwright.call"
"""Where a request's scope keeps it."""


class Call:
    __slots__ = ("actor", "request_id", "run_id", "service")

    def __init__(self, service: Service, actor: Actor, request_id: str) -> None:
        self.service = service
        self.actor = actor
        self.request_id = request_id
        self.run_id: str | None = None  # the run it is about, for the server's own log

    @property
    def operations(self) -> Operations:
        return self.service.operations.acting_as(self.actor)

    def permit(self, act: Act, *, tenant_id: str | None = None, run_id: str | None = None) -> str:
        """The role or scope in which the caller may do this. A denial is audited."""
        try:
            return permit(self.actor, act)
        except RunwrightError as error:
            self.denied(act, error, tenant_id=tenant_id, run_id=run_id)
            raise

    def denied(
        self, act: str, error: RunwrightError, *, tenant_id: str | None = None, run_id: str | None = None
    ) -> None:
        self.service.audit.denied(
            self.actor, act, error.code, tenant_id=tenant_id, run_id=run_id, requestId=self.request_id
        )

    async def look(self, act: Act, run_id: str) -> RunRow:
        """A run that the caller may see; RUN_NOT_FOUND for all others."""
        self.run_id = run_id
        self.permit(act, run_id=run_id)
        try:
            row = await self.operations.find(run_id)
        except RunwrightError as error:
            self.denied(act, error, run_id=run_id)
            raise
        self.service.audit.looked(self.actor, act, tenant_id=row.identity.tenant_id, run_id=run_id)
        return row

    def glance(self, act: Act) -> None:
        """See something that is about no run in particular."""
        self.permit(act)
        self.service.audit.looked(self.actor, act, tenant_id=self.actor.tenant_id)

    async def act(self, act: Act, *, tenant_id: str, run_id: str | None = None, **facts: Any) -> None:
        """Write down what is about to be done."""
        await self.service.audit.acted(
            self.actor, act, tenant_id=tenant_id, run_id=run_id, requestId=self.request_id, **facts
        )


Asking = NamedDependency[Call]
"""What a route is given."""


def call_of(scope: Any) -> Call:
    return scope[KEY]
