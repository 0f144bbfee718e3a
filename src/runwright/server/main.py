"""`runwright serve`: start and stop a server process.

The HTTP protocol limits the head of a request in time and size, before any of it reaches the application: slow or
oversized heads must not hold memory or connections.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import sys
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Sequence
from contextlib import asynccontextmanager
from importlib.util import find_spec
from typing import Any, TypeVar

import msgspec
import uvicorn
from litestar.types import ControllerRouterHandler
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from runwright.contract.errors import ErrorCode, RunwrightError

from .app import build_app
from .problems import MEDIA_TYPE, problem_from_error
from .service import Service, open_service
from .settings import ServerSettings

T = TypeVar("T")

logger = logging.getLogger("runwright.server")

SWITCH_INTERVAL_SECONDS = 0.001
SHUTDOWN_SECONDS = 5
"""Time that running requests have to finish once the server stops."""
MAX_HEAD_BYTES = 32 * 1024


class GuardedProtocol(HttpToolsProtocol):
    """HTTP protocol that rejects request heads that are too slow or too large."""

    header_seconds = 10.0
    _head_bytes = 0
    _timer: asyncio.TimerHandle | None = None  # Running while a head is expected.

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
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
        super().on_headers_complete()

    def send_400_response(self, msg: str) -> None:
        if not self.transport.is_closing():
            self._reject("400 Bad Request", msg)

    def _start_head_timer(self) -> None:
        self._head_bytes = 0
        self._timer = self.loop.call_later(self.header_seconds, self._on_head_timeout)

    def _stop_head_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _on_head_timeout(self) -> None:
        self._timer = None
        if not self._head_bytes:
            self.transport.close()  # An idle connection: there is no request to respond to.
        else:
            self._reject("408 Request Timeout", "Timed out reading the request head.")

    def _reject(self, status_line: str, message: str) -> None:
        self._stop_head_timer()
        status = int(status_line.split()[0])
        problem: Any = problem_from_error(RunwrightError(ErrorCode.INVALID_ARGUMENT, message), "")
        body = msgspec.json.encode(msgspec.structs.replace(problem, status=status, title=status_line.partition(" ")[2]))
        headers = (f"content-type: {MEDIA_TYPE}", f"content-length: {len(body)}", "connection: close")
        head = "\r\n".join([f"HTTP/1.1 {status_line}", *headers, "", ""])
        self.transport.write(head.encode() + body)
        self.transport.close()


def _protocol_class(header_seconds: float) -> type[asyncio.Protocol]:
    """Return the protocol class with a head timeout: uvicorn creates the instances itself."""
    return type("Guarded", (GuardedProtocol,), {"header_seconds": header_seconds})


class _Server(uvicorn.Server):
    """uvicorn without its signal handlers, and with an event for the time it accepts connections."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.is_listening = asyncio.Event()

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.is_listening.set()


@asynccontextmanager
async def open_server(
    store: str | None, settings: ServerSettings, *more: ControllerRouterHandler
) -> AsyncGenerator[tuple[Service, str]]:
    """Run a server on a store until the context exits. Yields the service and its URL. `more`: additional routes."""
    listener = _listen(settings)
    try:
        async with open_service(store, settings) as service:
            server = _Server(_config(service, settings, more))
            task = asyncio.create_task(server.serve(sockets=[listener]))
            await server.is_listening.wait()
            try:
                yield service, _url(listener)
            finally:
                service.is_closing = True
                service.broadcaster.close()
                server.should_exit = True
                await task
    finally:
        listener.close()


def run_server(main: Coroutine[Any, Any, T]) -> T:
    """Run a server's main coroutine on uvloop if it is installed, otherwise on asyncio.

    The event loop and the thread that writes to the store are both busy. With Python's default switch interval of
    5 ms they would wait for each other at every event.
    """
    sys.setswitchinterval(SWITCH_INTERVAL_SECONDS)
    if find_spec("uvloop") is None:
        return asyncio.run(main)
    import uvloop

    return uvloop.run(main)


async def serve(store: str | None, settings: ServerSettings, ready: Callable[[Service, str], None]) -> None:
    """Serve until SIGINT or SIGTERM, then release the runs for other servers.

    `ready` is called with the service and its URL once connections are accepted.
    """
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    async with open_server(store, settings) as (service, url):
        ready(service, url)
        await stop.wait()
        logger.info("Stopping: draining running steps and releasing runs")
        service.is_closing = True
        await service.operations.engine.drain(settings.drain)


def _config(service: Service, settings: ServerSettings, more: Sequence[ControllerRouterHandler]) -> uvicorn.Config:
    return uvicorn.Config(
        build_app(service, *more),
        http=_protocol_class(settings.header_seconds),
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        limit_concurrency=settings.connections,
        timeout_graceful_shutdown=SHUTDOWN_SECONDS,
    )


def _listen(settings: ServerSettings) -> socket.socket:
    host = settings.host.strip("[]")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio sets TCP_NODELAY only on sockets with an explicit IPPROTO_TCP; without it small responses are delayed.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, settings.port))
    except OSError as error:
        listener.close()
        raise RunwrightError(
            ErrorCode.INVALID_ARGUMENT, f"Cannot bind {host}:{settings.port}: {error.strerror}. Use --port."
        ) from None
    listener.setblocking(False)
    return listener


def _url(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
