"""Where the large results of tasks are kept: in files, a bucket, an object store of NATS, or a table of Postgres.

Every value lies under a key of its own run, which says how long it is wanted. So one that is deleted takes no other
along, what has expired is found by names alone, and no reference leads into somebody else's run.
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
from runwright.contract.playbook import Scope
from runwright.contract.resultref import ResultRef, parse_result_address
from runwright.contract.timestamps import is_utc, to_micros
from runwright.core.keeping import EXPIRING, PASSING, KeyParts, Spot, is_tag, read_result_key, result_key, tag_of

from .encoding import MAX_RESULT_BYTES
from .store import keep_file, not_available

logger = logging.getLogger("runwright.results")


class Tier(Protocol):
    """A place for bytes by name. Troubles are OSErrors, what is not there a FileNotFoundError."""

    async def put(self, key: str, body: bytes) -> None:
        """Once it returns the bytes are durable. The same key always has the same bytes."""
        ...

    async def get(self, key: str) -> bytes: ...

    async def delete(self, key: str) -> None:
        """Also where it is gone already."""
        ...

    def names(self, prefix: str) -> AsyncIterator[str]: ...

    async def close(self) -> None: ...


CLOSING_TIME = 5.0  # seconds
DRAFTS_KEPT = 3600 * 1_000_000  # microseconds: nobody takes that long to write one
Opening = Callable[[], Awaitable[Tier]]
IsOver = Callable[[str, bool], Awaitable[bool]]
"""Whether a run has ended, or, if so asked, the one that it is a part of."""


class Tiers:
    """The stores of this installation, each opened when it is first needed."""

    def __init__(self, stores: Mapping[str, Opening], usual: str, now: Callable[[], int]) -> None:
        self._stores = stores
        self.usual = usual
        self._now = now
        self._open: dict[str, Tier] = {}
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)  # who waits for one waits for no other

    async def put(self, run_id: str, spot: Spot, body: bytes) -> None:
        tier = await self._tier(spot.store)
        packed = await asyncio.to_thread(gzip.compress, body, 6) if spot.compression == "gzip" else body
        try:
            if (tag := tag_of(spot.key)) is not None:
                await tier.put(tag, run_id.encode())
            await tier.put(spot.key, packed)
        except OSError as error:
            raise _unreachable(spot.store, error) from error

    async def get(self, run_id: str, ref: Mapping[str, Any]) -> bytes:
        """The value that a reference in this run's log names, proved to be what it was."""
        read = _read(ref)
        address = parse_result_address(read.ref)
        if address is None:
            raise not_available(f"{read.ref!r} is not the address of a result")
        if read.expires_at is not None and not is_utc(read.expires_at):
            raise not_available(f"{read.expires_at!r} is no time")
        if read.expires_at is not None and to_micros(read.expires_at) <= self._now():
            raise not_available(f"The result was kept until {read.expires_at}, and that is over")
        key = result_key(read.scope, run_id, address.place, read.expires_at, read.meta)
        self.check((read.store,))
        try:
            packed = await (await self._tier(read.store)).get(key)
        except FileNotFoundError:
            raise not_available(f"The result is not in the store {read.store!r} any more{_because(read)}") from None
        except (OSError, RunwrightError) as error:
            why = error.detail.rstrip(".") if isinstance(error, RunwrightError) else _no_answer(read.store, error)
            raise not_available(why, passing=True) from error
        body = packed if read.meta.compression == "none" else await asyncio.to_thread(_unpacked, packed, read)
        if body is None or sha256(body).hexdigest() != read.meta.sha256:
            raise not_available(f"The result in the store {read.store!r} is damaged: its content has changed")
        return body

    async def collect(self, store: str, prefix: str) -> int:
        """Delete everything that begins so; how much that was."""
        tier = await self._tier(store)
        keys = [key async for key in tier.names(prefix)]
        for key in sorted(keys, key=is_tag):  # those last: without them the others would be nobody's
            await tier.delete(key)
        return len(keys)

    async def prune(self, is_over: IsOver) -> dict[str, int | RunwrightError]:
        """Delete what has expired, and what nobody can want any more; how much that was in each store, or why it could
        not be done there."""
        gone: dict[str, int | RunwrightError] = {}
        for name in sorted(self._stores):
            try:
                gone[name] = await self._prune(await self._tier(name), is_over)
            except OSError as error:
                gone[name] = _unreachable(name, error)
            except RunwrightError as error:
                gone[name] = error
        return gone

    async def _prune(self, tier: Tier, is_over: IsOver) -> int:
        ends = _Ends(tier, is_over)
        gone: list[str] = []
        for shelf in PASSING:
            async for key in tier.names(f"{shelf}/"):
                parts = read_result_key(key)
                if parts is None:
                    continue
                is_late = parts.expires is not None and parts.expires * 1_000_000 <= self._now()
                if is_late or (parts.scope != EXPIRING and await ends.has_come(key, parts)):
                    gone.append(key)
        results = [key for key in gone if key not in ends.tags]
        for key in (*results, *ends.tags):
            await tier.delete(key)
        drafts = await tier.sweep(self._now() - DRAFTS_KEPT) if isinstance(tier, FolderTier) else 0
        return len(results) + drafts

    async def try_out(self, name: str, token: str) -> None:
        """Write something, read it and delete it again; what is in the way is an error. `token`: nobody else's."""
        tier, key = await self._tier(name), f"trial/{token}"
        try:
            await tier.put(key, token.encode())
            found = await tier.get(key)
            await tier.delete(key)
        except OSError as error:
            raise _unreachable(name, error) from error
        if found != token.encode():
            raise not_available(f"The store {name!r} gives back something else than it was given")

    def check(self, wanted: Iterable[str]) -> None:
        """Refuse what asks for stores that are not here."""
        for name in wanted:
            if name not in self._stores:
                raise _not_configured(name, self._stores)

    async def close(self) -> None:
        """Close all of them. A store that is away cannot be told, and nobody has to know."""
        for name, tier in self._open.items():
            try:
                async with asyncio.timeout(CLOSING_TIME):
                    await tier.close()
            except Exception as error:  # clients fail in ways of their own, on connections that are lost
                logger.info("The store %r for results was not closed in order: %s", name, error)
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
                    raise _unreachable(name, error) from error
            return self._open[name]


class _Ends:
    """Which runs are over. Each is asked about once."""

    def __init__(self, tier: Tier, is_over: IsOver) -> None:
        self._tier = tier
        self._is_over = is_over
        self._known: dict[tuple[str, bool], bool] = {}
        self._ids: dict[str, str | None] = {}
        self.tags: set[str] = set()  # of runs that are over

    async def has_come(self, key: str, parts: KeyParts) -> bool:
        tag = tag_of(key)
        run_id = parts.run_id if tag is None else await self._id_in(tag)
        if run_id is None:
            return False  # whose it is cannot be told
        asked = (run_id, parts.scope == Scope.WORKFLOW)
        if asked not in self._known:
            self._known[asked] = await self._is_over(*asked)
        if tag is not None and self._known[asked]:
            self.tags.add(tag)
        return self._known[asked]

    async def _id_in(self, tag: str) -> str | None:
        if tag not in self._ids:
            try:
                self._ids[tag] = (await self._tier.get(tag)).decode()
            except FileNotFoundError:
                self._ids[tag] = None
        return self._ids[tag]


def _not_configured(name: str, stores: Mapping[str, Any]) -> RunwrightError:
    return RunwrightError(
        ErrorCode.CAPABILITY_NOT_SUPPORTED,
        f"There is no store {name!r} for results here, only {', '.join(sorted(stores))}. "
        f"Say where it is in runwright.toml, under [results.{name}].",
    )


def _read(ref: Mapping[str, Any]) -> ResultRef:
    try:
        return msgspec.convert(dict(ref), ResultRef)
    except msgspec.ValidationError as error:
        raise not_available(f"This does not name a result ({error})") from None


def _because(ref: ResultRef) -> str:
    return "" if ref.scope == Scope.PERMANENT else f": it was kept for the {ref.scope} only"


def _unpacked(packed: bytes, ref: ResultRef) -> bytes | None:
    """The bytes before compression; None where they are not as large as was said."""
    if ref.meta.bytes > MAX_RESULT_BYTES:
        return None
    unpacking = zlib.decompressobj(wbits=31)
    try:
        body = unpacking.decompress(packed, ref.meta.bytes + 1)
    except zlib.error:
        return None
    return body if len(body) == ref.meta.bytes else None


def _why(error: OSError) -> str:
    if isinstance(error, TimeoutError) and not str(error):
        return "it takes too long"
    return error.strerror or str(error) or type(error).__name__


def _no_answer(store: str, error: OSError) -> str:
    return f"The store {store!r} for results does not answer: {_why(error)}"


def _unreachable(store: str, error: OSError) -> RunwrightError:
    return RunwrightError(ErrorCode.STORE_UNAVAILABLE, f"{_no_answer(store, error)}.")


class FolderTier:
    """Results in files of this machine."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    async def put(self, key: str, body: bytes) -> None:
        await asyncio.to_thread(keep_file, self._folder / key, lambda file: file.write(body))

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
                return  # there is more in it

    async def names(self, prefix: str) -> AsyncIterator[str]:
        for name in await asyncio.to_thread(self._names, prefix):
            yield name

    def _names(self, prefix: str) -> list[str]:
        """Folders may go while they are looked through: others tidy up as well."""
        whole, _, _ = prefix.rpartition("/")
        found: list[str] = []
        for folder, _, files in os.walk(self._folder / whole):
            place = Path(folder).relative_to(self._folder)
            found += [(place / name).as_posix() for name in files if not name.startswith(".")]
        return sorted(name for name in found if name.startswith(prefix))

    async def sweep(self, before: int) -> int:
        """Delete what somebody who died left half written before this time, in microseconds; how much that was."""
        return await asyncio.to_thread(self._sweep, before)

    def _sweep(self, before: int) -> int:
        gone = 0
        for folder, _, files in os.walk(self._folder):
            for name in files:
                draft = Path(folder) / name
                try:
                    if name.startswith(".") and draft.stat().st_mtime * 1e6 < before:
                        draft.unlink()
                        gone += 1
                except FileNotFoundError:
                    continue  # it was finished, or somebody else tidies up as well
        return gone

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

    async def names(self, prefix: str) -> AsyncIterator[str]:
        for name in sorted(self.bodies):
            if name.startswith(prefix):
                yield name

    async def close(self) -> None: ...


def in_memory(now: Callable[[], int], tier: Tier | None = None) -> Tiers:
    """All stores as one, in memory."""
    kept = tier or MemoryTier()

    async def opening() -> Tier:
        return kept

    return Tiers(dict.fromkeys(("local", "s3", "nats_object", "postgres"), opening), "local", now)
