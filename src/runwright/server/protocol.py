"""HTTP on the wire, for callers who do not mean well: whoever takes too long to say what they want, or says too much
before they come to the point, is sent away before any of it is kept."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from runwright.contract.errors import ErrorCode, RunwrightError

from .problems import MEDIA_TYPE, problem_of

LARGEST_HEAD = 32 * 1024


class GuardedProtocol(HttpToolsProtocol):
    header_seconds = 10.0
    _head = 0
    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._have_head()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._timer is not None:
            self._head += len(data)
        super().data_received(data)
        if self._timer is not None and self._head > LARGEST_HEAD:
            self._send_away("431 Request Header Fields Too Large", "The head of the request is too large.")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        if self._timer is None:
            self._expect_head()

    def on_headers_complete(self) -> None:
        self._have_head()
        if sum(len(name) + len(value) for name, value in self.headers) > LARGEST_HEAD or len(self.url) > LARGEST_HEAD:
            self._send_away("431 Request Header Fields Too Large", "The head of the request is too large.")
            return
        super().on_headers_complete()

    def send_400_response(self, msg: str) -> None:
        if not self.transport.is_closing():
            self._send_away("400 Bad Request", msg)

    def _expect_head(self) -> None:
        self._head = 0
        self._timer = self.loop.call_later(self.header_seconds, self._give_up)

    def _have_head(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _give_up(self) -> None:
        self._timer = None
        if not self._head:
            self.transport.close()  # it never said a word
        else:
            self._send_away("408 Request Timeout", "The head of the request did not come.")

    def _send_away(self, line: str, sentence: str) -> None:
        self._have_head()
        status = int(line.split()[0])
        problem: Any = problem_of(RunwrightError(ErrorCode.INVALID_ARGUMENT, sentence), "")
        body = msgspec.json.encode(msgspec.structs.replace(problem, status=status, title=line.partition(" ")[2]))
        headers = (f"content-type: {MEDIA_TYPE}", f"content-length: {len(body)}", "connection: close")
        head = "\r\n".join([f"HTTP/1.1 {line}", *headers, "", ""])
        self.transport.write(head.encode() + body)
        self.transport.close()


def guarded_protocol(header_seconds: float) -> type[asyncio.Protocol]:
    """A protocol that waits so long for a request's head."""
    return type("Guarded", (GuardedProtocol,), {"header_seconds": header_seconds})
