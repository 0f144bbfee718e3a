"""Responses that are sent in parts: event streams and files.

A caller that does not read at all is disconnected after `stalled_reader_seconds`; one whose token is revoked or expires
gets no further part.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import suppress
from typing import IO, Any, TypeVar

from litestar import Response

from .event_broadcaster import Subscriber
from .request_context import RequestContext

T = TypeVar("T")

BLOCK_BYTES = 256 * 1024
MAX_WHOLE_BYTES = 4 * 1024 * 1024
"""Larger documents are sent in parts, and not compressed."""


class CallerGone(Exception):
    """The caller has disconnected, does not read, or may not read any more."""


class StreamWriter:
    """Sends one response in parts."""

    def __init__(self, context: RequestContext, receive: Any, send: Any) -> None:
        self._receive = receive
        self._send = send
        self._stalled_reader_seconds = context.service.settings.stalled_reader_seconds
        self.actor = context.actor
        self._access = context.service.stream_authorization
        self._is_revoked = False
        self._wake: Callable[[], None] = lambda: None
        self._disconnected = asyncio.create_task(self._wait_for_disconnect())
        self._access.add(self)

    async def begin(self, headers: list[tuple[bytes, bytes]]) -> None:
        await self._send({"type": "http.response.start", "status": 200, "headers": headers})

    async def write(self, body: bytes) -> None:
        """Send a part of the body. Raises CallerGone if the caller has disconnected or does not read in time."""
        self.check_caller()
        try:
            async with asyncio.timeout(self._stalled_reader_seconds):
                await self._send({"type": "http.response.body", "body": body, "more_body": True})
        except TimeoutError:
            raise CallerGone from None

    async def unless_gone(self, work: Coroutine[Any, Any, T]) -> T:
        """Await something before the response begins. Raises CallerGone, and cancels it, if the caller disconnects."""
        task = asyncio.ensure_future(work)
        try:
            await asyncio.wait((task, self._disconnected), return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                raise CallerGone
            return task.result()
        finally:
            task.cancel()

    def check_caller(self) -> None:
        """Raise CallerGone if the caller has disconnected, or may not read any more."""
        if self._is_revoked or self._disconnected.done():
            raise CallerGone

    def revoke(self) -> None:
        self._is_revoked = True
        self._wake()

    async def end(self) -> None:
        self._disconnected.cancel()
        await self._send({"type": "http.response.body", "body": b""})

    async def abort(self) -> None:
        """End the response of a caller that may not read any more; one that has disconnected gets nothing."""
        if self._is_revoked and not self._disconnected.done():
            with suppress(TimeoutError):
                async with asyncio.timeout(self._stalled_reader_seconds):
                    await self.end()

    def wake_at_end(self, subscriber: Subscriber) -> None:
        """Wake the subscriber when the caller disconnects, or may not read any more."""
        self._wake = subscriber.wake
        self._disconnected.add_done_callback(lambda _: subscriber.wake())

    def close(self) -> None:
        self._access.remove(self)
        self._disconnected.cancel()

    async def _wait_for_disconnect(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass


class StreamResponse(Response[Any]):
    """A response that is sent by a function with ASGI's `receive` and `send`, outside of the framework."""

    def __init__(self, respond: Callable[[Any, Any], Awaitable[None]]) -> None:
        super().__init__(None)
        self._respond = respond

    def to_asgi_response(self, *_: Any, **__: Any) -> Any:
        async def respond(_: Any, receive: Any, send: Any) -> None:
            await self._respond(receive, send)

        return respond


def file_response(
    context: RequestContext, file: IO[bytes], media_type: str, headers: Mapping[str, str]
) -> Response[Any]:
    """Send a whole file, and close it."""
    encoded = _encode_headers(media_type, os.fstat(file.fileno()).st_size, headers)

    async def respond(receive: Any, send: Any) -> None:
        writer = StreamWriter(context, receive, send)
        try:
            await writer.begin(encoded)
            while block := await asyncio.to_thread(file.read, BLOCK_BYTES):
                await writer.write(block)
            await writer.end()
        except CallerGone:
            pass  # an incomplete body: the connection is closed
        finally:
            writer.close()
            await asyncio.to_thread(file.close)

    return StreamResponse(respond)


def body_response(
    context: RequestContext, load: Callable[[], Coroutine[Any, Any, bytes]], headers: Mapping[str, str]
) -> Response[Any]:
    """Send a JSON document that may be large: it is loaded for a few requests of a caller at a time, and in parts."""

    async def respond(receive: Any, send: Any) -> None:
        writer = StreamWriter(context, receive, send)
        slot = context.service.large_response_slots.slot_of(context.caller)
        try:
            await writer.unless_gone(slot.acquire())
            try:
                body = await writer.unless_gone(load())
                await writer.begin(_encode_headers("application/json", len(body), headers))
                if len(body) <= MAX_WHOLE_BYTES:
                    await send({"type": "http.response.body", "body": body})
                    return
                for start in range(0, len(body), BLOCK_BYTES):
                    await writer.write(body[start : start + BLOCK_BYTES])
                await writer.end()
            finally:
                slot.release()
        except CallerGone:
            pass
        finally:
            writer.close()

    return StreamResponse(respond)


def _encode_headers(media_type: str, size: int, headers: Mapping[str, str]) -> list[tuple[bytes, bytes]]:
    names = {"content-type": media_type, "content-length": str(size), **headers}
    return [(name.encode(), value.encode()) for name, value in names.items()]
