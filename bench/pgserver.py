"""A Postgres server of our own for the rows that need one, with fsync on: the same that the tests have."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.servers import Postgres

_numbers = count(1)


class Unavailable(Exception):
    """There is none here; the message says why. The other rows still count."""


def start() -> Postgres:
    try:
        return _start()
    except Exception as reason:  # whatever is in the way
        if "postgres" in os.environ.get("RUNWRIGHT_REQUIRE", ""):
            raise
        raise Unavailable(f"no Postgres: {' '.join(str(reason).split())}") from None


def _start() -> Postgres:
    sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
    try:
        from servers import Postgres
    finally:
        del sys.path[0]
    return Postgres()


@contextmanager
def database(server: Postgres) -> Iterator[str]:
    """An empty database; that it is made and dropped leaves the server with nothing to catch up on."""
    name = f"bench_{next(_numbers)}"
    try:
        yield server.create_database(name)
    finally:
        server.drop_database(name)
