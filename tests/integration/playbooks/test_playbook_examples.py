"""The example playbooks: each is run with the command in its comments and has the expected result."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from runwright.contract.noetl.checker import NoetlChecker
from runwright.contract.noetl.view import noetl_event
from support.engine import engine
from support.flaky_server import flaky_server
from support.paths import EXAMPLES

PLAYBOOKS = EXAMPLES / "playbooks"
RUNWRIGHT = str(Path(sys.executable).with_name("runwright"))

pytestmark = pytest.mark.slow


async def run_example(folder: Path, name: str, *params: str) -> Any:
    """Run an example and return its result."""
    arguments = [RUNWRIGHT, "run", str(PLAYBOOKS / f"{name}.yaml"), "--run-id", "r"]
    for param in params:
        arguments += ["--param", param]
    done = await asyncio.to_thread(subprocess.run, arguments, cwd=folder, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    async with engine(f"sqlite:///{folder}/.runwright/runs.db") as operations:
        records = await operations.log.read("r", limit=10_000)
        assert NoetlChecker().check(map(noetl_event, records)) == []
        return await operations.run_result("r")


def test_every_example_has_a_test() -> None:
    found = {path.stem for path in PLAYBOOKS.glob("*.yaml")}
    assert found == {"control_flow", "pagination", "fan_out", "errors", "storage_tiers"}


async def test_control_flow(tmp_path: Path) -> None:
    assert await run_example(tmp_path, "control_flow") == "It is cool: go for a walk."


async def test_control_flow_takes_the_branch_for_heat(tmp_path: Path) -> None:
    found = await run_example(tmp_path, "control_flow", "temperature=31")
    assert found == "It is hot: find some shade, and take water along."


async def test_pagination(tmp_path: Path) -> None:
    found = await run_example(tmp_path, "pagination")
    assert found == {"rows": [{"orders": 6, "pages": 3}], "row_count": 1}


async def test_pagination_reads_the_api_of_a_parameter(tmp_path: Path) -> None:
    with flaky_server() as server:
        found = await run_example(tmp_path, "pagination", f"api={server.url}/pages")
    assert found == {"rows": [{"orders": 6, "pages": 3}], "row_count": 1}


async def test_fan_out(tmp_path: Path) -> None:
    assert await run_example(tmp_path, "fan_out") == {"lines": 3, "words": 19, "longest": "acknowledged"}


async def test_errors(tmp_path: Path) -> None:
    assert await run_example(tmp_path, "errors") == "3 done, 1 failed, after 3 tries"


async def test_errors_gives_up_after_its_retries(tmp_path: Path) -> None:
    assert await run_example(tmp_path, "errors", "good_after=9") == "gave up: ConnectionError: busy"


async def test_storage_tiers(tmp_path: Path) -> None:
    found = await run_example(tmp_path, "storage_tiers")
    assert found == {"rows": 12_000, "store": "local"}
    stored = [path.relative_to(tmp_path).parts[3] for path in tmp_path.glob(".runwright/results/tasks/*/*/*/*")]
    assert stored == ["expiring"]  # the pages are deleted at the end of the run
