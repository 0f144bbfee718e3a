"""`rw.connect()` and `rw.connect_async()`: the app of `rw.open()`, on a server."""

from __future__ import annotations

import os

from runwright.contract.errors import ErrorCode, RunwrightError
from runwright.control.app import App, AsyncApp, Opens

from .operations import open_remote

DEFAULT_SERVER = "http://127.0.0.1:8484"


def connect(url: str | None = None, token: str | None = None) -> App:
    """A server's runs, for programs that wait. Everything that the app of `rw.open()` has.

    Without a URL: RUNWRIGHT_SERVER, or the server on this machine. Without a token: RUNWRIGHT_TOKEN, or none.
    """
    return App(_remote(url, token))


def connect_async(url: str | None = None, token: str | None = None) -> AsyncApp:
    """A server's runs, for programs on an event loop."""
    return AsyncApp(_remote(url, token))


def _remote(url: str | None, token: str | None) -> Opens:
    server = url or os.environ.get("RUNWRIGHT_SERVER") or DEFAULT_SERVER
    if not server.startswith(("http://", "https://")):
        raise RunwrightError(
            ErrorCode.INVALID_ARGUMENT, f"{server!r} is no server's address. Write it as http://host:8484."
        )
    return lambda: open_remote(server, token or os.environ.get("RUNWRIGHT_TOKEN"))
