"""Send signals from the command line: through the server of the session, or on its store."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from runwright.control.protocols import SignalSender

from .session import Session


@asynccontextmanager
async def open_signal_sender(session: Session) -> AsyncGenerator[SignalSender]:
    """No engine is built on a store while a live process drives the run."""
    if session.server is not None:
        async with session.remote() as remote:
            yield remote
        return
    session.open()  # Raises if the store does not exist; nothing is opened yet.
    from runwright.control.local_signals import open_signals

    async with open_signals(session.store) as signals:
        yield signals
