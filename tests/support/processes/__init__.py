"""Scripts that tests start as processes; they end with the tests."""

from __future__ import annotations

import ctypes
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parent


def die_with_parent() -> None:
    """In a script: request SIGKILL when the parent ends, for any reason."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def start(script: str, *arguments: object, out: int | None = None, err: int | None = None) -> subprocess.Popen[bytes]:
    """Start a script. Call it from the main thread only, because a child dies with the thread that started it."""
    return subprocess.Popen(
        [sys.executable, str(FOLDER / script), *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE if out is None else out,
        stderr=subprocess.PIPE if err is None else err,
    )


def random_from_seed(usual: int | None = None) -> random.Random:
    """Return a reproducible generator: the seed is printed if a test fails, and read from RUNWRIGHT_SEED."""
    seed = int(os.environ.get("RUNWRIGHT_SEED") or usual or random.SystemRandom().randrange(2**32))
    print(f"RUNWRIGHT_SEED={seed}")
    return random.Random(seed)


def kill_count() -> int:
    return int(os.environ.get("RUNWRIGHT_KILLS") or 20)
