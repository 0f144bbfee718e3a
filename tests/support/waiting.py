"""Wait for a condition that becomes true in the background."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")
PATIENCE = 20.0
"""Seconds after which a condition is considered unreachable. Never an expected duration."""


async def until(condition: Callable[[], Awaitable[T] | T], what: str = "the condition") -> T:
    """Poll a condition, async or not, until it is truthy; return its value."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        found = condition()
        value = await found if inspect.isawaitable(found) else found
        if value:
            return value
        await asyncio.sleep(0.01)
    raise AssertionError(f"{what} did not become true in time")


def wait_until(condition: Callable[[], bool], seconds: float = PATIENCE) -> None:
    """Like `until`, in a test that is not async."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition did not become true in time"
        time.sleep(0.02)
