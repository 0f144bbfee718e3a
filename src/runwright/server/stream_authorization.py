"""Ends streams whose caller may not read any more: a stream is authorized once, and can last for days."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Protocol

from runwright.auth.roles import Actor
from runwright.auth.tokens import Tokens
from runwright.contract.clock import Clock
from runwright.contract.errors import RunwrightError

logger = logging.getLogger("runwright.server")

CHECK_SECONDS = 0.5


class OpenStream(Protocol):
    @property
    def actor(self) -> Actor: ...
    def revoke(self) -> None:
        """End the stream: its caller may not read any more."""
        ...


class StreamAuthorization:
    """The open streams of a server, all checked with one query."""

    def __init__(self, tokens: Tokens, clock: Clock, is_open_to_local_user: Callable[[], Awaitable[bool]]) -> None:
        self._tokens = tokens
        self._clock = clock
        self._is_open_to_local_user = is_open_to_local_user
        self._streams: set[OpenStream] = set()

    def add(self, stream: OpenStream) -> None:
        self._streams.add(stream)

    def remove(self, stream: OpenStream) -> None:
        self._streams.discard(stream)

    async def run(self) -> None:
        """Check at intervals, until cancelled."""
        while True:
            await self._clock.sleep(CHECK_SECONDS)
            try:
                await self.check()
            except RunwrightError as error:  # the store is unavailable, and with it all events
                logger.warning("Checking the tokens of streams failed, retrying: %s", error)

    async def check(self) -> None:
        if not self._streams:
            return
        token_ids = {stream.actor.token_id for stream in self._streams}
        invalid: set[str | None] = set(
            await self._tokens.find_invalid([each for each in token_ids if each is not None])
        )
        if None in token_ids and not await self._is_open_to_local_user():
            invalid.add(None)
        for stream in [stream for stream in self._streams if stream.actor.token_id in invalid]:
            stream.revoke()
