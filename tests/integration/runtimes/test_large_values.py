"""Values too large for an event: every process that can read the log can read them."""

from __future__ import annotations

from pathlib import Path

import pytest

import runwright as rw
from runwright.storage.values import LogValueBackend, SupportsValues
from support.engine import engine, run_plan

BIG = {"plan": "p", "steps": [{"id": "a", "python": {"call": "support.engine_steps:big", "args": {"size": 70_000}}}]}


async def test_a_large_result_is_found_from_another_folder(
    durable_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "here")
    async with engine(durable_url) as operations:
        snapshot = await run_plan(operations, BIG)
    monkeypatch.chdir(tmp_path / "there")
    async with engine(durable_url) as operations:
        assert await operations.result(snapshot.run_id, "a") == "x" * 70_000


@pytest.fixture(params=["memory", pytest.param("postgres", marks=pytest.mark.slow)])
def value_store_url(request: pytest.FixtureRequest) -> str:
    """Each store that stores large values itself; for SQLite they are files next to the database."""
    return "memory://" if request.param == "memory" else request.getfixturevalue("postgres_url")


@pytest.mark.parametrize("uri", ["result:sha256:" + "0" * 64, "result:sha256:xyz", "file:///etc/passwd"])
async def test_a_value_that_is_not_in_the_store_is_not_available(value_store_url: str, uri: str) -> None:
    async with rw.open_log(value_store_url) as log:
        assert isinstance(log.store, SupportsValues)
        with pytest.raises(rw.RunwrightError) as caught:
            await LogValueBackend(log.store).get({"uri": uri}, "default")
    assert caught.value.code == "REFERENCE_NOT_AVAILABLE"


@pytest.mark.slow
async def test_a_damaged_value_is_refused_until_it_is_stored_again(postgres_url: str) -> None:
    async with rw.open_log(postgres_url) as log:
        assert isinstance(log.store, SupportsValues)
        values = LogValueBackend(log.store)
        await values.put(b"body", "acme")
        reference = {"uri": "result:sha256:230d8358dc8e8890b4c58deeb62912ee2f20357ae92a5cc861b98e68fe31acb5"}
        assert await values.get(reference, "acme") == b"body"
        await log.store._fetch_value("UPDATE value SET body = 'Body'")
        with pytest.raises(rw.RunwrightError, match="damaged"):
            await values.get(reference, "acme")
        await values.put(b"body", "acme")
        assert await values.get(reference, "acme") == b"body"
