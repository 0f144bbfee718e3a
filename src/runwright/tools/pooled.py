"""What costs something to open is kept open for as long as the event loop that uses it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Hashable
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

_log = logging.getLogger(__name__)

T = TypeVar("T")
_Held = tuple[Any, Callable[[Any], Awaitable[object]]]
_held: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[Hashable, _Held]] = WeakKeyDictionary()


def pooled(key: Hashable, make: Callable[[], T], close: Callable[[T], Awaitable[object]]) -> T:
    """What the running loop has under this key; made now if it has nothing yet."""
    mine = _held.setdefault(asyncio.get_running_loop(), {})
    if key not in mine:
        mine[key] = (make(), close)
    return mine[key][0]


async def close_pooled() -> None:
    """Close everything that the running loop has. Called before the loop ends."""
    for thing, close in _held.pop(asyncio.get_running_loop(), {}).values():
        try:
            await close(thing)
        except Exception as error:
            _log.warning("%s could not be closed: %r.", type(thing).__name__, error)
