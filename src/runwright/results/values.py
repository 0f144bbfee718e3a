"""Where values too large for the log are kept: in files, or with the log where every process can read them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from hashlib import sha256
from typing import Any, Protocol, runtime_checkable

from runwright.contract.events import RunIdentity
from runwright.contract.refs import kept_name
from runwright.core.keeping import Spot

from .store import ResultStore, name_in, not_available
from .tiers import Tiers


class Values(Protocol):
    async def put(self, body: bytes, tenant_id: str) -> None:
        """Keep this for a tenant; once it returns it is durable. The same bytes are kept once."""
        ...

    async def get(self, ref: Mapping[str, Any], tenant_id: str) -> bytes:
        """The bytes of a tenant that a reference names. REFERENCE_NOT_AVAILABLE where they are gone or not what they
        were."""
        ...


@runtime_checkable
class ValueKeeper(Protocol):
    """A log whose store has a place for values."""

    async def keep_value(self, name: str, body: bytes) -> None: ...
    async def value(self, name: str) -> bytes | None: ...


class KeptValues:
    """Everything that is kept outside the log: by its content, or in the store that a task's result went to."""

    def __init__(self, values: Values, tiers: Tiers) -> None:
        self._values = values
        self.tiers = tiers

    async def put(self, run: RunIdentity, where: str | Spot, body: bytes) -> None:
        if isinstance(where, str):
            await self._values.put(body, run.tenant_id)
        else:
            await self.tiers.put(run.run_id, where, body)

    async def get(self, run: RunIdentity, ref: Mapping[str, Any]) -> bytes:
        """What a reference in this run's log names."""
        if ref.get("kind") == "result_ref":
            return await self.tiers.get(run.run_id, ref)
        return await self._values.get(ref, run.tenant_id)


class ValuesInFiles:
    def __init__(self, files: ResultStore) -> None:
        self._files = files

    async def put(self, body: bytes, tenant_id: str) -> None:
        await asyncio.to_thread(self._files.put, body, tenant_id)

    async def get(self, ref: Mapping[str, Any], tenant_id: str) -> bytes:
        return await asyncio.to_thread(self._files.get, ref, tenant_id)


class ValuesWithLog:
    def __init__(self, keeper: ValueKeeper) -> None:
        self._keeper = keeper

    async def put(self, body: bytes, tenant_id: str) -> None:
        await self._keeper.keep_value(kept_name(tenant_id, sha256(body).hexdigest()), body)

    async def get(self, ref: Mapping[str, Any], tenant_id: str) -> bytes:
        name = name_in(ref)
        body = await self._keeper.value(kept_name(tenant_id, name))
        if body is None:
            raise not_available(f"The result {name[:12]}… is not in the store")
        if sha256(body).hexdigest() != name:
            raise not_available(f"The result {name[:12]}… is damaged: its content has changed since it was written")
        return body
