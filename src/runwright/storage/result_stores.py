"""Stores of large task results ("tiers"): files, an S3 bucket, a NATS object store, or a Postgres table.

Every result has a key of its own run, and the key contains its lifetime. So deleting one result never affects another,
expired results are found by their keys alone, and no reference leads into another run.
"""

from __future__ import annotations

import asyncio
import gzip
import logging
import os
import zlib
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any, Protocol

import msgspec

from runwright.contract.errors import ErrorCode, RunwrightError
from runwright.contract.playbook import ResultScope
from runwright.contract.result_ref import ResultRef, parse_result_address
from runwright.contract.timestamps import is_utc, to_micros
from runwright.core.scheduling.result_refs import (
    EXPIRING,
    TEMPORARY_SCOPES,
    KeyParts,
    StorageKey,
    is_tag,
    read_result_key,
    result_key,
    tag_of,
)

from .file_store import reference_not_available, write_file_atomically
from .json_encoding import MAX_RESULT_BYTES

logger = logging.getLogger("runwright.storage")


class Tier(Protocol):
    """Bytes by key. Methods raise OSError if the store fails, FileNotFoundError if the key does not exist."""

    async def put(self, key: str, body: bytes) -> None:
        """Store bytes. Durable on return. A key always has the same bytes."""
        ...

    async def get(self, key: str) -> bytes: ...

    async def delete(self, key: str) -> None:
        """Delete a key. Not an error if it does not exist."""
        ...

    def list_keys(self, prefix: str) -> AsyncIterator[str]: ...

    async def close(self) -> None: ...


CLOSE_TIMEOUT = 5.0  # seconds
DRAFT_LIFETIME = 3600 * 1_000_000  # microseconds; writing one takes far less
TierFactory = Callable[[], Awaitable[Tier]]
HasRunEnded = Callable[[str, bool], Awaitable[bool]]
"""Called with a run id: whether the run has ended; with True as second argument, all its parent runs too."""


class Tiers:
    """The result stores of this installation, each opened at its first use."""

    def __init__(self, stores: Mapping[str, TierFactory], default_store: str, now: Callable[[], int]) -> None:
        self._stores = stores
        self.default_store = default_store
        self._now = now
        self._open: dict[str, Tier] = {}
        # One lock per store, so that opening one does not wait for another.
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def put(self, run_id: str, key: StorageKey, body: bytes) -> None:
        tier = await self._tier(key.store)
        packed = await asyncio.to_thread(gzip.compress, body, 6) if key.compression == "gzip" else body
        try:
            if (tag := tag_of(key.key)) is not None:
                await tier.put(tag, run_id.encode())
            await tier.put(key.key, packed)
        except OSError as error:
            raise _store_unavailable(key.store, error) from error

    async def get(self, run_id: str, ref: Mapping[str, Any]) -> bytes:
        """Return the verified bytes of a reference in this run's log. Raises REFERENCE_NOT_AVAILABLE."""
        result = _parse_ref(ref)
        address = parse_result_address(result.ref)
        if address is None:
            raise reference_not_available(f"{result.ref!r} is not the address of a result")
        if result.expires_at is not None and not is_utc(result.expires_at):
            raise reference_not_available(f"Invalid expiry time {result.expires_at!r}")
        if result.expires_at is not None and to_micros(result.expires_at) <= self._now():
            raise reference_not_available(f"The result expired at {result.expires_at}")
        key = result_key(result.scope, run_id, address.path, result.expires_at, result.meta)
        self.check((result.store,))
        try:
            packed = await (await self._tier(result.store)).get(key)
        except FileNotFoundError:
            raise reference_not_available(f"Result not found in store {result.store!r}{_lifetime(result)}") from None
        except (OSError, RunwrightError) as error:
            if isinstance(error, RunwrightError):
                raise reference_not_available(error.detail.rstrip("."), temporary=True) from error
            raise reference_not_available(_unavailable_text(result.store, error), temporary=True) from error
        body = packed if result.meta.compression == "none" else await asyncio.to_thread(_decompress, packed, result)
        if body is None or sha256(body).hexdigest() != result.meta.sha256:
            raise reference_not_available(
                f"The result in store {result.store!r} is damaged: its content does not match its hash"
            )
        return body

    async def delete_prefix(self, store: str, prefix: str) -> int:
        """Delete all keys with this prefix and return their number."""
        tier = await self._tier(store)
        keys = [key async for key in tier.list_keys(prefix)]
        for key in sorted(keys, key=is_tag):  # tags last: they identify the run that owns the other keys
            await tier.delete(key)
        return len(keys)

    async def prune(self, has_ended: HasRunEnded) -> dict[str, int | RunwrightError]:
        """Delete expired results and those of runs that have ended. Return the number, or the error, by store."""
        deleted: dict[str, int | RunwrightError] = {}
        for name in sorted(self._stores):
            try:
                deleted[name] = await self._prune(await self._tier(name), has_ended)
            except OSError as error:
                deleted[name] = _store_unavailable(name, error)
            except RunwrightError as error:
                deleted[name] = error
        return deleted

    async def _prune(self, tier: Tier, has_ended: HasRunEnded) -> int:
        ended_runs = _EndedRuns(tier, has_ended)
        expired: list[str] = []
        for scope in TEMPORARY_SCOPES:
            async for key in tier.list_keys(f"{scope}/"):
                parts = read_result_key(key)
                if parts is None:
                    continue
                is_late = parts.expires is not None and parts.expires * 1_000_000 <= self._now()
                if is_late or (parts.scope != EXPIRING and await ended_runs.has_owner_of(key, parts)):
                    expired.append(key)
        results = [key for key in expired if key not in ended_runs.tags]
        for key in (*results, *ended_runs.tags):
            await tier.delete(key)
        drafts = await tier.delete_drafts(self._now() - DRAFT_LIFETIME) if isinstance(tier, FolderTier) else 0
        return len(results) + drafts

    async def probe(self, name: str, token: str) -> None:
        """Check a store by writing, reading and deleting a key. `token` must be unique."""
        tier, key = await self._tier(name), f"trial/{token}"
        try:
            await tier.put(key, token.encode())
            found = await tier.get(key)
            await tier.delete(key)
        except OSError as error:
            raise _store_unavailable(name, error) from error
        if found != token.encode():
            raise reference_not_available(f"Store {name!r} returned other bytes than were written")

    def check(self, names: Iterable[str]) -> None:
        """Raise CAPABILITY_NOT_SUPPORTED if a store is not configured."""
        for name in names:
            if name not in self._stores:
                raise _not_configured(name, self._stores)

    async def close(self) -> None:
        """Close all stores. An unavailable store is only logged."""
        for name, tier in self._open.items():
            try:
                async with asyncio.timeout(CLOSE_TIMEOUT):
                    await tier.close()
            except Exception as error:  # clients raise arbitrary errors on lost connections
                logger.info("Closing result store %r failed: %s", name, error)
        self._open.clear()

    async def _tier(self, name: str) -> Tier:
        tier = self._open.get(name)
        if tier is not None:
            return tier
        self.check((name,))
        async with self._locks[name]:
            if name not in self._open:
                try:
                    self._open[name] = await self._stores[name]()
                except OSError as error:
                    raise _store_unavailable(name, error) from error
            return self._open[name]


class _EndedRuns:
    """Cache of which runs have ended: each is looked up once."""

    def __init__(self, tier: Tier, has_ended: HasRunEnded) -> None:
        self._tier = tier
        self._has_ended = has_ended
        self._known: dict[tuple[str, bool], bool] = {}
        self._run_ids: dict[str, str | None] = {}
        self.tags: set[str] = set()  # tags of runs that have ended

    async def has_owner_of(self, key: str, parts: KeyParts) -> bool:
        """Whether the run that owns a key has ended. False if the owner is unknown."""
        tag = tag_of(key)
        run_id = parts.run_id if tag is None else await self._run_id_in(tag)
        if run_id is None:
            return False
        question = (run_id, parts.scope == ResultScope.WORKFLOW)
        if question not in self._known:
            self._known[question] = await self._has_ended(*question)
        if tag is not None and self._known[question]:
            self.tags.add(tag)
        return self._known[question]

    async def _run_id_in(self, tag: str) -> str | None:
        if tag not in self._run_ids:
            try:
                self._run_ids[tag] = (await self._tier.get(tag)).decode()
            except FileNotFoundError:
                self._run_ids[tag] = None
        return self._run_ids[tag]


def _not_configured(name: str, stores: Mapping[str, Any]) -> RunwrightError:
    return RunwrightError(
        ErrorCode.CAPABILITY_NOT_SUPPORTED,
        f"Unknown result store {name!r}; configured: {', '.join(sorted(stores))}. "
        f"Configure it in runwright.toml, under [results.{name}].",
    )


def _parse_ref(ref: Mapping[str, Any]) -> ResultRef:
    try:
        return msgspec.convert(dict(ref), ResultRef)
    except msgspec.ValidationError as error:
        raise reference_not_available(f"Invalid result reference: {error}") from None


def _lifetime(ref: ResultRef) -> str:
    return "" if ref.scope == ResultScope.PERMANENT else f": it was stored for the {ref.scope} only"


def _decompress(packed: bytes, ref: ResultRef) -> bytes | None:
    """Return the uncompressed bytes; None if their size is not the one in the reference."""
    if ref.meta.bytes > MAX_RESULT_BYTES:
        return None
    decompressor = zlib.decompressobj(wbits=31)
    try:
        body = decompressor.decompress(packed, ref.meta.bytes + 1)
    except zlib.error:
        return None
    return body if len(body) == ref.meta.bytes else None


def _reason(error: OSError) -> str:
    if isinstance(error, TimeoutError) and not str(error):
        return "timed out"
    return error.strerror or str(error) or type(error).__name__


def _unavailable_text(store: str, error: OSError) -> str:
    return f"Result store {store!r} is unavailable: {_reason(error)}"


def _store_unavailable(store: str, error: OSError) -> RunwrightError:
    return RunwrightError(ErrorCode.STORE_UNAVAILABLE, f"{_unavailable_text(store, error)}.")


class FolderTier:
    """Results in files of this machine."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    async def put(self, key: str, body: bytes) -> None:
        await asyncio.to_thread(write_file_atomically, self._folder / key, lambda file: file.write(body))

    async def get(self, key: str) -> bytes:
        return await asyncio.to_thread((self._folder / key).read_bytes)

    async def delete(self, key: str) -> None:
        await asyncio.to_thread(self._delete, key)

    def _delete(self, key: str) -> None:
        path = self._folder / key
        path.unlink(missing_ok=True)
        for folder in list(path.parents)[: key.count("/")]:
            try:
                folder.rmdir()
            except OSError:
                return  # not empty

    async def list_keys(self, prefix: str) -> AsyncIterator[str]:
        for key in await asyncio.to_thread(self._list_keys, prefix):
            yield key

    def _list_keys(self, prefix: str) -> list[str]:
        """List keys. Folders may disappear during the walk, because other processes prune too."""
        parent, _, _ = prefix.rpartition("/")
        found: list[str] = []
        for folder, _, files in os.walk(self._folder / parent):
            relative = Path(folder).relative_to(self._folder)
            found += [(relative / name).as_posix() for name in files if not name.startswith(".")]
        return sorted(name for name in found if name.startswith(prefix))

    async def delete_drafts(self, before: int) -> int:
        """Delete incomplete files of crashed writers that are older than `before` (microseconds). Return the number."""
        return await asyncio.to_thread(self._delete_drafts, before)

    def _delete_drafts(self, before: int) -> int:
        deleted = 0
        for folder, _, files in os.walk(self._folder):
            for name in files:
                draft = Path(folder) / name
                try:
                    if name.startswith(".") and draft.stat().st_mtime * 1e6 < before:
                        draft.unlink()
                        deleted += 1
                except FileNotFoundError:
                    continue  # it was completed, or another process deleted it
        return deleted

    async def close(self) -> None: ...


class MemoryTier:
    """Results in memory, for tests."""

    def __init__(self) -> None:
        self.bodies: dict[str, bytes] = {}

    async def put(self, key: str, body: bytes) -> None:
        self.bodies[key] = body

    async def get(self, key: str) -> bytes:
        try:
            return self.bodies[key]
        except KeyError:
            raise FileNotFoundError from None

    async def delete(self, key: str) -> None:
        self.bodies.pop(key, None)

    async def list_keys(self, prefix: str) -> AsyncIterator[str]:
        for name in sorted(self.bodies):
            if name.startswith(prefix):
                yield name

    async def close(self) -> None: ...


def in_memory_tiers(now: Callable[[], int], tier: Tier | None = None) -> Tiers:
    """Create tiers whose stores are all one in-memory store (for tests)."""
    shared = tier or MemoryTier()

    async def open_shared() -> Tier:
        return shared

    return Tiers(dict.fromkeys(("local", "s3", "nats_object", "postgres"), open_shared), "local", now)
