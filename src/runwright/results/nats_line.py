"""A line to a NATS server."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from nats.aio.client import Client

PATIENCE = 5.0  # seconds until somebody answers


async def connect(url: str, **options: Any) -> Client:
    """The client goes on trying by itself; whoever asks is told after a while that nobody answers."""
    import nats

    last: list[Exception] = []

    async def told(error: Exception) -> None:
        """Whoever asks is told; the client would print it."""
        last[:] = [error]

    try:
        async with asyncio.timeout(PATIENCE):
            return await cast("Any", nats).connect(url, error_cb=told, **options)
    except TimeoutError:
        raise TimeoutError(str(last[0]) if last else "nobody answers") from None
