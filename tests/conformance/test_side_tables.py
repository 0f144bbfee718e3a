"""Side tables of the log on every store: tokens, audit and requests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

import runwright as rw
from runwright.auth.audit import Audit, AuditedRun, AuditFilter
from runwright.auth.roles import Actor
from runwright.auth.tokens import Tokens
from runwright.control.idempotency import run_of_request
from runwright.control.run_scope import local_actor

MakeLog = Callable[..., rw.RunLog]


async def test_token_is_verified_by_its_text_until_revoked(make_log: MakeLog) -> None:
    async with make_log() as log:
        tokens = Tokens(log.store.side_tables, log.clock)
        assert not await tokens.has_any()
        created, text = await tokens.create("jane", by=local_actor(), tenant_id="acme", roles=["Admin", "Viewer"])
        assert await Tokens(log.store.side_tables, log.clock).verify(text) == created
        assert (created.roles, created.tenant_id) == (("Viewer", "Admin"), "acme")
        assert await Tokens(log.store.side_tables, log.clock).has_any()
        assert [token.token_id for token in await tokens.list("acme")] == [created.token_id]
        assert await tokens.list("other") == []
        await tokens.revoke(created.token_id, by=local_actor())
        with pytest.raises(rw.RunwrightError):
            await tokens.verify(text)
        other_tenant = Actor("x", ("Admin",), tenant_id="other")
        with pytest.raises(rw.RunwrightError) as caught:
            await tokens.revoke(created.token_id, by=other_tenant)
        assert caught.value.code == "TOKEN_NOT_FOUND"


async def test_tokens_cannot_exceed_the_creators_role(make_log: MakeLog) -> None:
    async with make_log() as log:
        tokens = Tokens(log.store.side_tables, log.clock)
        engineer = Actor("x", ("Engineer",))
        for roles in (["Admin"], ["System"]):
            with pytest.raises(rw.RunwrightError) as caught:
                await tokens.create("y", by=engineer, roles=roles)
            assert caught.value.code == "AUTHZ_DENIED"
        for invalid in ({"roles": ["Boss"]}, {"scopes": ["all"]}, {}, {"roles": ["Viewer"], "lifetime": -1.0}):
            with pytest.raises(rw.RunwrightError) as caught:
                await tokens.create("y", by=local_actor(), **invalid)  # type: ignore[arg-type]
            assert caught.value.code == "INVALID_ARGUMENT"
        for name in ("", "a|b", "a\nb", "x" * 129):
            with pytest.raises(rw.RunwrightError):
                await tokens.create(name, by=local_actor(), roles=["Viewer"])


async def test_audit_aggregates_reads_and_records_writes(make_log: MakeLog) -> None:
    async with make_log() as log:
        audit = Audit(log.store.side_tables, log.clock)
        actor = Actor("jane", ("Viewer",), source_ip="192.0.2.1")
        for _ in range(5):
            audit.count_read(actor, "runs.read", tenant_id="acme", run=AuditedRun("r"))
        audit.count_denial(actor, "runs.start", "AUTHZ_DENIED", tenant_id="acme")
        for _ in range(2):
            await audit.record_action(
                actor, "runs.signal", tenant_id="acme", run=AuditedRun("r", "p", "prod", 2, 1), signalType="PAUSE"
            )
        page = await audit.list(AuditFilter(tenant_id="acme"))
        assert sorted((each.action, each.outcome, each.count) for each in page.entries) == [
            ("runs.read", "GRANTED", 5),
            ("runs.signal", "GRANTED", 1),
            ("runs.signal", "GRANTED", 1),
            ("runs.start", "DENIED", 1),
        ]
        action = next(each for each in page.entries if each.action == "runs.signal")
        assert (action.project_id, action.environment_id) == ("p", "prod")
        assert (action.engine_attempt_id, action.logical_attempt_id) == (2, 1)
        first = await audit.list(AuditFilter(run_id="r"), limit=2)
        rest = await audit.list(AuditFilter(run_id="r"), limit=2, cursor=first.cursor)
        assert (len(first.entries), len(rest.entries), rest.cursor) == (2, 1, None)
        assert (await audit.list(AuditFilter(since=log.clock.now() + 10**9))).entries == []


async def test_audit_rows_of_many_denials_are_bounded(make_log: MakeLog) -> None:
    async with make_log() as log:
        audit = Audit(log.store.side_tables, log.clock)
        actor = Actor("jane", ())
        for number in range(12_000):
            audit.count_denial(actor, "runs.read", "RUN_NOT_FOUND", run=AuditedRun(f"guess-{number}"))
        await audit.flush()
        rows = await log.store.side_tables.read("count_audit")
        assert rows[0][0] <= 5001
        page = await audit.list(AuditFilter(actor_id="(many)"))
        assert page.entries[0].count == 7000


async def test_concurrent_requests_with_one_key_get_one_run(make_log: MakeLog) -> None:
    async with make_log() as log:
        request = ("t", "p", "e", "plan", "1", "order-1")
        found = await asyncio.gather(*(run_of_request(log.store.side_tables, request, f"run-{n}") for n in range(10)))
        assert len(set(found)) == 1
        assert await run_of_request(log.store.side_tables, request, "later") == found[0]
        other = (*request[:5], "order-2")
        assert await run_of_request(log.store.side_tables, other, "r2") == "r2"
        assert await run_of_request(log.store.side_tables, other, "r3") == "r2"
        with pytest.raises(rw.RunwrightError):
            await run_of_request(log.store.side_tables, (*request[:5], "a|b"), "r4")
