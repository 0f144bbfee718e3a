"""Fixtures for all tests: stores, servers and event builders; also runs async test functions."""

from __future__ import annotations

import asyncio
import inspect
import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

import runwright as rw
from support.components import Bucket, Nats, Postgres, have_or_skip
from support.events import History

settings.register_profile("quick", max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
settings.register_profile("full", max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
settings.register_profile("soak", max_examples=5000, deadline=None, suppress_health_check=list(HealthCheck))
PROFILE = os.environ.get("RUNWRIGHT_PROFILE", "quick")
LIMIT = 3600 if PROFILE == "soak" else 120  # seconds per test
settings.load_profile(PROFILE)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run each `async def` test on a new event loop, with a time limit so that none can hang."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = pyfuncitem._fixtureinfo.argnames
    arguments = {name: pyfuncitem.funcargs[name] for name in names}

    async def limited() -> None:
        async with asyncio.timeout(LIMIT):
            await pyfuncitem.obj(**arguments)

    asyncio.run(limited())
    return True


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Give every xdist worker an equal share of the slow tests, first, so that all workers end at the same time."""
    workers = getattr(config, "workerinput", {}).get("workercount", 1)
    slow = [item for item in items if item.get_closest_marker("slow")]
    fast = [item for item in items if not item.get_closest_marker("slow")]
    items[:] = [item for first in range(workers) for item in (*slow[first::workers], *fast[first::workers])]


LITTLE_BACKGROUND_WORK = (
    *("autovacuum=off", "jit=off", "max_wal_size=4GB", "checkpoint_timeout=30min"),
    *("wal_level=minimal", "max_wal_senders=0"),
)
"""Settings for databases that live for seconds. fsync stays on."""


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    server = have_or_skip("postgres", lambda: Postgres(*LITTLE_BACKGROUND_WORK))
    assert isinstance(server, Postgres)
    yield server
    server.stop()


@pytest.fixture(scope="session")
def bucket_server() -> Iterator[Bucket]:
    server = have_or_skip("s3", Bucket)
    assert isinstance(server, Bucket)
    yield server
    server.stop()


@pytest.fixture(scope="session")
def nats() -> Iterator[Nats]:
    server = have_or_skip("nats", Nats)
    assert isinstance(server, Nats)
    yield server
    server.stop()


@pytest.fixture
def bucket(bucket_server: Bucket, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Settings in runwright.toml for an empty part of a bucket."""
    for name, value in bucket_server.CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    return bucket_server.settings(f"test-{os.getpid()}-{next(_numbers)}")


_numbers = itertools.count(1)


_free_stores: list[str] = []
_free_databases: list[str] = []


@pytest.fixture
def postgres_url(postgres: Postgres) -> Iterator[str]:
    """URL of the database of a new store. Databases are reset and used again: to create tables costs 0.2 s."""
    if not _free_stores:
        name = f"store_{os.getpid()}_{next(_numbers)}"
        postgres.create_store(name)
        _free_stores.append(name)
    name = _free_stores.pop()
    yield postgres.url(name)
    if postgres.reset_store(name):
        _free_stores.append(name)
    else:
        postgres.drop_database(name)


@pytest.fixture
def empty_postgres_url(postgres: Postgres) -> Iterator[str]:
    """URL of a database without tables."""
    if not _free_databases:
        name = f"test_{os.getpid()}_{next(_numbers)}"
        postgres.create_database(name)
        _free_databases.append(name)
    name = _free_databases.pop()
    yield postgres.url(name)
    postgres.empty_database(name)
    _free_databases.append(name)


@pytest.fixture(params=["memory", "sqlite", pytest.param("postgres", marks=pytest.mark.slow)])
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of each store in turn, because all must behave alike."""
    if request.param == "memory":
        return "memory://"
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/runs.db"
    return request.getfixturevalue("postgres_url")


@pytest.fixture
def make_log(store_url: str) -> Callable[..., rw.RunLog]:
    return lambda **options: rw.open_log(store_url, **options)


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.slow)])
def durable_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of each store that outlives its process, in turn."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/runs.db"
    return request.getfixturevalue("postgres_url")


@pytest.fixture
def file_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URL of a SQLite store, for tests that need no other kind. Files next to it are in the test's folder."""
    monkeypatch.chdir(tmp_path)
    return f"sqlite:///{tmp_path}/runs.db"


@pytest.fixture
def store(durable_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URL of each store that outlives its process. Files next to it are in the test's folder."""
    monkeypatch.chdir(tmp_path)
    return durable_url


@pytest.fixture
def history() -> type[History]:
    return History


@pytest.fixture
def event() -> History:
    return History()
