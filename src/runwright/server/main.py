"""`runwright serve`: start and stop a server process."""

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

import uvicorn
from litestar.types import ControllerRouterHandler

from runwright.config.local_token import create_local_token, delete_local_token
from runwright.contract.errors import ErrorCode, RunwrightError

from .app import build_app
from .http_protocol import protocol_class
from .local_peer import can_find_uid
from .service import Service, open_service
from .settings import ServerSettings

T = TypeVar("T")

logger = logging.getLogger("runwright.server")

SWITCH_INTERVAL_SECONDS = 0.001
SHUTDOWN_SECONDS = 5
"""Time that running requests have to finish once the server stops."""


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
            port: int = listener.getsockname()[1]
            if settings.is_local and not can_find_uid():
                service.local_token = create_local_token(port)
            try:
                yield service, _url(listener)
            finally:
                if service.local_token is not None:
                    delete_local_token(port)
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
        http=protocol_class(settings.header_seconds, settings.connections),
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
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
