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

    async with asyncio.timeout(PATIENCE):
        return await cast("Any", nats).connect(url, error_cb=_told, **options)


async def _told(_error: Exception) -> None:
    """Whoever asks next is told; the client would print it."""
