"""Kill an appending process repeatedly at random times: no acknowledged event may be lost."""

from __future__ import annotations

import asyncio
import os
import random
import time
from pathlib import Path

import pytest

import runwright as rw
from support import processes

pytestmark = pytest.mark.slow


def test_killed_appender_loses_no_acknowledged_event(durable_url: str, tmp_path: Path) -> None:
    chance = processes.random_from_seed()
    acknowledged = tmp_path / "acknowledged"
    errors = tmp_path / "errors"
    for _ in range(processes.kill_count()):
        run_and_kill(durable_url, acknowledged, errors, chance)
    asyncio.run(check(durable_url, acknowledged.read_bytes()))


def run_and_kill(url: str, acknowledged: Path, errors: Path, chance: random.Random) -> None:
    """Kill an appender during its start, when it may create or recover the store, or after its first receipt."""
    with acknowledged.open("ab") as out, errors.open("ab") as err:
        before = os.fstat(out.fileno()).st_size
        process = processes.start("appender.py", "endless", url, out=out.fileno(), err=err.fileno())
        try:
            if chance.random() < 0.7:
                deadline = time.monotonic() + 60
                while acknowledged.stat().st_size == before and process.poll() is None:
                    assert time.monotonic() < deadline, "the appender has no event acknowledged"
                    time.sleep(0.002)
                time.sleep(chance.uniform(0, 0.25))
            else:
                time.sleep(chance.uniform(0, 0.6))
            assert process.poll() is None, f"the appender ended by itself:\n{errors.read_text()[-3000:]}"
        finally:
            process.kill()
            process.communicate()


async def check(url: str, acknowledged: bytes) -> None:
    whole, _, torn = acknowledged.rpartition(b"\n")
    assert not torn, "a receipt was written in part"
    receipts: dict[str, dict[int, tuple[str, str]]] = {}
    for line in whole.decode().splitlines():
        run_id, seq, event_id, key = line.split()
        known = receipts.setdefault(run_id, {}).setdefault(int(seq), (event_id, key))
        assert known == (event_id, key), "a later receipt for the same event differs"
    assert receipts
    async with rw.open_log(url) as log:
        for run_id, acks in receipts.items():
            records = await log.read(run_id)
            assert [record.run_seq for record in records] == list(range(1, len(records) + 1))
            keys = [record.idempotency_key for record in records]
            assert len(set(keys)) == len(keys)
            stored = {record.run_seq: (record.event_id, record.idempotency_key) for record in records}
            assert {seq: stored.get(seq) for seq in acks} == acks
        assert [finding async for finding in log.verify()] == []
        assert (await log.rebuild(check=True)).different == []
