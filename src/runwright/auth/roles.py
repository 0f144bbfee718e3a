"""Authorization: roles, scopes and the actions that they permit.

Viewer, Operator, Engineer and Admin form a hierarchy: each role includes those below it. System is separate. Remote
engines and workers have scopes instead. To an actor bound to a tenant, everything of other tenants does not exist.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from runwright.contract.errors import ErrorCode, RunwrightError

ROLES = ("Viewer", "Operator", "Engineer", "Admin", "System")
SCOPES = ("events:server", "events:worker", "steps", "metrics")
"""Permissions of machines: append events as a server or as a worker, execute steps, read the metrics."""

RANK = {"Viewer": 0, "Operator": 1, "Engineer": 2, "Admin": 3}

ENGINE = "engine"
"""The source of signals that the engine sends itself: a run that ends stops the runs of its steps."""


class Actor(msgspec.Struct, frozen=True):
    """The person or machine that requests an action."""

    actor_id: str
    roles: tuple[str, ...]
    source: str = "cli"
    tenant_id: str | None = None
    """The only tenant that the actor can access; None for all tenants."""
    scopes: tuple[str, ...] = ()
    token_id: str | None = None
    source_ip: str | None = None
    user_agent: str | None = None
    creators: tuple[str, ...] = ()
    """The names of those who created its token, directly or through other tokens."""

    def is_independent_of(self, actor_id: str | None) -> bool:
        """Return whether the actor can decide on what another one requested: it is someone else, with a token that
        the other did not create."""
        return actor_id != self.actor_id and actor_id not in self.creators

    def role_for(self, required: str) -> str | None:
        """Return the role in which the actor does something that requires `required`; None if it may not.

        This is the least powerful role that suffices, since a role includes those below it.
        """
        if required not in RANK:
            return required if required in self.roles else None
        return required if any(RANK.get(role, -1) >= RANK[required] for role in self.roles) else None

    def can_access_tenant(self, tenant_id: str) -> bool:
        return self.tenant_id in (None, tenant_id)


class Action(StrEnum):
    """Actions that roles and scopes permit. Each kind of signal has additional rules of its own."""

    READ = "runs.read"
    START = "runs.start"
    UPLOAD_PLAN = "plans.bring"
    RERUN = "runs.rerun"
    SIGNAL = "runs.signal"
    APPEND = "events.append"
    EXECUTE_STEPS = "steps.carry_out"
    READ_AUDIT = "audit.read"
    MANAGE_TOKENS = "tokens.manage"
    CHECK_STORE = "store.check"
    READ_METRICS = "metrics.read"


ALLOWED: dict[Action, tuple[str, ...]] = {
    Action.READ: ("Viewer",),
    Action.START: ("Operator",),
    Action.UPLOAD_PLAN: ("Engineer",),
    Action.RERUN: ("Engineer",),
    Action.SIGNAL: ("Viewer", "System"),
    Action.APPEND: ("events:server", "events:worker"),
    Action.EXECUTE_STEPS: ("steps",),
    Action.READ_AUDIT: ("Admin",),
    Action.MANAGE_TOKENS: ("Admin",),
    Action.CHECK_STORE: ("Admin",),
    Action.READ_METRICS: ("metrics", "Viewer"),
}
"""Actions and the roles or scopes of which each requires one. A signal is then authorized by its own rule, so that
its refusal is recorded in the run's log."""

EVERY_TENANT = frozenset({Action.CHECK_STORE, Action.READ_METRICS})
"""Actions that concern the whole store, not permitted to actors bound to a tenant."""


def permit(actor: Actor, action: Action) -> str:
    """Return the role or scope in which the actor may do this. Raises AUTHZ_DENIED if there is none."""
    for required in ALLOWED[action]:
        found = required if required in actor.scopes else actor.role_for(required) if required in ROLES else None
        if found is None:
            continue
        if action in EVERY_TENANT and actor.tenant_id is not None:
            raise RunwrightError(ErrorCode.AUTHZ_DENIED, "This action concerns all tenants, and you are bound to one.")
        return found
    granted = ", ".join((*actor.roles, *actor.scopes)) or "none"
    needed = " or ".join(f"the {'role' if name in ROLES else 'scope'} {name}" for name in ALLOWED[action])
    raise RunwrightError(ErrorCode.AUTHZ_DENIED, f"This action requires {needed}; you have {granted}.")


def check_tenant(actor: Actor, tenant_id: str) -> None:
    """Raise AUTHZ_TENANT_FORBIDDEN if the actor cannot access this tenant."""
    if not actor.can_access_tenant(tenant_id):
        raise RunwrightError(
            ErrorCode.AUTHZ_TENANT_FORBIDDEN, f"You are bound to the tenant {actor.tenant_id!r}, not {tenant_id!r}."
        )
