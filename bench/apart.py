"""A measurement in a process of its own.

What an earlier one left behind, in memory, in threads or in caches, cannot weigh on it; and what it uses is
its own, so that memory can be measured too. `python -m bench.apart module:function {arguments}` is the other end.
"""

from __future__ import annotations

import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import msgspec

_ROOT = Path(__file__).parent.parent
_MARK = b"result: "  # whatever else is printed, this line is ours


def call(function: str, folder: Path, **arguments: Any) -> Any:
    """Call `module:function` there, with the folder as the current one; what it gives back, which must fit JSON."""
    done = subprocess.run(
        [sys.executable, "-m", "bench.apart", function, msgspec.json.encode(arguments).decode()],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(_ROOT), os.environ.get("PYTHONPATH", "")])},
        stdout=subprocess.PIPE,
        check=False,
    )
    for line in done.stdout.splitlines():
        if line.startswith(_MARK):
            return msgspec.json.decode(line.removeprefix(_MARK))
    raise RuntimeError(f"{function} gave nothing back and ended with {done.returncode}; its own words are above.")


def _answer() -> None:
    module, _, name = sys.argv[1].partition(":")
    result = getattr(import_module(module), name)(**msgspec.json.decode(sys.argv[2]))
    sys.stdout.buffer.write(_MARK + msgspec.json.encode(result) + b"\n")


if __name__ == "__main__":
    _answer()
