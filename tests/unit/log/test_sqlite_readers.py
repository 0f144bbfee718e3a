"""The reader threads of SQLite: pending reads on close, cancelled reads, and errors."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import apsw
import pytest

import runwright as rw
from runwright.log.sqlite.connection import Cursor, prepare_store
from runwright.log.sqlite.readers import SqliteReaders


@pytest.fixture
def path(tmp_path: Path) -> Path:
    prepare_store(tmp_path / "runs.db")
    return tmp_path / "runs.db"


async def test_close_waits_for_pending_reads(path: Path) -> None:
    readers = SqliteReaders(path, asyncio.get_running_loop())
    reads = [asyncio.create_task(readers.read(_count)) for _ in range(50)]
    await asyncio.sleep(0)
    await readers.close()
    assert await asyncio.gather(*reads) == [0] * 50
    assert not [thread for thread in threading.enumerate() if path.name in thread.name]


async def test_a_cancelled_read_does_not_block_other_reads(path: Path) -> None:
    readers, gate = SqliteReaders(path, asyncio.get_running_loop()), threading.Event()
    reads = [asyncio.create_task(readers.read(lambda _: gate.wait(10))) for _ in range(2)]
    await asyncio.sleep(0)
    reads[0].cancel()
    gate.set()
    assert await reads[1]
    assert await readers.read(_count) == 0
    assert reads[0].cancelled()
    await readers.close()


async def test_an_error_reaches_its_caller_and_the_thread_survives(path: Path) -> None:
    def locked(_: Cursor) -> None:
        raise apsw.BusyError("database is locked")

    def broken(_: Cursor) -> None:
        raise UnicodeDecodeError("utf-8", b"", 0, 1, "text that nobody here wrote")

    readers = SqliteReaders(path, asyncio.get_running_loop())
    for query, code in ((locked, "STORE_UNAVAILABLE"), (broken, "STORE_CORRUPT")) * 3:
        with pytest.raises(rw.RunwrightError) as caught:
            await readers.read(query)
        assert caught.value.code == code
    assert await readers.read(_count) == 0
    await readers.close()


def _count(cursor: Cursor) -> int:
    return cursor.execute("SELECT count(*) FROM event").fetchone()[0]
