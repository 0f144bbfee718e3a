"""The targets: every row of the table, with its floor (the benchmark fails below it) and its aim."""

from __future__ import annotations

from enum import StrEnum

import msgspec


class ScoreKind(StrEnum):
    """How a round is scored, and which direction is better."""

    SPEED = "speed"  # ours / reference, higher is better
    GROWTH = "growth"  # ours / reference, lower is better
    EXTRA = "extra"  # ours - reference, in their unit; lower is better


FLAT = 1.1
"""The ratio that counts as constant: as close to 1 as noise allows."""


class Target(msgspec.Struct, frozen=True):
    name: str
    what: str
    against: str
    unit: str  # Of both figures: events/s, runs/s, ms or MB.
    kind: ScoreKind
    floor: float | None  # None: reported, but not a target.
    aim: float | None

    def score(self, ours: float, reference: float) -> float:
        return ours - reference if self.kind is ScoreKind.EXTRA else ours / reference

    def holds(self, score: float, limit: float) -> bool:
        return score >= limit if self.kind is ScoreKind.SPEED else score <= limit


def _speed(name: str, what: str, against: str, floor: float | None, aim: float | None) -> Target:
    return Target(name, what, against, "events/s", ScoreKind.SPEED, floor, aim)


def _race(name: str, what: str, against: str, floor: float, aim: float) -> Target:
    return Target(f"engine-{name}", f"10-step runs, {what}", against, "runs/s", ScoreKind.SPEED, floor, aim)


def _loop(name: str, store: str, floor: float, aim: float) -> Target:
    what, against = f"Playbook loop of 10,000, concurrency 64, {store}", "its events alone, 1000 per append"
    return Target(f"play-loop-{name}", what, against, "iterations/s", ScoreKind.SPEED, floor, aim)


TARGETS: dict[str, Target] = {
    target.name: target
    for target in (
        _speed("sqlite-512", "SQLite append, 512 callers", "raw by run, 1000 rows per commit", 0.28, 0.5),
        _speed("sqlite-64", "SQLite append, 64 callers", "raw by run, 1000 rows per commit", 0.17, 0.35),
        _speed("sqlite-512-own", "SQLite append, 512 callers", "raw by commit, 1000 rows per commit", None, None),
        _speed("sqlite-64-own", "SQLite append, 64 callers", "raw by commit, 1000 rows per commit", None, None),
        _speed("sqlite-1", "SQLite append, 1 caller", "raw, 1 row per commit", 0.40, 0.65),
        _speed("postgres-64", "Postgres append, 64 callers", "raw unnest, 1000 rows per commit", 0.25, 0.5),
        _speed("replay-bare", "Replay a long run from SQLite", "bare read, decode, fold", 0.45, 0.8),
        _speed("replay-peer", "Replay a long run from SQLite", "pyeventsourcing", 4.0, 8.0),
        Target("growth-log", "Append p50, full log", "nearly empty log", "ms", ScoreKind.GROWTH, 1.4, FLAT),
        Target(
            "growth-run", "Append p50, end of a long run", "its first 1000 events", "ms", ScoreKind.GROWTH, 1.4, FLAT
        ),
        _race("sqlite-1", "sequential, SQLite FULL", "DBOS, SQLite WAL FULL, direct calls", 2, 4),
        _race("sqlite-64", "concurrency 64, SQLite FULL", "DBOS, SQLite WAL FULL, 64 threads", 12, 30),
        _race("postgres-1", "sequential, Postgres", "DBOS, Postgres, direct calls", 3, 5),
        _race("postgres-64", "concurrency 64, Postgres", "DBOS, Postgres, 64 threads", 15, 35),
        Target("engine-steps", "Step of a run of 100,000", "step of a run of 100", "ms", ScoreKind.GROWTH, 1.4, FLAT),
        Target(
            "engine-fan-out", "Iteration of a loop of 10,000", "of a loop of 100", "ms", ScoreKind.GROWTH, 1.4, FLAT
        ),
        Target("engine-waiting-memory", "10,000 waiting runs, memory", "before them", "MB", ScoreKind.EXTRA, 50, 20),
        Target("engine-waiting-wake", "10,000 waiting runs, wake-up p95", "due time", "ms", ScoreKind.EXTRA, 1000, 200),
        _loop("sqlite", "SQLite FULL", 0.3, 0.5),
        _loop("postgres", "Postgres", 0.3, 0.5),
        Target(
            "play-growth",
            "Iteration of a playbook loop of 100,000",
            "of a loop of 100",
            "ms",
            ScoreKind.GROWTH,
            1.4,
            FLAT,
        ),
        Target("play-routing", "Routing decision after a step, p99", "zero", "ms", ScoreKind.EXTRA, 2, 1),
        Target("play-pipeline", "Task of a pipeline", "the same calls, plain asyncio", "ms", ScoreKind.EXTRA, 2, 1),
        Target(
            "plans-python", "Step of a plan in Python", "of the same plan in YAML", "ms", ScoreKind.GROWTH, 1.1, 1.0
        ),
        Target("plans-dbt", "100 dbt models in 5 layers", "dbt run, same threads", "s", ScoreKind.GROWTH, 2.0, 1.2),
        _speed("server-single", "POST of one event, 64 callers", "same server, route without append", 0.5, 0.7),
        _speed("server-batch", "POST of 500 events, 4 callers", "the log itself", 0.5, 0.7),
        Target(
            "server-get", "GET of a run, 100,000 in the store", "1,000 in the store", "ms", ScoreKind.GROWTH, 1.4, FLAT
        ),
        Target("server-list", "GET of a list, 100,000 in the store", "1,000", "ms", ScoreKind.GROWTH, 1.4, FLAT),
        Target("server-sse", "1,000 subscribers, 10 events/s, p95", "send time", "ms", ScoreKind.EXTRA, 250, 100),
        Target("server-start", "Request to first step, p50", "request time", "ms", ScoreKind.EXTRA, 15, 8),
        Target("server-takeover", "Takeover from a stopped server", "stop time", "ms", ScoreKind.EXTRA, 6000, 6000),
        Target("start-import", "import runwright", "bare interpreter", "ms", ScoreKind.EXTRA, 80, 40),
        Target("start-open-log", "import and access open_log", "bare interpreter", "ms", ScoreKind.EXTRA, None, None),
        Target("start-help", "runwright --help", "bare interpreter", "ms", ScoreKind.EXTRA, 200, 120),
    )
}
