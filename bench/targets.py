"""What is promised: every row of the table, with its floor (a failure below it) and its aim."""

from __future__ import annotations

from enum import StrEnum

import msgspec


class Kind(StrEnum):
    """How a round is scored, and which way is better."""

    SPEED = "speed"  # ours / reference, higher is better
    GROWTH = "growth"  # ours / reference, lower is better
    EXTRA = "extra"  # ours - reference, in their unit; lower is better


FLAT = 1.1
"""What counts as flat: as close to 1 as can be told from the noise."""


class Target(msgspec.Struct, frozen=True):
    name: str
    what: str
    against: str
    unit: str  # of the two figures: events/s, runs/s, ms or MB
    kind: Kind
    floor: float | None  # None: shown, not promised
    aim: float | None

    def score(self, ours: float, reference: float) -> float:
        return ours - reference if self.kind is Kind.EXTRA else ours / reference

    def holds(self, score: float, limit: float) -> bool:
        return score >= limit if self.kind is Kind.SPEED else score <= limit


def _speed(name: str, what: str, against: str, floor: float | None, aim: float | None) -> Target:
    return Target(name, what, against, "events/s", Kind.SPEED, floor, aim)


def _race(name: str, what: str, against: str, floor: float, aim: float) -> Target:
    return Target(f"engine-{name}", f"10-step runs, {what}", against, "runs/s", Kind.SPEED, floor, aim)


def _loop(name: str, store: str, floor: float, aim: float) -> Target:
    what, against = f"Playbook's loop of 10,000, 64 at once, {store}", "its events alone, 1000 an append"
    return Target(f"play-loop-{name}", what, against, "iterations/s", Kind.SPEED, floor, aim)


TARGETS: dict[str, Target] = {
    target.name: target
    for target in (
        _speed("sqlite-512", "SQLite append, 512 callers", "raw by run, 1000 rows a commit", 0.28, 0.5),
        _speed("sqlite-64", "SQLite append, 64 callers", "raw by run, 1000 rows a commit", 0.17, 0.35),
        _speed("sqlite-512-own", "SQLite append, 512 callers", "raw by commit, 1000 rows a commit", None, None),
        _speed("sqlite-64-own", "SQLite append, 64 callers", "raw by commit, 1000 rows a commit", None, None),
        _speed("sqlite-1", "SQLite append, 1 caller", "raw, 1 row a commit", 0.40, 0.65),
        _speed("postgres-64", "Postgres append, 64 callers", "raw unnest, 1000 rows a commit", 0.25, 0.5),
        _speed("replay-bare", "Replay a long run from SQLite", "bare read, decode, fold", 0.45, 0.8),
        _speed("replay-peer", "Replay a long run from SQLite", "pyeventsourcing", 4.0, 8.0),
        Target("growth-log", "Append p50, full log", "nearly empty log", "ms", Kind.GROWTH, 1.4, FLAT),
        Target("growth-run", "Append p50, end of a long run", "its first 1000 events", "ms", Kind.GROWTH, 1.4, FLAT),
        _race("sqlite-1", "one after another, SQLite FULL", "DBOS, SQLite WAL FULL, direct calls", 2, 4),
        _race("sqlite-64", "64 at once, SQLite FULL", "DBOS, SQLite WAL FULL, 64 threads", 12, 30),
        _race("postgres-1", "one after another, Postgres", "DBOS, Postgres, direct calls", 3, 5),
        _race("postgres-64", "64 at once, Postgres", "DBOS, Postgres, 64 threads", 15, 35),
        Target("engine-steps", "A step of a run of 100,000", "of a run of 100", "ms", Kind.GROWTH, 1.4, FLAT),
        Target("engine-fan-out", "An iteration of 10,000", "of 100", "ms", Kind.GROWTH, 1.4, FLAT),
        Target("engine-waiting-memory", "10,000 runs waiting, memory", "before they were", "MB", Kind.EXTRA, 50, 20),
        Target("engine-waiting-wake", "10,000 runs waiting, wake-up p95", "when due", "ms", Kind.EXTRA, 1000, 200),
        _loop("sqlite", "SQLite FULL", 0.3, 0.5),
        _loop("postgres", "Postgres", 0.3, 0.5),
        Target("play-growth", "An iteration of a playbook's 100,000", "of 100", "ms", Kind.GROWTH, 1.4, FLAT),
        Target("play-routing", "A step's end to what follows, p99", "no time", "ms", Kind.EXTRA, 2, 1),
        Target("play-pipeline", "A task of a pipeline", "the same calls, plain asyncio", "ms", Kind.EXTRA, 2, 1),
        Target("plans-python", "A step of a plan in Python", "of the same plan in YAML", "ms", Kind.GROWTH, 1.1, 1.0),
        Target("plans-dbt", "100 dbt models in 5 layers", "dbt run, as many threads", "s", Kind.GROWTH, 2.0, 1.2),
        _speed("server-single", "POST of one event, 64 callers", "the same server, only reading it", 0.5, 0.7),
        _speed("server-batch", "POST of 500 events, 4 callers", "the log itself", 0.5, 0.7),
        Target("server-get", "GET of a run, 100,000 in the store", "1,000 in the store", "ms", Kind.GROWTH, 1.4, FLAT),
        Target("server-list", "GET of a list, 100,000 in the store", "1,000", "ms", Kind.GROWTH, 1.4, FLAT),
        Target("server-sse", "1,000 listeners, 10 events/s, p95", "when sent", "ms", Kind.EXTRA, 250, 100),
        Target("server-start", "Start of a run to its first step, p50", "when asked", "ms", Kind.EXTRA, 15, 8),
        Target("server-takeover", "Run of a silent server goes on", "when silent", "ms", Kind.EXTRA, 6000, 6000),
        Target("start-import", "import runwright", "bare interpreter", "ms", Kind.EXTRA, 80, 40),
        Target("start-open-log", "import and touch open_log", "bare interpreter", "ms", Kind.EXTRA, None, None),
        Target("start-help", "runwright --help", "bare interpreter", "ms", Kind.EXTRA, 200, 120),
    )
}
