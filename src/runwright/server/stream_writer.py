"""Responses that are sent in parts: event streams and files.

A caller that does not read at all is disconnected after `stalled_reader_seconds`; one whose token is revoked or expires
gets no further part.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import IO, Any

from litestar import Response

from .event_broadcaster import Subscriber
from .request_context import RequestContext

FILE_BLOCK = 256 * 1024


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
    size = os.fstat(file.fileno()).st_size
    names = {"content-type": media_type, "content-length": str(size), **headers}
    encoded = [(name.encode(), value.encode()) for name, value in names.items()]

    async def respond(receive: Any, send: Any) -> None:
        writer = StreamWriter(context, receive, send)
        try:
            await writer.begin(encoded)
            while block := await asyncio.to_thread(file.read, FILE_BLOCK):
                await writer.write(block)
            await writer.end()
        except CallerGone:
            pass  # an incomplete body: the connection is closed
        finally:
            writer.close()
            await asyncio.to_thread(file.close)

    return StreamResponse(respond)
