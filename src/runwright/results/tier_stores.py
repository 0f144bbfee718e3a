"""The stores for large results beyond this machine: a bucket, an object store of NATS, a table of Postgres."""

from __future__ import annotations

import asyncio
from base64 import urlsafe_b64encode
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Generator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from datetime import timedelta
from functools import partial
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from runwright.contract.errors import RunwrightError

from .bucket import bucket_troubles, open_bucket
from .nats_line import connect

if TYPE_CHECKING:
    from nats.aio.client import Client
    from nats.js.object_store import ObjectStore

PATIENCE = 30.0  # seconds that a store of NATS may take for one thing
AT_ONCE = 32  # calls of a bucket
RETRIES: Any = {"max_retries": 2, "retry_timeout": timedelta(seconds=10)}
"""Whoever waits for a bucket asks again by itself; what hangs in it holds up the end of the process."""

T = TypeVar("T")


class BucketTier:
    """`s3://bucket/prefix`, with credentials from where S3 clients look for them.

    The client is called in threads. Its coroutines let go of Python objects a little after they are done, from threads
    of their own: an interpreter that ends in that moment is aborted, and a run that ended well exits as if it had not.
    """

    def __init__(self, url: str, options: Mapping[str, Any]) -> None:
        self._store = open_bucket(url, {**options, "retry_config": RETRIES})
        self._threads = ThreadPoolExecutor(AT_ONCE, "results in a bucket")

    async def put(self, key: str, body: bytes) -> None:
        await self._do(self._store.put, key, body)

    async def get(self, key: str) -> bytes:
        return await self._do(lambda: bytes(self._store.get(key).bytes()))

    async def delete(self, key: str) -> None:
        await self._do(self._store.delete, key)

    async def names(self, prefix: str) -> AsyncIterator[str]:
        # A bucket lists by whole parts of names, which is what the slash at the end of a prefix stands for.
        pages: Any = iter(self._store.list(prefix or None))  # pyright: ignore[reportUnknownMemberType, reportUnknownArgumentType]
        page: Any
        while (page := await self._do(next, pages, None)) is not None:
            for found in page:
                yield found["path"]

    async def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _do(self, work: Callable[..., T], *arguments: Any) -> T:
        with bucket_troubles():
            return await asyncio.get_running_loop().run_in_executor(self._threads, partial(work, *arguments))


class NatsTier:
    """A bucket in the object store of NATS. What JetStream has acknowledged counts as kept."""

    def __init__(self, client: Client, store: ObjectStore) -> None:
        self._client = client
        self._store = store

    @classmethod
    async def connect(cls, url: str, bucket: str, options: Mapping[str, Any]) -> NatsTier:
        from nats.js.errors import BucketNotFoundError

        async with _nats_troubles():
            client = await connect(url, max_reconnect_attempts=-1, **options)
            try:
                jetstream: Any = client.jetstream()  # pyright: ignore[reportUnknownMemberType]
                try:
                    store = await jetstream.object_store(bucket)
                except BucketNotFoundError:
                    store = await jetstream.create_object_store(bucket)
            except BaseException:
                await client.close()
                raise
            return cls(client, store)

    async def put(self, key: str, body: bytes) -> None:
        """What is there is not put again: that would take it away from whoever is reading it."""
        async with _nats_troubles():
            if not await self._has(key, body):
                await self._store.put(key, body)

    async def _has(self, key: str, body: bytes) -> bool:
        from nats.js.errors import NotFoundError

        try:
            info = await self._store.get_info(key)
        except NotFoundError:
            return False
        digest = urlsafe_b64encode(sha256(body).digest()).decode()
        return not info.deleted and info.size == len(body) and (info.digest or "").endswith(digest)

    async def get(self, key: str) -> bytes:
        async with _nats_troubles():
            return (await self._store.get(key)).data or b""

    async def delete(self, key: str) -> None:
        from nats.js.errors import NotFoundError

        async with _nats_troubles():
            try:
                await self._store.delete(key)
            except NotFoundError:
                return

    async def names(self, prefix: str) -> AsyncIterator[str]:
        """Its objects cannot be listed by the beginning of their names: all are, and those are picked out."""
        for name in await self._all():
            if name.startswith(prefix):
                yield name

    async def _all(self) -> list[str]:
        from nats.js.errors import NotFoundError

        async with _nats_troubles():
            try:
                found = await self._store.list(ignore_deletes=True)
            except NotFoundError:
                return []
            return sorted(info.name for info in found if not info.deleted)

    async def close(self) -> None:
        await self._client.close()


@asynccontextmanager
async def _nats_troubles() -> AsyncGenerator[None]:
    """What the client raises, as OSErrors; and nothing waits for ever."""
    from nats.errors import Error
    from nats.js.errors import NotFoundError

    try:
        async with asyncio.timeout(PATIENCE):
            yield
    except NotFoundError:
        raise FileNotFoundError from None
    except (Error, TimeoutError) as error:
        raise OSError(str(error).strip() or type(error).__name__) from error


class Table(Protocol):
    """The desk of a log on Postgres."""

    async def read(self, name: str, *values: Any) -> list[Any]: ...
    async def write(self, name: str, *values: Any) -> list[Any]: ...


class PostgresTier:
    def __init__(self, table: Table, close: Callable[[], Awaitable[None]] | None = None) -> None:
        self._table = table
        self._close = close

    async def put(self, key: str, body: bytes) -> None:
        with _postgres_troubles():
            await self._table.write("put_result", key, body)

    async def get(self, key: str) -> bytes:
        with _postgres_troubles():
            rows = await self._table.read("get_result", key)
        if not rows:
            raise FileNotFoundError
        return bytes(rows[0][0])

    async def delete(self, key: str) -> None:
        with _postgres_troubles():
            await self._table.write("delete_result", key)

    async def names(self, prefix: str) -> AsyncIterator[str]:
        last, beyond = prefix, f"{prefix}\U0010ffff"
        while True:
            with _postgres_troubles():
                rows = await self._table.read("results_after", last, beyond)
            if not rows:
                return
            for row in rows:
                yield row[0]
            last = rows[-1][0]

    async def close(self) -> None:
        if self._close is not None:
            await self._close()


@contextmanager
def _postgres_troubles() -> Generator[None]:
    try:
        yield
    except RunwrightError as error:
        raise OSError(error.detail) from error
