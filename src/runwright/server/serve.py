"""`runwright serve`: a server process, from its first breath to its last."""

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

from runwright.contract.errors import ErrorCode, RunwrightError

from .app import build_app
from .protocol import guarded_protocol
from .service import Service, open_service
from .settings import ServerSettings

T = TypeVar("T")

logger = logging.getLogger("runwright.server")

SWITCH_SECONDS = 0.001
ANSWER_SECONDS = 5
"""How long requests under way may take to be answered once the server is asked to stop."""


class _Server(uvicorn.Server):
    """Leaves the signals to us, and says when it hears callers."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.hears = asyncio.Event()

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.hears.set()


@asynccontextmanager
async def serving(
    store: str | None, settings: ServerSettings, *more: ControllerRouterHandler
) -> AsyncGenerator[tuple[Service, str]]:
    """A server on a store: what it is, and its address. Callers are heard until this is left."""
    socket_ = _listen(settings)
    try:
        async with open_service(store, settings) as service:
            server = _Server(_config(service, settings, more))
            task = asyncio.create_task(server.serve(sockets=[socket_]))
            await server.hears.wait()
            try:
                yield service, _address(socket_)
            finally:
                service.is_closing = True
                service.hub.close()
                server.should_exit = True
                await task
    finally:
        socket_.close()


def run_server(main: Coroutine[Any, Any, T]) -> T:
    """Run a server's main coroutine, on the fastest loop there is.

    The loop is busy, and so is the thread that writes: they take turns more often than Python has it, or each event
    would wait for milliseconds.
    """
    sys.setswitchinterval(SWITCH_SECONDS)
    if find_spec("uvloop") is None:
        return asyncio.run(main)
    import uvloop

    return uvloop.run(main)


async def serve(store: str | None, settings: ServerSettings, ready: Callable[[Service, str], None]) -> None:
    """Serve until asked to stop, then hand the runs over. `ready` is called once callers are heard."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    async with serving(store, settings) as (service, address):
        ready(service, address)
        await stop.wait()
        logger.info("Stopping: runs are handed over")
        service.is_closing = True
        await service.operations.engine.drain(settings.drain)


def _config(service: Service, settings: ServerSettings, more: Sequence[ControllerRouterHandler]) -> uvicorn.Config:
    return uvicorn.Config(
        build_app(service, *more),
        http=guarded_protocol(settings.header_seconds),
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        limit_concurrency=settings.connections,
        timeout_graceful_shutdown=ANSWER_SECONDS,
    )


def _listen(settings: ServerSettings) -> socket.socket:
    host = settings.host.strip("[]")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)  # else small answers are held back
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, settings.port))
    except OSError as error:
        listening.close()
        raise RunwrightError(
            ErrorCode.INVALID_ARGUMENT, f"Port {settings.port} on {host} cannot be had: {error.strerror}. Use --port."
        ) from None
    listening.setblocking(False)
    return listening


def _address(listening: socket.socket) -> str:
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
