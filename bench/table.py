"""Measured rows, as a table and as JSON."""

from __future__ import annotations

from pathlib import Path
from statistics import median

import msgspec
from rich import box
from rich.console import Console
from rich.table import Table

from .targets import ScoreKind, Target


class Measurement(msgspec.Struct, frozen=True, omit_defaults=True):
    """One round: Runwright and the reference, measured one after the other."""

    ours: float
    reference: float
    p50_ms: float | None = None  # Median latency of one caller.


class Row(msgspec.Struct, omit_defaults=True):
    target: Target
    rounds: list[Measurement] = []
    skipped: str | None = None

    @property
    def score(self) -> float:
        """The median of the scores of the rounds. A slow moment of the machine affects both sides of a round."""
        return median(self.target.score(each.ours, each.reference) for each in self.rounds)

    @property
    def p50_ms(self) -> float | None:
        latencies = [each.p50_ms for each in self.rounds if each.p50_ms is not None]
        return median(latencies) if latencies else None

    @property
    def verdict(self) -> str:
        if self.skipped is not None:
            return "skipped"
        floor, aim = self.target.floor, self.target.aim
        if floor is None or aim is None:
            return ""
        if not self.target.holds(self.score, floor):
            return "BELOW FLOOR"
        return "ok, aim reached" if self.target.holds(self.score, aim) else "ok"


_STYLES = {"": "dim", "BELOW FLOOR": "bold red", "ok": "green", "ok, aim reached": "bold green", "skipped": "yellow"}


def print_rows(rows: list[Row], facts: dict[str, str], console: Console) -> None:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in ("name", "what", "against"):
        table.add_column(heading, overflow="fold")
    for heading in ("measured", "reference", "ratio", "spread", "p50", "floor", "aim"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    for row in rows:
        verdict = f"[{_STYLES[row.verdict]}]{row.verdict}[/]"
        target = row.target
        limits = (_limit(target, target.floor), _limit(target, target.aim))
        table.add_row(target.name, target.what, target.against, *_figures(row), *limits, verdict)
    console.print(table)
    for row in rows:
        if row.skipped is not None:
            console.print(f"{row.target.name} skipped: {row.skipped}", markup=False)
    console.print("; ".join(f"{name} {value}" for name, value in facts.items()), markup=False, highlight=False)


def save_rows(rows: list[Row], facts: dict[str, str], path: Path) -> None:
    document = {
        "facts": facts,
        "rows": [
            {
                **msgspec.to_builtins(row),
                "score": None if row.skipped is not None else round(row.score, 4),
                "verdict": row.verdict,
            }
            for row in rows
        ],
    }
    path.write_bytes(msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n")


def _figures(row: Row) -> tuple[str, str, str, str, str]:
    if row.skipped is not None:
        return ("-",) * 5
    target = row.target
    scores = [target.score(each.ours, each.reference) for each in row.rounds]
    latency = row.p50_ms
    return (
        _figure(median(each.ours for each in row.rounds), target),
        _figure(median(each.reference for each in row.rounds), target),
        _score(target, row.score),
        f"{_score(target, min(scores))} – {_score(target, max(scores))}",
        "" if latency is None else f"{latency:.2f} ms",
    )


def _figure(value: float, target: Target) -> str:
    if target.unit.endswith("/s"):
        return f"{value:,.1f}/s" if value < 100 else f"{value:,.0f}/s"
    return f"{value:,.2f} {target.unit}"


def _score(target: Target, score: float) -> str:
    return f"{score:.0f} {target.unit}" if target.kind is ScoreKind.EXTRA else f"{score:.2f}"


def _limit(target: Target, limit: float | None) -> str:
    if limit is None:
        return ""
    sign = "≥" if target.kind is ScoreKind.SPEED else "≤"
    return f"{sign} {limit:g} {target.unit}" if target.kind is ScoreKind.EXTRA else f"{sign} {limit:g}"
