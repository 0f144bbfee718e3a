"""Connections to a NATS server."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from nats.aio.client import Client

CONNECT_TIMEOUT = 5.0  # seconds


async def connect(url: str, **options: Any) -> Client:
    """Connect, or raise TimeoutError with the last error. The client itself would retry without end."""
    import nats

    last: list[Exception] = []

    async def on_error(error: Exception) -> None:
        """Remember the error. Without a callback the client prints it."""
        last[:] = [error]

    try:
        async with asyncio.timeout(CONNECT_TIMEOUT):
            return await cast("Any", nats).connect(url, error_cb=on_error, **options)
    except TimeoutError:
        raise TimeoutError(str(last[0]) if last else f"connecting timed out after {CONNECT_TIMEOUT:g} s") from None
