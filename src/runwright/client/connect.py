"""`rw.connect()` and `rw.connect_async()`: the app of `rw.open()`, on a server."""

from __future__ import annotations

import os

from runwright.control.app import App, AsyncApp, OpenOperations
from runwright.flows.user_modules import refuse_during_import

from .remote_operations import open_remote
from .transport import check_server_url

DEFAULT_SERVER = "http://127.0.0.1:8484"


def connect(url: str | None = None, token: str | None = None) -> App:
    """Connect to a server, for synchronous programs. The app has the same methods as that of `rw.open()`.

    Defaults: RUNWRIGHT_SERVER or the server on this machine; RUNWRIGHT_TOKEN or no token.
    """
    refuse_during_import("rw.connect()")
    return App(_remote(url, token))


def connect_async(url: str | None = None, token: str | None = None) -> AsyncApp:
    """Connect to a server, for programs on an event loop."""
    refuse_during_import("rw.connect_async()")
    return AsyncApp(_remote(url, token))


def _remote(url: str | None, token: str | None) -> OpenOperations:
    server = check_server_url(url or os.environ.get("RUNWRIGHT_SERVER") or DEFAULT_SERVER)
    return lambda: open_remote(server, token or os.environ.get("RUNWRIGHT_TOKEN"))
