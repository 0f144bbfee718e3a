"""A command checks, in its own process, that the lease under which it was started is still held."""

from __future__ import annotations

import math
import sys
import time
from pathlib import Path

import pytest

from runwright.tools.base import StepNotStarted
from runwright.tools.child_process import ChildProcess

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc/uptime")


async def execute(file: Path, remaining: float) -> tuple[int, bytes]:
    """Append to a file in a process with a lease; return its exit status and output."""
    output: list[bytes] = []
    process = ChildProcess(
        ["/bin/sh", "-c", 'echo executed >> "$0"; echo out; exit 3', str(file)],
        env={},
        write=lambda _, data: output.append(data),
        lease_end=time.clock_gettime(time.CLOCK_BOOTTIME) + remaining,
    )
    return await process.finish(lambda: 1.0), b"".join(output)


@pytest.mark.parametrize("remaining", [5.0, math.inf])
async def test_command_is_executed_under_a_valid_lease(tmp_path: Path, remaining: float) -> None:
    assert await execute(tmp_path / "file", remaining) == (3, b"out\n")
    assert (tmp_path / "file").read_text() == "executed\n"


async def test_command_is_not_executed_after_the_lease(tmp_path: Path) -> None:
    with pytest.raises(StepNotStarted):
        await execute(tmp_path / "file", -0.5)
    assert not (tmp_path / "file").exists()
