"""Renews leases from a thread with a connection and an event loop of its own."""

from __future__ import annotations

import asyncio

import msgspec

from runwright.log.lease_liveness import lease_lost
from runwright.log.model import Lease

from .connection import Connection, coded_errors, connect


class PostgresLeaseRenewer:
    """All methods are called by one thread."""

    def __init__(self, url: str, statement: str) -> None:
        self._url = url
        self._statement = statement
        self._runner: asyncio.Runner | None = None
        self._connection: Connection = None

    def renew(self, lease: Lease) -> Lease:
        if self._runner is None:
            self._runner = asyncio.Runner()
        return self._runner.run(self._renew(lease))

    def close(self) -> None:
        if self._runner is not None:
            self._disconnect()
            self._runner.close()

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.terminate()
            self._connection = None

    async def _renew(self, lease: Lease) -> Lease:
        with coded_errors(self._url):
            try:
                async with asyncio.timeout(lease.ttl):
                    if self._connection is None:
                        self._connection = await connect(self._url, lease.ttl)
                    arguments = (lease.owner, lease.epoch, int(lease.ttl * 1e6))
                    rows = await self._connection.fetch(self._statement, *arguments)
            except Exception:
                self._disconnect()
                raise
        if not rows:
            raise lease_lost()
        return msgspec.structs.replace(lease, expires_at=rows[0]["expires_at"])
