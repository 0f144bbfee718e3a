"""The audit: what was granted and what was denied, to whom, on which run, and when.

Whatever acts (a start, a signal, a token) has an entry of its own, durable before it is done. What is only looked
at, and what is denied, is counted: one entry for all that is alike within a few seconds, so that neither a busy page
nor somebody who tries every door can fill the disk.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Literal

import msgspec

from runwright.contract.clock import Clock
from runwright.contract.errors import ErrorCode, RunwrightError
from runwright.contract.timestamps import from_micros
from runwright.log.desk import Desk

from .access import Actor

logger = logging.getLogger("runwright.audit")

FLUSH_SECONDS = 5.0
LONGEST_NAME = 512
MOST_COUNTED = 5000
"""Entries that are counted in memory before they are written."""


class AuditEntry(msgspec.Struct, frozen=True, rename="camel"):
    """Something that was granted or denied; `count` times, for what was only looked at."""

    audit_id: str
    at: str
    count: int
    outcome: Literal["GRANTED", "DENIED"]
    action: str
    tenant_id: str | None
    actor_id: str | None
    run_id: str | None
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


_Kind = tuple[str, str, str, str, str, str, str | None]
"""What makes two things alike: outcome, action, tenant, actor, run, code, address."""


class Audit:
    def __init__(self, desk: Desk, clock: Clock) -> None:
        self._desk = desk
        self._clock = clock
        self._counted: dict[_Kind, list[Any]] = {}  # when first, how often, and what else is known of the first

    async def acted(
        self, actor: Actor, action: str, *, tenant_id: str, run_id: str | None = None, **facts: Any
    ) -> None:
        """Write down what is about to be done. If that fails, it is not to be done."""
        kind = ("GRANTED", action, tenant_id, actor.actor_id, run_id or "", "", actor.source_ip)
        await self._desk.write("put_audit", *_row(kind, self._clock.now(), 1, _facts(actor, facts)))

    def looked(self, actor: Actor, action: str, *, tenant_id: str | None, run_id: str | None = None) -> None:
        kind = (
            "GRANTED",
            action,
            tenant_id or actor.tenant_id or "",
            actor.actor_id,
            run_id or "",
            "",
            actor.source_ip,
        )
        self._count(kind, actor, {})

    def denied(
        self,
        actor: Actor,
        action: str,
        code: str,
        *,
        tenant_id: str | None = None,
        run_id: str | None = None,
        **facts: Any,
    ) -> None:
        where = tenant_id or actor.tenant_id or ""
        kind = ("DENIED", action, where, actor.actor_id, run_id or "", code, actor.source_ip)
        self._count(kind, actor, facts)

    def _count(self, kind: _Kind, actor: Actor, facts: dict[str, Any]) -> None:
        known = self._counted.get(kind)
        if known is not None:
            known[1] += 1
        elif len(self._counted) < MOST_COUNTED:
            self._counted[kind] = [self._clock.now(), 1, _facts(actor, facts)]
        else:
            # Too many that are all different, as of somebody who makes up names: they are one thing from here on.
            rest = (*kind[:3], "(many)", "", kind[5], None)
            self._counted.setdefault(rest, [self._clock.now(), 0, {}])[1] += 1

    async def flush(self) -> None:
        counted, self._counted = self._counted, {}
        if not counted:
            return
        rows = [_row(kind, at, count, facts) for kind, (at, count, facts) in counted.items()]
        try:
            await self._desk.write_all("put_audit", rows)
        except RunwrightError as error:
            logger.warning("The audit waits for the store: %s", error)
            for kind, entry in counted.items():
                self._counted.setdefault(kind, [entry[0], 0, entry[2]])[1] += entry[1]

    async def keep(self) -> None:
        """Write what was counted, for ever."""
        while True:
            await self._clock.sleep(FLUSH_SECONDS)
            await self.flush()

    async def list(self, wanted: AuditFilter, *, cursor: str | None = None, limit: int = 100) -> AuditPage:
        """Entries, newest first."""
        await self.flush()
        if cursor is not None and not (cursor.isascii() and cursor.isdecimal() and len(cursor) <= 18):
            raise RunwrightError(ErrorCode.INVALID_CURSOR, "Hand back the cursor that the page before came with.")
        rows = await self._desk.select(
            "list_audit",
            [
                ("audit_key <", None if cursor is None else int(cursor)),
                ("run_id =", wanted.run_id),
                ("actor_id =", wanted.actor_id),
                ("tenant_id =", wanted.tenant_id),
                ("outcome =", wanted.outcome),
                ("action =", wanted.action),
                ("at >=", wanted.since),
                ("at <", wanted.until),
            ],
            limit + 1,
        )
        entries = [_entry(row) for row in rows[:limit]]
        return AuditPage(entries, entries[-1].audit_id if len(rows) > limit else None)


async def keep_audit(audit: Audit) -> None:
    """Keep the audit until cancelled, then write the rest."""
    try:
        await audit.keep()
    except asyncio.CancelledError:
        await audit.flush()
        raise


def _facts(actor: Actor, more: dict[str, Any]) -> dict[str, Any]:
    known = {
        "roles": list(actor.roles) or None,
        "tokenId": actor.token_id,
        "source": actor.source,
        "sourceIp": actor.source_ip,
        "userAgent": actor.user_agent,
        **more,
    }
    return {name: value for name, value in known.items() if value is not None}


def _row(kind: _Kind, at: int, count: int, facts: dict[str, Any]) -> tuple[Any, ...]:
    # A store takes neither NULs nor long names in an index, and nobody has such a name.
    clean = tuple(text.replace("\0", "")[:LONGEST_NAME] for text in kind[:6])
    return (at, count, *clean, msgspec.json.encode(facts).decode().replace("\\u0000", ""))


def _entry(row: Any) -> AuditEntry:
    key, at, count, outcome, action, tenant_id, actor_id, run_id, code, facts = row
    return AuditEntry(
        str(key),
        from_micros(at),
        count,
        outcome,
        action,
        tenant_id or None,
        actor_id or None,
        run_id or None,
        code or None,
        msgspec.json.decode(facts),
    )
