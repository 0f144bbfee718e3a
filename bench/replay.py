"""From a stored run to its state: ours against a bare loop, and against pyeventsourcing."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import apsw
import msgspec

import runwright as rw

from .fill import fill_run
from .scale import Scale
from .stopwatch import Stopwatch
from .table import Round, Row
from .targets import TARGETS

RUN_ID = "replayed"


def measure(wanted: Collection[str], scale: Scale) -> Iterator[Row]:
    names = [name for name in ("replay-bare", "replay-peer") if name in wanted]
    if names:
        with scale.place() as folder:
            yield from asyncio.run(_measure(names, scale, folder))


async def _measure(names: list[str], scale: Scale, folder: Path) -> list[Row]:
    count = scale.size(50_001, 20_001)  # the start of the run, then pairs
    path = folder / "runs.db"
    rows = [Row(TARGETS[name]) for name in names]
    peer = _peer(folder / "peer.db", count) if "replay-peer" in names else None
    async with rw.open_log(f"sqlite:///{path}") as log:
        await fill_run(log, RUN_ID, count)
        for _ in range(scale.rounds):
            for row in rows:
                if row.target.name == "replay-bare":
                    reference = count / _bare(path, count)
                else:
                    assert peer is not None
                    reference = count / peer.replay()
                row.rounds.append(Round(count / await _ours(log, count), reference))
    if peer is not None:
        peer.close()
    return rows


async def _ours(log: rw.RunLog, count: int) -> float:
    with Stopwatch() as watch:
        snapshot = await log.snapshot(RUN_ID)
    assert snapshot.last_event_seq == count
    assert snapshot.completed_steps == len(snapshot.steps) == count // 2
    return watch.seconds


def _bare(path: Path, count: int) -> float:
    """Read the rows, decode the payloads, keep in a dict what became of each step: no checks, no types."""
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    decode = msgspec.json.Decoder().decode
    with Stopwatch() as watch:
        status, seen, steps = "PENDING", 0, dict[str, dict[str, Any]]()
        for event_type, step_id, emitted_at, payload in connection.cursor().execute(
            "SELECT event_type, step_id, emitted_at, payload FROM event"
            " WHERE run_key = (SELECT run_key FROM run WHERE run_id = ?) ORDER BY run_seq",
            (RUN_ID,),
        ):
            seen += 1
            content: Any = None if payload is None else decode(payload)
            if event_type == "StepStarted":
                steps[step_id] = {"status": "RUNNING", "startedAt": emitted_at}
            elif event_type == "StepCompleted":
                step = steps[step_id]
                step["status"] = "SUCCESS"
                step["completedAt"] = emitted_at
                step["artifacts"] = content.get("artifactRefs")
            elif event_type == "RunStarted":
                status = "RUNNING"
    connection.close()
    assert (status, seen, len(steps)) == ("RUNNING", count, count // 2)
    return watch.seconds


def _peer(path: Path, count: int) -> Any:
    from .peer import Peer

    return Peer(path, count)
