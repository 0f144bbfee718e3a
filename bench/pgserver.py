"""A temporary Postgres server with fsync on, the same as in the tests."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.support.components import Postgres

_numbers = count(1)


class PostgresUnavailable(Exception):
    """Postgres cannot be started here; rows that need it are skipped."""


def start() -> Postgres:
    try:
        return _start()
    except Exception as reason:  # Any failure means that the rows are skipped.
        if "postgres" in os.environ.get("RUNWRIGHT_REQUIRE", ""):
            raise
        raise PostgresUnavailable(f"no Postgres: {' '.join(str(reason).split())}") from None


def _start() -> Postgres:
    sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
    try:
        from support.components import Postgres
    finally:
        del sys.path[0]
    return Postgres()


@contextmanager
def database(server: Postgres) -> Iterator[str]:
    """An empty database. It is dropped afterwards, so that the server has no vacuum or checkpoint work for it."""
    name = f"bench_{next(_numbers)}"
    try:
        yield server.create_database(name)
    finally:
        server.drop_database(name)
