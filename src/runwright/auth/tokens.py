"""API tokens: created here, shown once, and stored as digests."""

from __future__ import annotations

import hmac
import re
import secrets
from collections.abc import Collection, Sequence
from hashlib import sha256
from typing import Any
from unicodedata import name as character_name
from unicodedata import normalize

import msgspec

from runwright.contract.clock import Clock
from runwright.contract.errors import ErrorCode, RunwrightError
from runwright.contract.timestamps import from_micros
from runwright.log.side_tables import SideTables
from runwright.plans.problems import did_you_mean

from .roles import RANK, ROLES, SCOPES, Actor, check_tenant

PREFIX = "rwt"
CACHE_SECONDS = 1.0
"""How long a token is cached: one that was revoked in another process remains valid for so long."""
MAX_CACHED = 10_000
MAX_LENGTH = 256
_LOOKALIKES = str.maketrans("авеѕіјкмнорстухһԁԛԝαβεζηικμνορτυχ", "abesijkmhopctyxhdqwabezhikmvoptux")
"""Letters of other scripts, in lower case, and the Latin ones that they look like."""
_INVISIBLE = re.compile("[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u3164\ufe00-\ufe0f\uffa0\U000e0000-\U000e0fff]")
_LATIN_LETTERS = frozenset("ßæœøđðþłħŋıĸſ")  # besides those of ASCII and their forms with accents
LOOKALIKE_SCRIPTS = frozenset({"ARMENIAN", "CHEROKEE", "COPTIC", "CYRILLIC", "GREEK"})
"""Scripts with letters that look like Latin ones."""


class Token(msgspec.Struct, frozen=True, rename="camel"):
    """A token without its secret, as it may be shown."""

    token_id: str
    name: str
    tenant_id: str | None
    roles: tuple[str, ...]
    scopes: tuple[str, ...]
    created_at: str
    created_by: str
    expires_at: str | None
    revoked_at: str | None


class _StoredToken(msgspec.Struct, frozen=True):
    token: Token
    digest: bytes
    expires_at: int | None


class Tokens:
    def __init__(self, side_tables: SideTables, clock: Clock) -> None:
        self._side_tables = side_tables
        self._clock = clock
        self._cache: dict[str, tuple[float, _StoredToken | None]] = {}
        self._creators: dict[str, tuple[str, ...]] = {}
        self._has_any: tuple[float, bool] = (float("-inf"), False)

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
        """Create a token. Returns it with the text that its holder sends, which is not stored."""
        check_token(name, by=by, tenant_id=tenant_id, roles=roles, scopes=scopes, lifetime=lifetime)
        tenant_id = by.tenant_id if tenant_id is None else tenant_id
        token_id, secret = secrets.token_hex(8), secrets.token_urlsafe(32)
        now = self._clock.now()
        expires_at = None if lifetime is None else now + int(lifetime * 1e6)
        ordered = ([role for role in ROLES if role in roles], [scope for scope in SCOPES if scope in scopes])
        lists = [msgspec.json.encode(names).decode() for names in ordered]
        row = (token_id, name, _digest(secret), tenant_id, *lists, now, by.actor_id, expires_at)
        if not await self._side_tables.write("insert_token", *row, normalized_name(name), by.token_id):
            message = f"A token named {name!r}, or written like it, exists. Choose another name, or revoke that token."
            raise RunwrightError(ErrorCode.TOKEN_NAME_TAKEN, message)
        self._has_any = (float("-inf"), False)
        return _decode_row((*row, None)).token, f"{PREFIX}_{token_id}_{secret}"

    async def verify(self, text: str) -> Token:
        """Return the token with this text. Raises AUTHN_FAILED if it is unknown, expired or revoked."""
        parts = text.split("_", 2)
        stored = None
        if len(text) <= MAX_LENGTH and text.isascii() and len(parts) == 3 and parts[0] == PREFIX:
            stored = await self._find(parts[1])
        if stored is None or not hmac.compare_digest(stored.digest, _digest(parts[2])):
            raise _authentication_failed("Unknown token.")
        self._check_valid(stored)
        return stored.token

    async def check_valid(self, token_id: str) -> None:
        """Raise AUTHN_FAILED if a token that was verified earlier is no longer valid."""
        stored = await self._find(token_id)
        if stored is None:
            raise _authentication_failed("Unknown token.")
        self._check_valid(stored)

    async def find_invalid(self, token_ids: Collection[str]) -> set[str]:
        """Return which of these tokens are revoked or expired. Not cached."""
        ids = msgspec.json.encode(sorted(token_ids)).decode()
        return {row[0] for row in await self._side_tables.read("find_invalid_tokens", ids, self._clock.now())}

    def _check_valid(self, stored: _StoredToken) -> None:
        if stored.token.revoked_at is not None:
            raise _authentication_failed("The token was revoked.")
        if stored.expires_at is not None and stored.expires_at <= self._clock.now():
            raise _authentication_failed("The token has expired.")

    async def creators(self, token_id: str) -> tuple[str, ...]:
        """Return the names of those who created a token, directly or through other tokens. They never change."""
        found = self._creators.get(token_id)
        if found is None:
            rows = await self._side_tables.read("find_token_creators", token_id)
            if len(self._creators) >= MAX_CACHED:
                self._creators.clear()
            found = self._creators[token_id] = tuple(row[0] for row in rows)
        return found

    async def _find(self, token_id: str) -> _StoredToken | None:
        read_at, stored = self._cache.get(token_id, (float("-inf"), None))
        now = self._clock.monotonic()
        if now - read_at < CACHE_SECONDS:
            return stored
        rows = await self._side_tables.read("find_token", token_id)
        stored = _decode_row(rows[0]) if rows else None
        if len(self._cache) >= MAX_CACHED:
            self._cache.clear()
        self._cache[token_id] = (now, stored)
        return stored

    async def has_any(self) -> bool:
        """Return whether a token was ever created. Until then, callers are not authenticated."""
        read_at, has_any = self._has_any
        if not has_any and self._clock.monotonic() - read_at >= CACHE_SECONDS:
            self._has_any = (self._clock.monotonic(), bool(await self._side_tables.read("token_exists")))
        return self._has_any[1]

    async def list(self, tenant_id: str | None = None) -> list[Token]:
        rows = await self._side_tables.select("list_tokens", [("tenant_id =", tenant_id)])
        return [_decode_row(row).token for row in rows]

    async def revoke(self, token_id: str, *, by: Actor) -> None:
        """Revoke a token. Raises TOKEN_NOT_FOUND if there is none that this actor can access."""
        rows = await self._side_tables.read("find_token", token_id)
        stored = _decode_row(rows[0]) if rows else None
        if stored is None or not (by.tenant_id is None or by.tenant_id == stored.token.tenant_id):
            raise RunwrightError(ErrorCode.TOKEN_NOT_FOUND, f"Token {token_id[:64]!r} not found.")
        await self._side_tables.write("revoke_token", token_id, self._clock.now())
        self._cache.pop(token_id, None)


def actor_from_token(token: Token, creators: tuple[str, ...], source_ip: str | None, user_agent: str | None) -> Actor:
    return Actor(
        token.name,
        token.roles,
        "api",
        token.tenant_id,
        token.scopes,
        token.token_id,
        source_ip,
        user_agent,
        creators,
    )


def normalized_name(name: str) -> str:
    """Return a name as it is compared: two names that look the same to a person are equal."""
    return " ".join(normalize("NFKC", name).casefold().translate(_LOOKALIKES).split())


def _digest(secret: str) -> bytes:
    return sha256(secret.encode()).digest()


def _decode_row(row: Any) -> _StoredToken:
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
    return _StoredToken(token, digest, expires_at)


def check_token(
    name: str,
    *,
    by: Actor,
    tenant_id: str | None = None,
    roles: Sequence[str] = (),
    scopes: Sequence[str] = (),
    lifetime: float | None = None,
) -> None:
    """Raise an error for an invalid token, or one that this actor may not create."""
    _check_name("name", name)
    if tenant_id is not None:
        _check_name("tenant", tenant_id)
        check_tenant(by, tenant_id)
    for kind, names, known in (("role", roles, ROLES), ("scope", scopes, SCOPES)):
        for each in names:
            if each not in known:
                raise _invalid(f"Unknown {kind} {each!r}.{did_you_mean(each, known)} Allowed: {', '.join(known)}.")
    if not roles and not scopes:
        raise _invalid("A token must have a role or a scope.")
    if lifetime is not None and not 0 < lifetime <= 100 * 366 * 86_400:
        raise _invalid("The lifetime of a token must be positive and at most 100 years.")
    highest = max((RANK[role] for role in by.roles if role in RANK), default=-1)
    above = [role for role in roles if RANK.get(role, RANK["Admin"]) > highest]
    if above:
        raise RunwrightError(ErrorCode.AUTHZ_DENIED, f"You cannot grant the role {above[0]}: it exceeds your own.")
    if "System" in roles and by.tenant_id is not None:
        raise RunwrightError(
            ErrorCode.AUTHZ_DENIED, "Only an actor that is not bound to a tenant can grant the role System."
        )


def _check_name(field: str, text: str) -> None:
    if not 0 < len(text) <= 128 or not text.isprintable() or "|" in text or _INVISIBLE.search(text):
        raise _invalid(f"A {field} must have 1 to 128 visible characters, and no |.")
    if text != " ".join(text.split()):
        raise _invalid(f"A {field} must not begin or end with a space, or have two in a row.")
    scripts = {character_name(letter, "").partition(" ")[0] for letter in text if letter.isalpha()}
    if "LATIN" in scripts and scripts & LOOKALIKE_SCRIPTS:
        raise _invalid(f"A {field} must not mix Latin letters with letters of another script that look like them.")
    if unusual := [letter for letter in text if _is_unusual_latin(letter)]:
        raise _invalid(f"A {field} must not contain {unusual[0]!r}, which looks like another letter.")


def _is_unusual_latin(letter: str) -> bool:
    base = normalize("NFKD", letter.casefold())
    return character_name(letter, "").startswith("LATIN ") and not base[0].isascii() and base[0] not in _LATIN_LETTERS


def _invalid(message: str) -> RunwrightError:
    return RunwrightError(ErrorCode.INVALID_ARGUMENT, message)


def _authentication_failed(message: str) -> RunwrightError:
    return RunwrightError(ErrorCode.AUTHN_FAILED, f"{message} Ask an Admin for a new one: `runwright token create`.")
