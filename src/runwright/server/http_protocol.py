"""The HTTP protocol of a server.

Limits connections, and the head of a request in time and size, before any of it reaches the application: slow or
oversized heads must not hold memory or connections.
"""

from __future__ import annotations

import asyncio
from functools import cached_property
from typing import Any, ClassVar, cast

import msgspec
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from runwright.contract.errors import ErrorCode, RunwrightError

from .local_peer import PEER_UID_KEY, find_peer_uid
from .problems import MEDIA_TYPE, problem_from_error

MAX_HEAD_BYTES = 32 * 1024
HEALTH_PATHS = frozenset({b"/healthz", b"/readyz"})
"""Answered also when there are as many connections as there may be: a busy server must not be restarted."""


class GuardedProtocol(HttpToolsProtocol):
    """HTTP protocol that rejects request heads that are too slow or too large, and connections over the limit."""

    header_seconds = 10.0
    max_connections = 2048
    waiting: ClassVar[dict[GuardedProtocol, None]] = {}
    """Connections that expect the head of a request, the oldest first."""
    _head_bytes = 0
    _timer: asyncio.TimerHandle | None = None  # Running while a head is expected.

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._make_room()
        self._start_head_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_head_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._timer is not None:
            self._head_bytes += len(data)
        super().data_received(data)
        if self._timer is not None and self._head_bytes > MAX_HEAD_BYTES:
            self._reject("431 Request Header Fields Too Large", "Request head too large.")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        if self._timer is None:
            self._start_head_timer()

    def on_headers_complete(self) -> None:
        self._stop_head_timer()
        header_bytes = sum(len(name) + len(value) for name, value in self.headers)
        if header_bytes > MAX_HEAD_BYTES or len(self.url) > MAX_HEAD_BYTES:
            self._reject("431 Request Header Fields Too Large", "Request head too large.")
            return
        if len(self.connections) > self.max_connections and self.url.partition(b"?")[0] not in HEALTH_PATHS:
            message = "This server has as many connections as it may have. Retry later."
            self._reject("503 Service Unavailable", message, ErrorCode.SERVER_BUSY)
            return
        cast("dict[str, Any]", self.scope)[PEER_UID_KEY] = self._peer_uid
        super().on_headers_complete()

    @cached_property
    def _uid(self) -> int | None:
        return None if self.client is None or self.server is None else find_peer_uid(self.client, self.server)  # pyright: ignore[reportArgumentType]  # TCP

    def _peer_uid(self) -> int | None:
        """The user at the other end of the connection; None if it is not known."""
        return self._uid

    def _make_room(self) -> None:
        """Over the limit, close connections that have sent no complete head, the oldest first."""
        while len(self.connections) > self.max_connections and self.waiting:
            next(iter(self.waiting)).drop()

    def drop(self) -> None:
        self._stop_head_timer()
        self.transport.close()
        self.connections.discard(self)

    def send_400_response(self, msg: str) -> None:
        if not self.transport.is_closing():
            self._reject("400 Bad Request", msg)

    def _start_head_timer(self) -> None:
        self._head_bytes = 0
        self.waiting[self] = None
        self._timer = self.loop.call_later(self.header_seconds, self._on_head_timeout)

    def _stop_head_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.waiting.pop(self, None)

    def _on_head_timeout(self) -> None:
        self._stop_head_timer()
        if not self._head_bytes:
            self.transport.close()  # An idle connection: there is no request to respond to.
        else:
            self._reject("408 Request Timeout", "Timed out reading the request head.")

    def _reject(self, status_line: str, message: str, code: ErrorCode = ErrorCode.INVALID_ARGUMENT) -> None:
        self._stop_head_timer()
        status = int(status_line.split()[0])
        problem: Any = problem_from_error(RunwrightError(code, message), "")
        body = msgspec.json.encode(msgspec.structs.replace(problem, status=status, title=status_line.partition(" ")[2]))
        headers = [f"content-type: {MEDIA_TYPE}", f"content-length: {len(body)}", "connection: close"]
        if status == 503:
            headers.append("retry-after: 1")
        head = "\r\n".join([f"HTTP/1.1 {status_line}", *headers, "", ""])
        self.transport.write(head.encode() + body)
        self.transport.close()


def protocol_class(header_seconds: float, max_connections: int) -> type[asyncio.Protocol]:
    """Return the protocol class of one server: uvicorn creates the instances itself."""
    members: dict[str, Any] = {"header_seconds": header_seconds, "max_connections": max_connections, "waiting": {}}
    return type("Guarded", (GuardedProtocol,), members)
