"""Cache of objects that are expensive to open, such as connection pools, per event loop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Hashable
from typing import Any, NamedTuple, TypeVar
from weakref import WeakKeyDictionary

_log = logging.getLogger(__name__)

T = TypeVar("T")


class _Cached(NamedTuple):
    value: Any
    close: Callable[[Any], Awaitable[object]]


_cached: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[Hashable, _Cached]] = WeakKeyDictionary()


def get_cached(key: Hashable, create: Callable[[], T], close: Callable[[T], Awaitable[object]]) -> T:
    """Return the object of the running loop under this key, created if there is none."""
    entries = _cached.setdefault(asyncio.get_running_loop(), {})
    if key not in entries:
        entries[key] = _Cached(create(), close)
    return entries[key].value


async def close_cached() -> None:
    """Close all objects of the running loop. Called before the loop ends."""
    for value, close in _cached.pop(asyncio.get_running_loop(), {}).values():
        try:
            await close(value)
        except Exception as error:
            _log.warning("Closing %s failed: %r.", type(value).__name__, error)
