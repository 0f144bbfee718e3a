"""The processes that these tests start: scripts beside this file, gone when the tests are."""

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
    """In a script: be killed when whoever started it is gone, however it went."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def start(script: str, *arguments: object, out: int | None = None, err: int | None = None) -> subprocess.Popen[bytes]:
    """Start a script. Only from the main thread: a thread that ends takes its children along."""
    return subprocess.Popen(
        [sys.executable, str(FOLDER / script), *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE if out is None else out,
        stderr=subprocess.PIPE if err is None else err,
    )


def random_from_seed(usual: int | None = None) -> random.Random:
    """Chance that can be had again: the seed is shown when a test fails, and taken from RUNWRIGHT_SEED."""
    seed = int(os.environ.get("RUNWRIGHT_SEED") or usual or random.SystemRandom().randrange(2**32))
    print(f"RUNWRIGHT_SEED={seed}")
    return random.Random(seed)


def kill_count() -> int:
    return int(os.environ.get("RUNWRIGHT_KILLS") or 20)
