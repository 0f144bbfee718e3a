"""How long until there is something to use: importing the package, and asking the command line for help."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Collection, Iterator
from importlib.util import find_spec

from .scale import Scale
from .stopwatch import Stopwatch
from .table import Round, Row
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
            yield Row(TARGETS[name], skipped="there is no runwright.cli.main yet")
            continue
        _check(name, arguments)
        rounds = scale.size(15, 7)
        yield Row(TARGETS[name], [_round(arguments) for _ in range(rounds)])


def _check(name: str, arguments: tuple[str, ...]) -> None:
    """Start it once untimed, which compiles the modules, and see that it does what it is measured for."""
    done = subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.PIPE)
    assert (b"Usage:" in done.stdout) == (name == "start-help"), done.stdout


def _round(arguments: tuple[str, ...]) -> Round:
    reference = _start(_BARE)
    return Round(_start(arguments), reference)


def _start(arguments: tuple[str, ...]) -> float:
    """Milliseconds from the start of an interpreter to its end."""
    with Stopwatch() as watch:
        subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
    return watch.seconds * 1000


def _has_command_line() -> bool:
    try:
        return find_spec("runwright.cli.main") is not None
    except ModuleNotFoundError:
        return False
