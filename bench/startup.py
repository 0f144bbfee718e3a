"""Start-up time: importing the package, and `runwright --help`."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Collection, Iterator
from importlib.util import find_spec

from .scale import Scale
from .stopwatch import Stopwatch
from .table import Measurement, Row
from .targets import TARGETS

_BARE = ("-c", "pass")
_STARTS = {
    "start-import": ("-c", "import runwright"),
    "start-open-log": ("-c", "import runwright; runwright.open_log"),
    "start-help": ("-m", "runwright.cli.main", "--help"),
}


def measure(wanted: Collection[str], scale: Scale) -> Iterator[Row]:
    for name, arguments in _STARTS.items():
        if name not in wanted:
            continue
        if name == "start-help" and not _has_command_line():
            yield Row(TARGETS[name], skipped="runwright.cli.main not found")
            continue
        _check(name, arguments)
        rounds = scale.size(15, 7)
        yield Row(TARGETS[name], [_round(arguments) for _ in range(rounds)])


def _check(name: str, arguments: tuple[str, ...]) -> None:
    """Start it once untimed, which compiles the modules, and check its output."""
    done = subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.PIPE)
    assert (b"Usage:" in done.stdout) == (name == "start-help"), done.stdout


def _round(arguments: tuple[str, ...]) -> Measurement:
    reference = _start(_BARE)
    return Measurement(_start(arguments), reference)


def _start(arguments: tuple[str, ...]) -> float:
    """Start an interpreter and wait for its exit; return the milliseconds."""
    with Stopwatch() as watch:
        subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
    return watch.seconds * 1000


def _has_command_line() -> bool:
    try:
        return find_spec("runwright.cli.main") is not None
    except ModuleNotFoundError:
        return False
