"""Where a run belongs, and who acts on it from this machine."""

from __future__ import annotations

import getpass
from functools import cache

import msgspec

from runwright.auth.roles import Actor
from runwright.contract.events import RunIdentity
from runwright.contract.refs import DEFAULT_TENANT


class RunScope(msgspec.Struct, frozen=True):
    """Tenant, project and environment of a run."""

    tenant_id: str = DEFAULT_TENANT
    project_id: str = "default"
    environment_id: str = "default"


def scope_of(run: RunIdentity) -> RunScope:
    return RunScope(run.tenant_id, run.project_id, run.environment_id)


@cache
def local_actor() -> Actor:
    """The user of this machine."""
    try:
        name = getpass.getuser()
    except (OSError, KeyError):
        name = "local"
    return Actor(name, ("Admin",))
