"""Context of one request: its actor, authorization and audit."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from litestar.di import NamedDependency

from runwright.auth.audit import NO_RUN, AuditedRun
from runwright.auth.roles import Action, Actor, permit
from runwright.contract.errors import ErrorCode, RunwrightError
from runwright.control.operations import Operations
from runwright.log.model import RunRow

from .service import Service

T = TypeVar("T")

SCOPE_KEY = "runwright.context"
"""Key of the context in the ASGI scope."""


class RequestContext:
    __slots__ = ("_wait_for_disconnect", "actor", "request_id", "run_id", "service")

    def __init__(
        self,
        service: Service,
        actor: Actor,
        request_id: str,
        wait_for_disconnect: Callable[[], Coroutine[Any, Any, None]] | None = None,
    ) -> None:
        self._wait_for_disconnect = wait_for_disconnect
        self.service = service
        self.actor = actor
        self.request_id = request_id
        self.run_id: str | None = None  # The run that the request is about, for the access log.

    @property
    def operations(self) -> Operations:
        return self.service.operations.as_actor(self.actor)

    @property
    def caller(self) -> str:
        """Whose requests share limits: those with one token, or from one address."""
        return self.actor.token_id or self.actor.source_ip or ""

    async def read_plan(self, read: Callable[[], T]) -> T:
        """Read what the caller sent as a plan, on another thread, unless the caller disconnects."""
        assert self._wait_for_disconnect is not None, "requests with a body have a caller"
        return await self.service.plan_reader.read(self.caller, read, self._wait_for_disconnect())

    def permit(self, act: Action, *, tenant_id: str | None = None, run_id: str | None = None) -> str:
        """Return the role or scope that permits an action to the caller. Raises and audits a denial."""
        try:
            return permit(self.actor, act)
        except RunwrightError as error:
            self.audit_denial(act, error, tenant_id=tenant_id, run=run_id)
            raise

    def audit_denial(
        self, act: str, error: RunwrightError, *, tenant_id: str | None = None, run: RunRow | str | None = None
    ) -> None:
        """Audit a denial. `run`: the run that the caller may see, or the id that it named."""
        if isinstance(run, RunRow):
            tenant_id = run.identity.tenant_id
        audited = audited_run(run) if isinstance(run, RunRow) else AuditedRun(run)
        self.service.audit.count_denial(
            self.actor, act, error.code, tenant_id=tenant_id, run=audited, requestId=self.request_id
        )

    async def authorize_run(self, act: Action, run_id: str) -> RunRow:
        """Return a run that the caller may see and act on; RUN_NOT_FOUND also for runs of other tenants."""
        self.run_id = run_id
        self.permit(act, run_id=run_id)
        try:
            row = await self.operations.find(run_id)
        except RunwrightError as error:
            self.audit_denial(act, error, run=run_id)
            raise
        self.service.audit.count_read(self.actor, act, tenant_id=row.identity.tenant_id, run=audited_run(row))
        return row

    async def check_access(self) -> None:
        """Check the caller again, after a wait. Raises AUTHN_FAILED or AUTHN_REQUIRED if it may not call any more."""
        if self.actor.token_id is not None:
            await self.service.tokens.check_valid(self.actor.token_id)
        elif not await self.service.is_open_to_local_user():
            raise RunwrightError(ErrorCode.AUTHN_REQUIRED, "Authentication required: a token was created meanwhile.")

    def authorize(self, act: Action) -> None:
        """Permit and audit an action that is not about a single run."""
        self.permit(act)
        self.service.audit.count_read(self.actor, act, tenant_id=self.actor.tenant_id)

    async def audit_action(self, act: Action, *, tenant_id: str, run: AuditedRun = NO_RUN, **facts: Any) -> None:
        """Record an action in the audit log, before it is done."""
        await self.service.audit.record_action(
            self.actor, act, tenant_id=tenant_id, run=run, requestId=self.request_id, **facts
        )

    async def audit_run_action(self, act: Action, row: RunRow, **facts: Any) -> None:
        """Record an action on a run in the audit log, before it is done."""
        await self.audit_action(act, tenant_id=row.identity.tenant_id, run=audited_run(row), **facts)


def audited_run(row: RunRow) -> AuditedRun:
    """Return the context of a run for the audit. A rerun is a run of its own: the logical attempt of a run is 1."""
    run = row.identity
    return AuditedRun(run.run_id, run.project_id, run.environment_id, row.summary.engine_attempt_id, 1)


InjectedContext = NamedDependency[RequestContext]
"""Type of the parameter `request_context` of a route, which the framework injects.

The framework takes an invalid field of a request document for a broken dependency if it has the name of the parameter.
Names of fields are in camel case, so the underscore rules that out.
"""


def get_request_context(scope: Any) -> RequestContext:
    return scope[SCOPE_KEY]
