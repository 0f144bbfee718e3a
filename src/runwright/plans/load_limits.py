"""Limits while a plan is loaded: the number of its steps, and a caller that no longer wants it."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar

import msgspec

MAX_STEPS = 200_000


class LoadLimits(msgspec.Struct, frozen=True):
    steps: int = MAX_STEPS
    is_cancelled: Callable[[], bool] = lambda: False


class LoadCancelled(Exception):
    """The caller no longer wants the plan."""


_limits: ContextVar[LoadLimits] = ContextVar("runwright_load_limits", default=LoadLimits())  # noqa: B039 - immutable


@contextmanager
def load_limits(*, steps: int | None = None, is_cancelled: Callable[[], bool] | None = None) -> Generator[None]:
    """Load plans under these limits; those that are not given stay as they are."""
    now = _limits.get()
    changed = LoadLimits(now.steps if steps is None else steps, is_cancelled or now.is_cancelled)
    token = _limits.set(changed)
    try:
        yield
    finally:
        _limits.reset(token)


def max_steps() -> int:
    return _limits.get().steps


def check_cancelled() -> None:
    """Raise LoadCancelled if the caller no longer wants the plan."""
    if _limits.get().is_cancelled():
        raise LoadCancelled
