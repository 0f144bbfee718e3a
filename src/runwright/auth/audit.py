"""Audit trail: which actions were granted and denied, to whom, on which run, and when.

An action that changes something (a start, a signal, a token) has an entry of its own, which is durable before the
action is done. Reads and denials are counted: equal ones within a few seconds share one entry, so that neither a busy
page nor an attacker who tries many requests can fill the disk.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Literal, NamedTuple

import msgspec

from runwright.contract.clock import Clock
from runwright.contract.errors import ErrorCode, RunwrightError
from runwright.contract.timestamps import from_micros
from runwright.log.side_tables import SideTables

from .roles import Actor

logger = logging.getLogger("runwright.auth")

FLUSH_SECONDS = 5.0
MAX_NAME_LENGTH = 512
MAX_COUNTED = 5000
"""Number of distinct entries that are counted in memory before they are written."""


class AuditedRun(msgspec.Struct, frozen=True):
    """The run that an action is about. None: unknown to the caller, or there is no such run."""

    run_id: str | None
    project_id: str | None = None
    environment_id: str | None = None
    engine_attempt_id: int | None = None
    logical_attempt_id: int | None = None


NO_RUN = AuditedRun(None)


class AuditEntry(msgspec.Struct, frozen=True, rename="camel"):
    """An action that was granted or denied; `count` times, for reads and denials."""

    audit_id: str
    at: str
    count: int
    outcome: Literal["GRANTED", "DENIED"]
    action: str
    tenant_id: str | None
    project_id: str | None
    environment_id: str | None
    actor_id: str | None
    run_id: str | None
    engine_attempt_id: int | None
    logical_attempt_id: int | None
    code: str | None
    facts: dict[str, Any]


class AuditFilter(msgspec.Struct, frozen=True):
    run_id: str | None = None
    actor_id: str | None = None
    tenant_id: str | None = None
    outcome: str | None = None
    action: str | None = None
    since: int | None = None  # microseconds since 1970, as the next
    until: int | None = None


class AuditPage(msgspec.Struct, frozen=True, rename="camel"):
    entries: list[AuditEntry]
    cursor: str | None


class _AuditKey(NamedTuple):
    """The fields in which counted events must agree to share an entry. An empty string stands for none."""

    outcome: str
    action: str
    tenant_id: str
    actor_id: str
    run_id: str
    code: str
    source_ip: str | None


class _Counter(msgspec.Struct):
    first_at: int
    count: int
    run: AuditedRun  # as it was at the first of the counted events
    facts: dict[str, Any]  # of the first of the counted events


class Audit:
    def __init__(self, side_tables: SideTables, clock: Clock) -> None:
        self._side_tables = side_tables
        self._clock = clock
        self._counters: dict[_AuditKey, _Counter] = {}

    async def record_action(
        self, actor: Actor, action: str, *, tenant_id: str, run: AuditedRun = NO_RUN, **facts: Any
    ) -> None:
        """Record an action before it is done. If this raises, the action must not be done."""
        key = _AuditKey("GRANTED", action, tenant_id, actor.actor_id, run.run_id or "", "", actor.source_ip)
        counter = _Counter(self._clock.now(), 1, run, _facts(actor, facts))
        await self._side_tables.write("insert_audit", *_row(key, counter))

    def count_read(self, actor: Actor, action: str, *, tenant_id: str | None, run: AuditedRun = NO_RUN) -> None:
        tenant = tenant_id or actor.tenant_id or ""
        key = _AuditKey("GRANTED", action, tenant, actor.actor_id, run.run_id or "", "", actor.source_ip)
        self._count(key, actor, run, {})

    def count_denial(
        self,
        actor: Actor,
        action: str,
        code: str,
        *,
        tenant_id: str | None = None,
        run: AuditedRun = NO_RUN,
        **facts: Any,
    ) -> None:
        tenant = tenant_id or actor.tenant_id or ""
        key = _AuditKey("DENIED", action, tenant, actor.actor_id, run.run_id or "", code, actor.source_ip)
        self._count(key, actor, run, facts)

    def _count(self, key: _AuditKey, actor: Actor, run: AuditedRun, facts: dict[str, Any]) -> None:
        counter = self._counters.get(key)
        if counter is not None:
            counter.count += 1
        elif len(self._counters) < MAX_COUNTED:
            self._counters[key] = _Counter(self._clock.now(), 1, run, _facts(actor, facts))
        else:
            # Too many distinct events, for example from a client that invents names: from here on they share an entry.
            rest = key._replace(actor_id="(many)", run_id="", source_ip=None)
            self._counters.setdefault(rest, _Counter(self._clock.now(), 0, NO_RUN, {})).count += 1

    async def flush(self) -> None:
        """Write the counted entries. They are retained if the store is unavailable."""
        counters, self._counters = self._counters, {}
        if not counters:
            return
        rows = [_row(key, counter) for key, counter in counters.items()]
        try:
            await self._side_tables.write_all("insert_audit", rows)
        except RunwrightError as error:
            logger.warning("Writing the audit failed, retrying: %s", error)
            for key, counter in counters.items():
                retained = _Counter(counter.first_at, 0, counter.run, counter.facts)
                self._counters.setdefault(key, retained).count += counter.count

    async def flush_periodically(self) -> None:
        """Write the counted entries at intervals, until cancelled."""
        while True:
            await self._clock.sleep(FLUSH_SECONDS)
            await self.flush()

    async def list(self, filters: AuditFilter, *, cursor: str | None = None, limit: int = 100) -> AuditPage:
        """Return the entries that match, newest first."""
        await self.flush()
        if cursor is not None and not (cursor.isascii() and cursor.isdecimal() and len(cursor) <= 18):
            raise RunwrightError(
                ErrorCode.INVALID_CURSOR, "Invalid cursor: pass the cursor returned with the previous page."
            )
        rows = await self._side_tables.select(
            "list_audit",
            [
                ("audit_key <", None if cursor is None else int(cursor)),
                ("run_id =", filters.run_id),
                ("actor_id =", filters.actor_id),
                ("tenant_id =", filters.tenant_id),
                ("outcome =", filters.outcome),
                ("action =", filters.action),
                ("at >=", filters.since),
                ("at <", filters.until),
            ],
            limit + 1,
        )
        entries = [_entry(row) for row in rows[:limit]]
        return AuditPage(entries, entries[-1].audit_id if len(rows) > limit else None)


async def run_audit_writer(audit: Audit) -> None:
    """Write the audit at intervals until cancelled, then write the rest."""
    try:
        await audit.flush_periodically()
    except asyncio.CancelledError:
        await audit.flush()
        raise


def _facts(actor: Actor, additional: dict[str, Any]) -> dict[str, Any]:
    facts = {
        "roles": list(actor.roles) or None,
        "tokenId": actor.token_id,
        "source": actor.source,
        "sourceIp": actor.source_ip,
        "userAgent": actor.user_agent,
        **additional,
    }
    return {name: value for name, value in facts.items() if value is not None}


def _row(key: _AuditKey, counter: _Counter) -> tuple[Any, ...]:
    # A store accepts neither NULs nor long names in an index, and no valid name has either.
    run = counter.run
    names = (key.tenant_id, run.project_id or "", run.environment_id or "", key.actor_id, key.run_id, key.code)
    clean = (text.replace("\0", "")[:MAX_NAME_LENGTH] for text in (key.outcome, key.action, *names))
    facts = msgspec.json.encode(counter.facts).decode().replace("\\u0000", "")
    return (counter.first_at, counter.count, *clean, run.engine_attempt_id, run.logical_attempt_id, facts)


def _entry(row: Any) -> AuditEntry:
    key, at, count, outcome, action, *names, engine_attempt, logical_attempt, facts = row
    tenant, project, environment, actor, run, code = names
    return AuditEntry(
        audit_id=str(key),
        at=from_micros(at),
        count=count,
        outcome=outcome,
        action=action,
        tenant_id=tenant or None,
        project_id=project or None,
        environment_id=environment or None,
        actor_id=actor or None,
        run_id=run or None,
        engine_attempt_id=engine_attempt,
        logical_attempt_id=logical_attempt,
        code=code or None,
        facts=msgspec.json.decode(facts),
    )
