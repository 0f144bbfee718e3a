"""A measurement in its own process.

Earlier measurements cannot affect it through memory, threads or caches, and its own memory use can be measured.
`python -m bench.child_process module:function {arguments}` is the child's entry point.
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
_MARKER = b"result: "  # Marks the line with the result among other output.


def call(function: str, folder: Path, **arguments: Any) -> Any:
    """Call `module:function` in a child process, in `folder`, and return its JSON-serializable result."""
    done = subprocess.run(
        [sys.executable, "-m", "bench.child_process", function, msgspec.json.encode(arguments).decode()],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(_ROOT), os.environ.get("PYTHONPATH", "")])},
        stdout=subprocess.PIPE,
        check=False,
    )
    for line in done.stdout.splitlines():
        if line.startswith(_MARKER):
            return msgspec.json.decode(line.removeprefix(_MARKER))
    raise RuntimeError(f"{function} returned no result and exited with {done.returncode}; see its output above.")


def _main() -> None:
    module, _, name = sys.argv[1].partition(":")
    result = getattr(import_module(module), name)(**msgspec.json.decode(sys.argv[2]))
    sys.stdout.buffer.write(_MARKER + msgspec.json.encode(result) + b"\n")


if __name__ == "__main__":
    _main()
