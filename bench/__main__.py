"""python -m bench [--only NAME] [--quick] [--json FILE]

Measures every target of targets.py and its reference alternately, and prints one table. Exits with 1 if a target is
below its floor. NAME is the name of a row or a prefix of it: `sqlite`, `sqlite-64`, `engine`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter

import click
from rich.console import Console

from . import (
    engine,
    growth,
    machine,
    plans,
    playbooks,
    postgres,
    replay,
    run_size,
    server,
    sqlite,
    startup,
    table,
    waiting_runs,
)
from .scale import Scale
from .targets import TARGETS

_CACHE = Path(__file__).parent.parent / ".cache" / "bench"
_MEASURES = (
    *(sqlite.measure, postgres.measure, replay.measure, growth.measure),
    *(
        engine.measure,
        run_size.measure,
        waiting_runs.measure,
        playbooks.measure,
        plans.measure,
        server.measure,
        startup.measure,
    ),
)


@click.command(help=__doc__)
@click.option("--only", "only", multiple=True, metavar="NAME", help="Only rows with this name prefix. May be repeated.")
@click.option("--quick", is_flag=True, help="Fewer rounds and smaller sizes.")
@click.option(
    "--json", "json_file", type=click.Path(path_type=Path), help="Also write the figures of every round to this file."
)
def main(only: tuple[str, ...], quick: bool, json_file: Path | None) -> None:
    wanted = _select_targets(only)
    console, progress = _consoles()
    rows: list[table.Row] = []
    start = perf_counter()
    with _new_folder() as folder:
        facts = machine.facts(folder)
        scale = Scale(folder, quick)
        for measure in _MEASURES:
            for row in measure(wanted, scale):
                rows.append(row)
                progress.print(f"{perf_counter() - start:5.0f} s  {row.target.name}: {row.verdict}", highlight=False)
    table.print_rows(rows, facts, console)
    if json_file is not None:
        table.save_rows(rows, facts, json_file)
    if any(row.verdict == "BELOW FLOOR" for row in rows):
        sys.exit(1)


def _select_targets(only: Sequence[str]) -> list[str]:
    wanted = [name for name in TARGETS if not only or name.startswith(tuple(only))]
    if not wanted:
        raise click.BadParameter(f"no such row; there are {', '.join(TARGETS)}", param_hint="--only")
    return wanted


@contextmanager
def _new_folder() -> Iterator[Path]:
    """A temporary folder on the same disk as the checkout."""
    _CACHE.mkdir(parents=True, exist_ok=True)
    try:
        with TemporaryDirectory(dir=_CACHE) as folder:
            yield Path(folder)
    finally:
        with suppress(OSError):  # Another benchmark may be running there.
            _CACHE.rmdir()


def _consoles() -> tuple[Console, Console]:
    """Return the consoles for the table (stdout, wide if it is not a terminal) and for progress (stderr)."""
    console = Console()
    return console if console.is_terminal else Console(width=180), Console(stderr=True)


main(prog_name="python -m bench")
