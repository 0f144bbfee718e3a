"""Placement of task results: inline in the event, or in a store with a reference; the keys of stored results."""

from __future__ import annotations

import re
from hashlib import sha256
from typing import Any, cast

import msgspec

from runwright.contract.errors import ErrorCode, RunwrightError
from runwright.contract.paths import EntityPath
from runwright.contract.playbook import ResultPolicy, ResultScope
from runwright.contract.result_ref import ResultAddress, ResultMeta, ResultPreview, ResultRef, result_address
from runwright.contract.timestamps import from_micros, to_micros

from .stored_values import INLINE_LIMIT

PREVIEW = 1024  # bytes
MANIFEST_INLINE = 1024  # bytes: the parts of a manifest stay in memory until the pipeline ends
MAX_EXTRACTED = 16 * 1024  # bytes

_MOST_HEX = 64  # bytes of a name that is spelled out; file systems take 255 characters of one, buckets 1024 in all
_LONG = "~"
_PLAIN = re.compile(r"[A-Za-z0-9._-]{1,128}", re.ASCII)
_STEP = re.compile(r"\.?([^.\[\]$*?@()\"']+)|\[(\d{1,9})\]")


class StorageKey(msgspec.Struct, frozen=True):
    """A key in a result store."""

    store: str
    key: str
    compression: str = "none"


class PlacedResult(msgspec.Struct, frozen=True):
    """A result as it stands in events, and the key under which it is stored first."""

    body: bytes
    ref: ResultRef | None = None
    key: StorageKey | None = None
    extracted: dict[str, Any] = {}


def place_result(keeping: ResultPolicy, address: ResultAddress, body: bytes, store: str, now: int) -> PlacedResult:
    """Decide where a result is stored. `store`: the default, if the task names none."""
    extracted = _extracted(keeping, body)
    usual = INLINE_LIMIT if keeping.manifest is None else MANIFEST_INLINE
    if len(body) <= (usual if keeping.inline_max_bytes is None else keeping.inline_max_bytes):
        return PlacedResult(body, extracted=extracted)
    storing = keeping.store
    expires = None if storing.ttl is None else from_micros(now + int(storing.ttl * 1e6))
    digest = sha256(body).hexdigest()
    ref = ResultRef(
        ref=result_address(address.run_id, address.path, address.attempt),
        store=storing.kind or store,
        scope=storing.scope,
        expires_at=expires,
        meta=ResultMeta(len(body), digest, compression=storing.compression),
        extracted=extracted,
        preview=_preview(body, PREVIEW if keeping.preview_max_bytes is None else keeping.preview_max_bytes),
    )
    key = result_key(storing.scope, address.run_id, address.path, expires, ref.meta)
    return PlacedResult(body, ref, StorageKey(ref.store, key, storing.compression), extracted)


# Keys: they contain everything that the deletion of expired results needs


EXPIRING = "expiring"
"""Prefix of results that end only by their expiry time."""

TEMPORARY_SCOPES = (ResultScope.STEP, ResultScope.EXECUTION, ResultScope.WORKFLOW, EXPIRING)
"""Prefixes of the keys of all results that are deleted at some time."""


def result_key(scope: str, run_id: str, place: EntityPath, expires_at: str | None, meta: ResultMeta) -> str:
    """A key always names the same bytes: compressed ones have another key."""
    until = "kept" if expires_at is None else str(to_micros(expires_at) // 1_000_000)
    shelf = EXPIRING if scope == ResultScope.PERMANENT and expires_at is not None else scope
    packed = "" if meta.compression == "none" else f".{meta.compression}"
    return f"{key_prefix(shelf, run_id, place)}{until}-{meta.sha256}{packed}"


def key_prefix(scope: str, run_id: str, place: EntityPath | None = None) -> str:
    """The prefix of the keys of a run or, in scope `step`, of one visit."""
    visit = "" if place is None else f"{_named(place.owner)}/" if scope == ResultScope.STEP else "-/"
    return f"{scope}/{_named(run_id)}/{visit}"


def tag_of(key: str) -> str | None:
    """The key under which a run id is stored that is too long for a key, and is needed to delete results."""
    scope, _, rest = key.partition("/")
    name = rest.partition("/")[0]
    return f"{scope}/{name}/id" if name.startswith(_LONG) and scope in TEMPORARY_SCOPES and scope != EXPIRING else None


def is_tag(key: str) -> bool:
    return key == tag_of(key)


class KeyParts(msgspec.Struct, frozen=True):
    scope: str
    run_id: str | None  # none: too long for a key
    expires: int | None  # seconds since 1970


def read_result_key(key: str) -> KeyParts | None:
    """Parse a key; None if it is not ours."""
    if is_tag(key):
        return KeyParts(key.partition("/")[0], None, None)
    parts = key.split("/")
    if len(parts) != 4 or parts[0] not in (*TEMPORARY_SCOPES, ResultScope.PERMANENT):
        return None
    until, _, rest = parts[3].partition("-")
    if len(rest.partition(".")[0]) != 64 or not (until == "kept" or until.isdecimal()):
        return None
    return KeyParts(parts[0], _unnamed(parts[1]), None if until == "kept" else int(until))


def _named(text: str) -> str:
    """A text that every store accepts as part of a name."""
    if _PLAIN.fullmatch(text) and text not in (".", ".."):
        return text
    raw = text.encode()
    return f"={raw.hex()}" if len(raw) <= _MOST_HEX else f"{_LONG}{sha256(raw).hexdigest()}"


def _unnamed(text: str) -> str | None:
    if text.startswith(_LONG):
        return None
    return bytes.fromhex(text[1:]).decode() if text.startswith("=") else text


# Fields and previews


def parse_field_path(path: str) -> list[str | int] | None:
    """Parse a path such as `$.paging.pages[0].next`; None if it is invalid."""
    rest = path.removeprefix("$")
    steps: list[str | int] = []
    at = 0
    while at < len(rest):
        match = _STEP.match(rest, at)
        if match is None:
            return None
        steps.append(match[1] if match[2] is None else int(match[2]))
        at = match.end()
    return steps or None


def value_at_path(value: Any, path: str) -> Any:
    """The value at a path; None if there is none."""
    for step in parse_field_path(path) or ():
        if isinstance(value, dict) and isinstance(step, str):
            value = cast("dict[str, Any]", value).get(step)
        elif isinstance(value, list) and isinstance(step, int) and step < len(cast("list[Any]", value)):
            value = cast("list[Any]", value)[step]
        else:
            return None
    return value


def _extracted(keeping: ResultPolicy, body: bytes) -> dict[str, Any]:
    if not keeping.select:
        return {}
    value = msgspec.json.decode(body)
    extracted = {each.name: value_at_path(value, each.path) for each in keeping.select}
    size = len(msgspec.json.encode(extracted))
    if size > MAX_EXTRACTED:
        raise RunwrightError(
            ErrorCode.RESULT_NOT_STORABLE,
            f"The fields of `select` have {size:,} bytes; the limit is {MAX_EXTRACTED:,}. Select smaller fields.",
        )
    return extracted


def _preview(body: bytes, most: int) -> ResultPreview | None:
    if not most:
        return None
    sample = body[:most].decode(errors="ignore")
    return ResultPreview(len(body) > most, len(body), sample)
