"""Who may do what.

People and machines act in roles. Operator, Engineer and Admin build on each other, and all of them may read as a
Viewer does; System stands apart. Engines and workers elsewhere have scopes instead. Whoever is bound to a tenant
knows of no other: what is not theirs is not there.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from runwright.contract.errors import ErrorCode, RunwrightError

ROLES = ("Viewer", "Operator", "Engineer", "Admin", "System")
SCOPES = ("events:server", "events:worker", "steps", "metrics")
"""What machines may do: append events as a server or as a worker, carry steps out, read the metrics."""

RANK = {"Viewer": 0, "Operator": 1, "Engineer": 2, "Admin": 3}

ENGINE = "engine"
"""The source of signals that the engine itself sends: a run that ends stops those of its steps."""


class Actor(msgspec.Struct, frozen=True):
    """Whoever asks for something."""

    actor_id: str
    roles: tuple[str, ...]
    source: str = "cli"
    tenant_id: str | None = None
    """The only tenant they know of; None for every one."""
    scopes: tuple[str, ...] = ()
    token_id: str | None = None
    source_ip: str | None = None
    user_agent: str | None = None

    def role_for(self, needed: str) -> str | None:
        """The role they act in when this one is needed: the least powerful that suffices. None if they have too little.

        Who has a role has those beneath it too.
        """
        if needed not in RANK:
            return needed if needed in self.roles else None
        return needed if any(RANK.get(role, -1) >= RANK[needed] for role in self.roles) else None

    def sees(self, tenant_id: str) -> bool:
        return self.tenant_id in (None, tenant_id)


class Act(StrEnum):
    """What is asked for, beside signals, which have rules of their own."""

    READ = "runs.read"
    START = "runs.start"
    BRING_PLAN = "plans.bring"
    RERUN = "runs.rerun"
    SIGNAL = "runs.signal"
    APPEND = "events.append"
    CARRY_OUT = "steps.carry_out"
    SEE_AUDIT = "audit.read"
    MANAGE_TOKENS = "tokens.manage"
    CHECK_STORE = "store.check"
    SEE_METRICS = "metrics.read"


ALLOWED: dict[Act, tuple[str, ...]] = {
    Act.READ: ("Viewer",),
    Act.START: ("Operator",),
    Act.BRING_PLAN: ("Engineer",),
    Act.RERUN: ("Engineer",),
    Act.SIGNAL: ("Viewer", "System"),
    Act.APPEND: ("events:server", "events:worker"),
    Act.CARRY_OUT: ("steps",),
    Act.SEE_AUDIT: ("Admin",),
    Act.MANAGE_TOKENS: ("Admin",),
    Act.CHECK_STORE: ("Admin",),
    Act.SEE_METRICS: ("metrics", "Viewer"),
}
"""What each takes: one of these roles or scopes. A signal is decided on by its own rule, so that the refusal, too,
is in the run's log."""

EVERY_TENANT = frozenset({Act.CHECK_STORE, Act.SEE_METRICS})
"""What concerns the store as a whole."""


def permit(actor: Actor, act: Act) -> str:
    """The role or scope in which the actor may do this; AUTHZ_DENIED if in none."""
    for needed in ALLOWED[act]:
        found = needed if needed in actor.scopes else actor.role_for(needed) if needed in ROLES else None
        if found is None:
            continue
        if act in EVERY_TENANT and actor.tenant_id is not None:
            raise RunwrightError(ErrorCode.AUTHZ_DENIED, "This concerns every tenant, and you are bound to one.")
        return found
    has = ", ".join((*actor.roles, *actor.scopes)) or "none"
    needs = " or ".join(f"the {'role' if needed in ROLES else 'scope'} {needed}" for needed in ALLOWED[act])
    raise RunwrightError(ErrorCode.AUTHZ_DENIED, f"This needs {needs}; you have {has}.")


def check_tenant(actor: Actor, tenant_id: str) -> None:
    """Refuse an actor who names a tenant that is not theirs."""
    if not actor.sees(tenant_id):
        raise RunwrightError(
            ErrorCode.AUTHZ_TENANT_FORBIDDEN, f"You act for the tenant {actor.tenant_id!r}, not for {tenant_id!r}."
        )
