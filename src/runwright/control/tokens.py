"""Tokens: what a caller shows instead of a name. They are made here, shown once, and kept as digests."""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Sequence
from hashlib import sha256
from typing import Any

import msgspec

from runwright.contract.clock import Clock
from runwright.contract.errors import ErrorCode, RunwrightError
from runwright.contract.timestamps import from_micros
from runwright.log.desk import Desk
from runwright.plans.problems import did_you_mean

from .access import RANK, ROLES, SCOPES, Actor, check_tenant

PREFIX = "rwt"
FRESH = 1.0
"""Seconds for which a token is remembered: one that was revoked in another process may be good for so long."""
MOST_REMEMBERED = 10_000
LONGEST = 256


class Token(msgspec.Struct, frozen=True, rename="camel"):
    """A token as people may see it. What it takes to use it is not in here."""

    token_id: str
    name: str
    tenant_id: str | None
    roles: tuple[str, ...]
    scopes: tuple[str, ...]
    created_at: str
    created_by: str
    expires_at: str | None
    revoked_at: str | None


class _Kept(msgspec.Struct, frozen=True):
    token: Token
    digest: bytes
    expires_at: int | None


class Tokens:
    def __init__(self, desk: Desk, clock: Clock) -> None:
        self._desk = desk
        self._clock = clock
        self._remembered: dict[str, tuple[float, _Kept | None]] = {}
        self._any: tuple[float, bool] = (float("-inf"), False)

    async def create(
        self,
        name: str,
        *,
        by: Actor,
        tenant_id: str | None = None,
        roles: Sequence[str] = (),
        scopes: Sequence[str] = (),
        lifetime: float | None = None,
    ) -> tuple[Token, str]:
        """Make a token; gives back what is known of it and the text that its holder shows. Nobody sees that again."""
        check_token(name, by=by, tenant_id=tenant_id, roles=roles, scopes=scopes, lifetime=lifetime)
        tenant_id = by.tenant_id if tenant_id is None else tenant_id
        token_id, secret = secrets.token_hex(8), secrets.token_urlsafe(32)
        now = self._clock.now()
        expires_at = None if lifetime is None else now + int(lifetime * 1e6)
        ordered = ([role for role in ROLES if role in roles], [scope for scope in SCOPES if scope in scopes])
        lists = [msgspec.json.encode(names).decode() for names in ordered]
        row = (token_id, name, _digest(secret), tenant_id, *lists, now, by.actor_id, expires_at)
        await self._desk.write("put_token", *row)
        self._any = (float("-inf"), False)
        return _kept((*row, None)).token, f"{PREFIX}_{token_id}_{secret}"

    async def verify(self, text: str) -> Token:
        """The token that this text belongs to. AUTHN_FAILED if it is unknown, expired or revoked."""
        parts = text.split("_", 2)
        kept = None
        if len(text) <= LONGEST and text.isascii() and len(parts) == 3 and parts[0] == PREFIX:
            kept = await self._find(parts[1])
        if kept is None or not hmac.compare_digest(kept.digest, _digest(parts[2])):
            raise _failed("This token is unknown.")
        if kept.token.revoked_at is not None:
            raise _failed("This token was revoked.")
        if kept.expires_at is not None and kept.expires_at <= self._clock.now():
            raise _failed("This token has expired.")
        return kept.token

    async def _find(self, token_id: str) -> _Kept | None:
        at, kept = self._remembered.get(token_id, (float("-inf"), None))
        now = self._clock.monotonic()
        if now - at < FRESH:
            return kept
        rows = await self._desk.read("find_token", token_id)
        kept = _kept(rows[0]) if rows else None
        if len(self._remembered) >= MOST_REMEMBERED:
            self._remembered.clear()
        self._remembered[token_id] = (now, kept)
        return kept

    async def any(self) -> bool:
        """Whether a token was ever made. Until then there is nobody to tell apart."""
        at, known = self._any
        if not known and self._clock.monotonic() - at >= FRESH:
            self._any = (self._clock.monotonic(), bool(await self._desk.read("any_token")))
        return self._any[1]

    async def list(self, tenant_id: str | None = None) -> list[Token]:
        rows = await self._desk.select("list_tokens", [("tenant_id =", tenant_id)])
        return [_kept(row).token for row in rows]

    async def revoke(self, token_id: str, *, by: Actor) -> None:
        """End a token now. TOKEN_NOT_FOUND if there is none that this actor may know of."""
        rows = await self._desk.read("find_token", token_id)
        kept = _kept(rows[0]) if rows else None
        if kept is None or not (by.tenant_id is None or by.tenant_id == kept.token.tenant_id):
            raise RunwrightError(ErrorCode.TOKEN_NOT_FOUND, f"There is no token {token_id[:64]!r}.")
        await self._desk.write("revoke_token", token_id, self._clock.now())
        self._remembered.pop(token_id, None)


def actor_of(token: Token, source_ip: str | None, user_agent: str | None) -> Actor:
    return Actor(token.name, token.roles, "api", token.tenant_id, token.scopes, token.token_id, source_ip, user_agent)


def _digest(secret: str) -> bytes:
    return sha256(secret.encode()).digest()


def _kept(row: Any) -> _Kept:
    token_id, name, digest, tenant_id, roles, scopes, created_at, created_by, expires_at, revoked_at = row
    token = Token(
        token_id,
        name,
        tenant_id,
        tuple(msgspec.json.decode(roles, type=list[str])),
        tuple(msgspec.json.decode(scopes, type=list[str])),
        from_micros(created_at),
        created_by,
        None if expires_at is None else from_micros(expires_at),
        None if revoked_at is None else from_micros(revoked_at),
    )
    return _Kept(token, digest, expires_at)


def check_token(
    name: str,
    *,
    by: Actor,
    tenant_id: str | None = None,
    roles: Sequence[str] = (),
    scopes: Sequence[str] = (),
    lifetime: float | None = None,
) -> None:
    """Refuse a token that cannot be, or that this actor may not make."""
    _check_name("name", name)
    if tenant_id is not None:
        _check_name("tenant", tenant_id)
        check_tenant(by, tenant_id)
    for kind, given, known in (("role", roles, ROLES), ("scope", scopes, SCOPES)):
        for each in given:
            if each not in known:
                raise _refused(
                    f"There is no {kind} {each!r}.{did_you_mean(each, known)} There are: {', '.join(known)}."
                )
    if not roles and not scopes:
        raise _refused("A token needs a role or a scope.")
    if lifetime is not None and not 0 < lifetime <= 100 * 366 * 86_400:
        raise _refused("A token lives for more than no time and less than a hundred years.")
    highest = max((RANK[role] for role in by.roles if role in RANK), default=-1)
    above = [role for role in roles if RANK.get(role, RANK["Admin"]) > highest]
    if above:
        raise RunwrightError(ErrorCode.AUTHZ_DENIED, f"You cannot hand out the role {above[0]}: you have less.")
    if "System" in roles and by.tenant_id is not None:
        raise RunwrightError(ErrorCode.AUTHZ_DENIED, "Only somebody for every tenant can hand out the role System.")


def _check_name(what: str, text: str) -> None:
    if not 0 < len(text) <= 128 or not text.isprintable() or "|" in text:
        raise _refused(f"A {what} has 1 to 128 printable characters, and no |.")


def _refused(sentence: str) -> RunwrightError:
    return RunwrightError(ErrorCode.INVALID_ARGUMENT, sentence)


def _failed(sentence: str) -> RunwrightError:
    return RunwrightError(ErrorCode.AUTHN_FAILED, f"{sentence} Ask an Admin for another: `runwright token create`.")
