"""python -m bench [--only NAME] [--quick] [--json FILE]

Measures every target of targets.py against its reference, in turn and in one run, and prints one table.
Exits with 1 if any target is below its floor. NAME is a row's name or its beginning: `sqlite`, `sqlite-64`, `engine`.
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

from . import engine, growth, machine, plans, playbooks, postgres, replay, server, size, sqlite, startup, table, waiting
from .scale import Scale
from .targets import TARGETS

_PLACE = Path(__file__).parent.parent / ".cache" / "bench"
_MEASURES = (
    *(sqlite.measure, postgres.measure, replay.measure, growth.measure),
    *(engine.measure, size.measure, waiting.measure, playbooks.measure, plans.measure, server.measure, startup.measure),
)


@click.command(help=__doc__)
@click.option("--only", "only", multiple=True, metavar="NAME", help="Only rows whose name begins so; may be repeated.")
@click.option("--quick", is_flag=True, help="Fewer rounds, smaller sizes: a first look.")
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Also write every round's figures there.")
def main(only: tuple[str, ...], quick: bool, json_file: Path | None) -> None:
    wanted = _wanted(only)
    console, progress = _consoles()
    rows: list[table.Row] = []
    start = perf_counter()
    with _place() as folder:
        facts = machine.facts(folder)
        scale = Scale(folder, quick)
        for measure in _MEASURES:
            for row in measure(wanted, scale):
                rows.append(row)
                progress.print(f"{perf_counter() - start:5.0f} s  {row.target.name}: {row.verdict}", highlight=False)
    table.show(rows, facts, console)
    if json_file is not None:
        table.save(rows, facts, json_file)
    if any(row.verdict == "BELOW FLOOR" for row in rows):
        sys.exit(1)


def _wanted(only: Sequence[str]) -> list[str]:
    wanted = [name for name in TARGETS if not only or name.startswith(tuple(only))]
    if not wanted:
        raise click.BadParameter(f"there are {', '.join(TARGETS)}", param_hint="--only")
    return wanted


@contextmanager
def _place() -> Iterator[Path]:
    """A folder on the disk that the checkout is on, gone afterwards."""
    _PLACE.mkdir(parents=True, exist_ok=True)
    try:
        with TemporaryDirectory(dir=_PLACE) as folder:
            yield Path(folder)
    finally:
        with suppress(OSError):  # another benchmark may be under way there
            _PLACE.rmdir()


def _consoles() -> tuple[Console, Console]:
    """The table goes to stdout, wide enough where that is a file; what is under way to stderr."""
    console = Console()
    return console if console.is_terminal else Console(width=180), Console(stderr=True)


main(prog_name="python -m bench")
