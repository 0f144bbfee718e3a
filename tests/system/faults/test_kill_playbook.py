"""SIGKILL in the middle of a pipeline: the run continues at the task that was running, with its earlier results."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

import runwright as rw
from runwright.contract.noetl.checker import NoetlChecker
from runwright.contract.noetl.view import noetl_event
from support import processes
from support.engine import engine
from support.playbooks import playbook, python_task
from support.waiting import until

PROCESS = processes.FOLDER / "engine_process.py"
NOTE = "with open(file, 'a') as notes:\n    notes.write(f'{x}/TASK\\n')\n"
WAIT = "import os, time\nwhile x == 57 and not os.path.exists(go):\n    time.sleep(0.01)\n"

pytestmark = pytest.mark.slow


async def wait_for_the_last_iteration(store: str) -> None:
    """Wait until all iterations but one are done and the third task of iteration 57 has started."""

    async def is_last_iteration() -> bool:
        async with rw.open_log(store) as log:
            try:
                records = await log.read("run-1", limit=10_000)
            except rw.RunwrightError:
                return False  # the run does not exist yet
        kinds = [record.event_type for record in records]
        return kinds.count("LoopIterationDone") == 79 and "TaskStarted many[57]/three" in {
            f"{record.event_type} {record.step_id}" for record in records
        }

    await until(is_last_iteration)


async def test_killed_playbook_resumes_at_the_running_task(durable_url: str, tmp_path: Path) -> None:
    notes, go = tmp_path / "notes", tmp_path / "go"
    inputs = {"file": str(notes), "x": "{{ iter.x }}"}
    pipeline = [
        {
            "one": {
                **python_task(NOTE.replace("TASK", "one") + "result = x", **inputs),
                "set": {"iter.mine": "{{ output.data * 2 }}"},
            }
        },
        {"two": python_task(NOTE.replace("TASK", "two") + "result = x", **inputs)},
        {
            "three": python_task(
                NOTE.replace("TASK", "three") + WAIT + "result = mine + two",
                **inputs,
                go=str(go),
                mine="{{ iter.mine }}",
                two="{{ two }}",
            )
        },
    ]
    loop = {"in": "{{ range(80) }}", "iterator": "x", "spec": {"mode": "parallel", "max_in_flight": 4}}
    document = playbook(
        {
            "step": "many",
            "loop": loop,
            "tool": pipeline,
            "next": {"arcs": [{"step": "end", "args": {"all": "{{ many }}"}}]},
        },
        {"step": "end", "tool": python_task("result = sum(all)", all="{{ args.all }}")},
    )
    file = tmp_path / "playbook.yaml"
    file.write_text(json.dumps(document))
    arguments = [sys.executable, str(PROCESS), durable_url, str(file), "run-1"]
    with subprocess.Popen(arguments, cwd=tmp_path, env=dict(os.environ), stdout=subprocess.PIPE) as process:  # noqa: ASYNC220
        try:
            await wait_for_the_last_iteration(durable_url)
            await until(lambda: asyncio.to_thread(lambda: "57/three" in notes.read_text()))
        finally:
            process.kill()
    go.touch()
    async with engine(durable_url, recover=True) as operations:
        snapshot = await operations.wait("run-1", 30)
        assert snapshot.status == "COMPLETED"
        assert await operations.run_result("run-1") == sum(3 * x for x in range(80))
        records = await operations.log.read("run-1", limit=10_000)
    done = Counter(notes.read_text().split())
    assert {name: count for name, count in done.items() if count > 1} == {"57/three": 2}
    assert len(done) == 240
    assert [record.event_type for record in records].count("LoopDone") == 1
    assert NoetlChecker().check(map(noetl_event, records)) == []
