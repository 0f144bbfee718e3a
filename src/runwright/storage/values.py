"""Storage of values too large for the log: in files, or in the log's own store, where every process can read them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from hashlib import sha256
from typing import Any, Protocol, runtime_checkable

from runwright.contract.events import RunIdentity
from runwright.contract.refs import tenant_scoped_name
from runwright.core.scheduling.result_refs import StorageKey

from .file_store import FileStore, ref_digest, reference_not_available
from .result_stores import Tiers


class ValueBackend(Protocol):
    async def put(self, body: bytes, tenant_id: str) -> None:
        """Store bytes for a tenant. Durable on return; equal bytes are stored once."""
        ...

    async def get(self, ref: Mapping[str, Any], tenant_id: str) -> bytes:
        """Return the bytes of a tenant's reference. Raises REFERENCE_NOT_AVAILABLE if they are missing or damaged."""
        ...


@runtime_checkable
class SupportsValues(Protocol):
    """A store of the log that can hold values."""

    async def store_value(self, name: str, body: bytes) -> None: ...
    async def load_value(self, name: str) -> bytes | None: ...


class ValueStore:
    """Access to all values outside the log: by content, or in the tier that holds a task's result."""

    def __init__(self, values: ValueBackend, tiers: Tiers) -> None:
        self._values = values
        self.tiers = tiers

    async def put(self, run: RunIdentity, key: str | StorageKey, body: bytes) -> None:
        """Store a value: with a StorageKey as a result in its tier, else by content."""
        if isinstance(key, str):
            await self._values.put(body, run.tenant_id)
        else:
            await self.tiers.put(run.run_id, key, body)

    async def get(self, run: RunIdentity, ref: Mapping[str, Any]) -> bytes:
        """Load the value of a reference in this run's log."""
        if ref.get("kind") == "result_ref":
            return await self.tiers.get(run.run_id, ref)
        return await self._values.get(ref, run.tenant_id)


class FileValueBackend:
    def __init__(self, files: FileStore) -> None:
        self._files = files

    async def put(self, body: bytes, tenant_id: str) -> None:
        await asyncio.to_thread(self._files.put, body, tenant_id)

    async def get(self, ref: Mapping[str, Any], tenant_id: str) -> bytes:
        return await asyncio.to_thread(self._files.get, ref, tenant_id)


class LogValueBackend:
    def __init__(self, store: SupportsValues) -> None:
        self._store = store

    async def put(self, body: bytes, tenant_id: str) -> None:
        await self._store.store_value(tenant_scoped_name(tenant_id, sha256(body).hexdigest()), body)

    async def get(self, ref: Mapping[str, Any], tenant_id: str) -> bytes:
        digest = ref_digest(ref)
        body = await self._store.load_value(tenant_scoped_name(tenant_id, digest))
        if body is None:
            raise reference_not_available(f"Result {digest[:12]}… not found in the store")
        if sha256(body).hexdigest() != digest:
            raise reference_not_available(f"Result {digest[:12]}… is damaged: its content does not match its hash")
        return body
