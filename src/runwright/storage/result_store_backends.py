"""Result tiers outside this machine: an S3 bucket, a NATS object store, a Postgres table."""

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

from .nats_connection import connect
from .s3 import open_s3_store, translate_s3_errors

if TYPE_CHECKING:
    from nats.aio.client import Client
    from nats.js.object_store import ObjectStore

NATS_TIMEOUT = 30.0  # seconds per operation
MAX_S3_CALLS = 32  # at the same time
RETRIES: Any = {"max_retries": 2, "retry_timeout": timedelta(seconds=10)}
"""Few and short, because the engine retries by itself and a call that hangs delays the end of the process."""

T = TypeVar("T")


class S3Tier:
    """`s3://bucket/prefix`, with credentials from the usual variables of S3 clients.

    The blocking client is called in threads. The async client releases Python objects shortly after its coroutines are
    done, from threads of its own: an interpreter that exits at that moment aborts, and a successful run exits with an
    error.
    """

    def __init__(self, url: str, options: Mapping[str, Any]) -> None:
        self._store = open_s3_store(url, {**options, "retry_config": RETRIES})
        self._threads = ThreadPoolExecutor(MAX_S3_CALLS, "results in a bucket")

    async def put(self, key: str, body: bytes) -> None:
        await self._call(self._store.put, key, body)

    async def get(self, key: str) -> bytes:
        return await self._call(lambda: bytes(self._store.get(key).bytes()))

    async def delete(self, key: str) -> None:
        await self._call(self._store.delete, key)

    async def list_keys(self, prefix: str) -> AsyncIterator[str]:
        # S3 lists by whole path segments; prefixes end in a slash, so this matches.
        pages: Any = iter(self._store.list(prefix or None))  # pyright: ignore[reportUnknownMemberType, reportUnknownArgumentType]
        page: Any
        while (page := await self._call(next, pages, None)) is not None:
            for found in page:
                yield found["path"]

    async def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _call(self, function: Callable[..., T], *args: Any) -> T:
        with translate_s3_errors():
            return await asyncio.get_running_loop().run_in_executor(self._threads, partial(function, *args))


class NatsTier:
    """A bucket in the NATS object store. An object is durable once JetStream has acknowledged it."""

    def __init__(self, client: Client, store: ObjectStore) -> None:
        self._client = client
        self._store = store

    @classmethod
    async def connect(cls, url: str, bucket: str, options: Mapping[str, Any]) -> NatsTier:
        from nats.js.errors import BucketNotFoundError

        async with _translate_nats_errors():
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
        """Store an object unless it exists: replacing it would break concurrent readers."""
        async with _translate_nats_errors():
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
        async with _translate_nats_errors():
            return (await self._store.get(key)).data or b""

    async def delete(self, key: str) -> None:
        from nats.js.errors import NotFoundError

        async with _translate_nats_errors():
            try:
                await self._store.delete(key)
            except NotFoundError:
                return

    async def list_keys(self, prefix: str) -> AsyncIterator[str]:
        """List all keys and filter, because NATS cannot list objects by prefix."""
        for name in await self._all():
            if name.startswith(prefix):
                yield name

    async def _all(self) -> list[str]:
        from nats.js.errors import NotFoundError

        async with _translate_nats_errors():
            try:
                found = await self._store.list(ignore_deletes=True)
            except NotFoundError:
                return []
            return sorted(info.name for info in found if not info.deleted)

    async def close(self) -> None:
        await self._client.close()


@asynccontextmanager
async def _translate_nats_errors() -> AsyncGenerator[None]:
    """Raise errors of the NATS client as OSError, and time out after NATS_TIMEOUT."""
    from nats.errors import Error
    from nats.js.errors import NotFoundError

    try:
        async with asyncio.timeout(NATS_TIMEOUT):
            yield
    except NotFoundError:
        raise FileNotFoundError from None
    except (Error, TimeoutError) as error:
        raise OSError(str(error).strip() or type(error).__name__) from error


class ResultTable(Protocol):
    """Access to table `kept_result` of a log on Postgres, by the names of its statements."""

    async def read(self, name: str, *values: Any) -> list[Any]: ...
    async def write(self, name: str, *values: Any) -> list[Any]: ...


class PostgresTier:
    def __init__(self, table: ResultTable, close: Callable[[], Awaitable[None]] | None = None) -> None:
        self._table = table
        self._close = close

    async def put(self, key: str, body: bytes) -> None:
        with _translate_postgres_errors():
            await self._table.write("insert_result", key, body)

    async def get(self, key: str) -> bytes:
        with _translate_postgres_errors():
            rows = await self._table.read("load_result", key)
        if not rows:
            raise FileNotFoundError
        return bytes(rows[0][0])

    async def delete(self, key: str) -> None:
        with _translate_postgres_errors():
            await self._table.write("delete_result", key)

    async def list_keys(self, prefix: str) -> AsyncIterator[str]:
        last, end = prefix, f"{prefix}\U0010ffff"
        while True:
            with _translate_postgres_errors():
                rows = await self._table.read("results_after", last, end)
            if not rows:
                return
            for row in rows:
                yield row[0]
            last = rows[-1][0]

    async def close(self) -> None:
        if self._close is not None:
            await self._close()


@contextmanager
def _translate_postgres_errors() -> Generator[None]:
    try:
        yield
    except RunwrightError as error:
        raise OSError(error.detail) from error
