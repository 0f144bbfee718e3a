"""Facts about the machine that are needed to interpret the figures."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from time import perf_counter

import apsw

from .stopwatch import p50_ms


def facts(folder: Path) -> dict[str, str]:
    found = {
        "python": platform.python_version(),
        "sqlite": apsw.sqlite_lib_version(),
        "cores": str(os.cpu_count()),
        "system": f"{platform.system()} {platform.machine()}",
        "load": f"{os.getloadavg()[0]:.1f}",
        "fdatasync p50": f"{_fdatasync(folder):.2f} ms",
    }
    for package in ("apsw", "msgspec", "asyncpg", "dbos", "eventsourcing"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    return found


def _fdatasync(folder: Path, times: int = 100) -> float:
    """Return the p50 of fdatasync for one page, in milliseconds: the minimum cost of a durable commit."""
    path = folder / "fdatasync"
    latencies: list[float] = []
    file = os.open(path, os.O_CREAT | os.O_WRONLY)
    try:
        for _ in range(times):
            os.write(file, bytes(4096))
            start = perf_counter()
            os.fdatasync(file)
            latencies.append(perf_counter() - start)
    finally:
        os.close(file)
        path.unlink()
    return p50_ms(latencies)
