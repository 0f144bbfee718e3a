"""Memory of loops with very many iterations: it does not grow with their results."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.playbooks import noop, playbook, python_task

SIZE = {"quick": 2_000, "full": 5_000, "soak": 100_000}[os.environ.get("RUNWRIGHT_PROFILE", "quick")]
ALLOWED = 120  # megabytes beyond a loop of a hundredth; 100,000 pages of 100 KB are 10 GB

RUN = """
import asyncio, json, resource, sys
from pathlib import Path
from runwright.control.bootstrap import open_operations

async def run(operations, size):
    document = json.loads(Path("playbook.json").read_text())
    document["workload"]["size"] = size
    run_id = await operations.start(operations.load(document))
    snapshot = await operations.wait(run_id)
    assert snapshot.status == "COMPLETED", snapshot
    assert snapshot.steps[0].iterations.done == size
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024

async def main(size):
    async with open_operations("sqlite:///runs.db") as operations:
        print(await run(operations, size // 100), await run(operations, size))

asyncio.run(main(int(sys.argv[1])))
"""

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("large", [False, True], ids=["small results", "large results"])
def test_a_wide_loop_takes_no_more_memory_than_a_narrow_one(tmp_path: Path, large: bool) -> None:
    rows = "result = {'rows': ['x' * 100] * 1000, 'n': n}" if large else "result = {'n': n}"
    step_scoped = {"spec": {"result": {"store": {"scope": "step"}, "select": [{"path": "n", "as": "n"}]}}}
    tasks = [{"fetch": {**python_task(rows, n="{{ iter.n }}"), **step_scoped}}, {"use": noop("{{ fetch.n }}")}]
    loop = {"in": "{{ range(size) }}", "iterator": "n", "spec": {"mode": "parallel", "max_in_flight": 16}}
    document = playbook({"step": "a", "loop": loop, "tool": tasks}, workload={"size": 1})
    (tmp_path / "playbook.json").write_text(json.dumps(document))
    size = SIZE if not large else SIZE // 10
    done = subprocess.run(
        [sys.executable, "-c", RUN, str(size)], cwd=tmp_path, capture_output=True, text=True, timeout=900, check=False
    )
    assert done.returncode == 0, done.stderr
    narrow, wide = map(int, done.stdout.split())
    assert wide - narrow < ALLOWED, done.stdout
    assert not list(tmp_path.glob(".runwright/results/tasks/step/*/*/*")), (
        "results in the scope of the step are deleted with it"
    )
