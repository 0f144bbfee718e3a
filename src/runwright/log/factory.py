"""Create the log for a store URL."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from runwright.contract.clock import Clock, Ids
from runwright.contract.envelope import MAX_PAYLOAD_BYTES
from runwright.contract.errors import ErrorCode, RunwrightError

from .run_log import RunLog
from .store import Store

DEFAULT_STORE = "sqlite:///.runwright/runs.db"


def open_log(
    url: str = DEFAULT_STORE,
    *,
    clock: Clock | None = None,
    ids: Ids | None = None,
    write_budget: float = 3.0,
    payload_limit: int = MAX_PAYLOAD_BYTES,
) -> RunLog:
    """Return the log at a URL, to be used with `async with`.

    `sqlite:///runs.db` (relative), `sqlite:////var/lib/runs.db` (absolute), `postgresql://...`, `memory://`.
    `write_budget` is the time in seconds after which an append raises STORE_WRITE_BUDGET_EXCEEDED.
    """
    store = open_store(url, clock=clock, write_budget=write_budget)
    return RunLog(store, ids=ids, payload_limit=payload_limit)


def open_store(url: str, *, clock: Clock | None = None, write_budget: float = 3.0) -> Store:
    """Return the backend for a URL, not yet opened."""
    options: dict[str, Any] = {"clock": clock, "write_budget": write_budget}
    scheme, separator, rest = url.partition("://")
    if separator and scheme == "memory":
        from .memory import MemoryStore

        return MemoryStore(**options)
    if separator and scheme == "sqlite":
        from runwright.log.sqlite.store import SqliteStore

        if not rest.startswith("/") or len(rest) < 2 or rest == "/:memory:":
            raise _bad_url(url)
        return SqliteStore(Path(rest[1:]), **options)
    if separator and scheme in ("postgresql", "postgres"):
        try:
            from runwright.log.postgres.store import PostgresStore
        except ImportError:
            raise RunwrightError(
                ErrorCode.STORE_URL_INVALID, "Postgres support is not installed: pip install 'runwright[postgres]'."
            ) from None
        return PostgresStore(url, **options)
    raise _bad_url(url)


def _bad_url(url: str) -> RunwrightError:
    scheme = re.match("[a-z]{1,20}(?=:)", url)  # Show only the scheme: the rest may contain a password.
    return RunwrightError(
        ErrorCode.STORE_URL_INVALID,
        f"Invalid store URL{'' if scheme is None else f' ({scheme[0]}:…)'}. Use sqlite:///file, "
        "sqlite:////absolute/file, postgresql://… or memory://.",
    )
