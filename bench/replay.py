"""Replay of a stored run to its state, against a bare loop and against pyeventsourcing."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, Protocol

import apsw
import msgspec

import runwright as rw

from .eventsourcing_peer import EventsourcingPeer
from .fill import fill_run
from .scale import Scale
from .stopwatch import Stopwatch
from .table import Measurement, Row
from .targets import TARGETS

RUN_ID = "replayed"


def measure(wanted: Collection[str], scale: Scale) -> Iterator[Row]:
    names = [name for name in ("replay-bare", "replay-peer") if name in wanted]
    if names:
        with scale.new_folder() as folder:
            yield from asyncio.run(_measure(names, scale, folder))


async def _measure(names: list[str], scale: Scale, folder: Path) -> list[Row]:
    count = scale.size(50_001, 20_001)  # RunStarted, then pairs of step events.
    path = folder / "runs.db"
    rows = [Row(TARGETS[name]) for name in names]
    async with rw.open_log(f"sqlite:///{path}", write_budget=60) as log:
        await fill_run(log, RUN_ID, count)
        references: dict[str, ReplayReference] = {"replay-bare": BareReplay(path, count)}
        if "replay-peer" in names:
            references["replay-peer"] = EventsourcingPeer(folder / "peer.db", count)
        for _ in range(scale.rounds):
            for row in rows:
                reference = references[row.target.name].replay()
                row.rounds.append(Measurement(count / await _replay(log, count), count / reference))
        for peer in references.values():
            peer.close()
    return rows


class ReplayReference(Protocol):
    def replay(self) -> float:
        """Read the run from disk and fold it; return the seconds."""
        ...

    def close(self) -> None: ...


async def _replay(log: rw.RunLog, count: int) -> float:
    with Stopwatch() as watch:
        snapshot = await log.snapshot(RUN_ID)
    assert snapshot.last_event_seq == count
    assert snapshot.completed_steps == len(snapshot.steps) == count // 2
    return watch.seconds


class BareReplay:
    """Read the columns that a fold needs, decode the payloads and store the state in dicts, without checks and types.

    The final state has the same information as a snapshot of such a run.
    """

    def __init__(self, path: Path, count: int) -> None:
        self._connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
        self._connection.cursor().execute("PRAGMA cache_size = -32768")  # As much as the log's readers have.
        self._count = count

    def replay(self) -> float:
        decode = msgspec.json.Decoder().decode
        with Stopwatch() as watch:
            run: dict[str, Any] = {"status": "PENDING", "lastEventSeq": 0, "running": 0, "completed": 0}
            steps: dict[str, dict[str, Any]] = {}
            for run_seq, event_type, _, step_id, engine_attempt, attempt, emitted_at, payload in self._rows():
                run["lastEventSeq"] = run_seq
                content: Any = {} if payload is None else decode(payload)
                if event_type == "StepStarted":
                    steps[step_id] = {
                        "status": "RUNNING",
                        "attempt": attempt,
                        "engineAttempt": engine_attempt,
                        "startedAt": emitted_at,
                    }
                    run["running"] += 1
                elif event_type == "StepCompleted":
                    step = steps[step_id]
                    step["status"] = "SUCCESS"
                    step["completedAt"] = emitted_at
                    step["artifacts"] = content.get("artifactRefs")
                    run["running"] -= 1
                    run["completed"] += 1
                elif event_type == "RunStarted":
                    run["status"] = "RUNNING"
                    run["startedAt"] = content.get("startedAt", emitted_at)
        assert (run["lastEventSeq"], run["completed"], len(steps)) == (self._count, len(steps), self._count // 2)
        return watch.seconds

    def _rows(self) -> Any:
        return self._connection.cursor().execute(
            "SELECT run_seq, event_type, schema_version, step_id, engine_attempt_id, logical_attempt_id, emitted_at,"
            " payload FROM event WHERE run_key = (SELECT run_key FROM run WHERE run_id = ?) ORDER BY run_seq",
            (RUN_ID,),
        )

    def close(self) -> None:
        self._connection.close()
