"""SIGKILL the engine at random times: the run completes, and no completed step is repeated."""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path

import pytest

import runwright as rw
from runwright.contract.timestamps import to_micros
from support import processes
from support.paths import TESTS

KILLS = int(os.environ.get("RUNWRIGHT_KILLS", "12"))
PROCESS = processes.FOLDER / "engine_process.py"

pytestmark = pytest.mark.slow


def chains(file: Path, seconds: float) -> dict[str, object]:
    """Three chains of ten steps, joined at the end, each step with a side effect."""
    steps: list[dict[str, object]] = []
    for chain in "abc":
        for number in range(10):
            step: dict[str, object] = {
                "id": f"{chain}{number}",
                "python": {"call": "support.side_effects:touch", "args": {"file": str(file), "seconds": seconds}},
            }
            if number:
                step["dependsOn"] = [f"{chain}{number - 1}"]
            steps.append(step)
    return {"plan": "chains", "order": "graph", "steps": steps}


def run_once(store: str, plan: Path, run_id: str, kill_after: float | None) -> bool:
    """Let a process drive the run, and return whether the run completed."""
    arguments = [sys.executable, str(PROCESS), store, str(plan), run_id]
    environment = {**os.environ, "PYTHONPATH": str(TESTS)}
    process = subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment)
    if kill_after is not None:
        time.sleep(kill_after)
        process.send_signal(signal.SIGKILL)
    out, err = process.communicate(timeout=60)
    assert kill_after is not None or process.returncode == 0, err.decode()[-2000:]
    return b"COMPLETED" in out


async def test_a_killed_engine_loses_nothing_and_repeats_nothing(durable_url: str, tmp_path: Path) -> None:
    dice = random.Random(KILLS)
    kills = 0
    rounds = 0
    while kills < KILLS:
        rounds += 1
        file, plan = tmp_path / f"effects-{rounds}", tmp_path / "plan.json"
        plan.write_text(json.dumps(chains(file, 0.05)))
        run_id = f"run-{rounds}"
        while kills < KILLS and not run_once(durable_url, plan, run_id, dice.uniform(0.3, 1.2)):
            kills += 1
        run_once(durable_url, plan, run_id, None)
        await check_run(durable_url, run_id, file)


async def check_run(store: str, run_id: str, file: Path) -> None:
    effects: dict[str, list[list[str]]] = defaultdict(list)
    for line in file.read_text().splitlines():
        effects[line.split()[0]].append(line.split())
    async with rw.open_log(store) as log:
        snapshot = await log.snapshot(run_id)
        records = await log.read(run_id)
        findings = [finding async for finding in log.verify(run_id)]
    assert snapshot.status == "COMPLETED"
    assert findings == []
    assert len(snapshot.steps) == 30
    ends = [record for record in records if record.event_type == "StepCompleted"]
    assert sorted(record.step_id or "" for record in ends) == sorted(effects)
    for record in ends:
        lines = effects[record.step_id or ""]
        assert all(int(line[3]) <= to_micros(record.persisted_at) for line in lines), "the step ran again after its end"
        assert {line[1] for line in lines} == {"1"}, "a crash counted as a retry"
        assert len({line[4] for line in lines}) == 1, "the idempotency token changed"
        assert record.engine_attempt_id == max(int(line[2]) for line in lines)
        assert record.engine_attempt_id > 1 or len(lines) == 1


async def test_killed_engine_resumes_its_sub_runs(durable_url: str, tmp_path: Path) -> None:
    dice = random.Random(7)
    file, child, plan = tmp_path / "effects", tmp_path / "child.json", tmp_path / "plan.json"
    touch = {"call": "support.side_effects:touch", "args": {"file": str(file), "seconds": 0.1}}
    child.write_text(json.dumps({"plan": "child", "steps": [{"id": f"s{n}", "python": touch} for n in range(6)]}))
    subs = [{"id": f"sub{number}", "plan": {"path": str(child)}, "dependsOn": []} for number in range(3)]
    last_step = {"id": "last", "python": touch, "dependsOn": ["sub0", "sub1", "sub2"]}
    plan.write_text(json.dumps({"plan": "parent", "order": "graph", "steps": [*subs, last_step]}))
    for _ in range(max(4, KILLS // 10)):
        if run_once(durable_url, plan, "run", dice.uniform(0.4, 1.0)):
            break
    run_once(durable_url, plan, "run", None)
    async with rw.open_log(durable_url) as log:
        for run_id in ("run", "run/sub0", "run/sub1", "run/sub2"):
            snapshot = await log.snapshot(run_id)
            assert snapshot.status == "COMPLETED"
            assert [finding async for finding in log.verify(run_id)] == []
            ends = {record.step_id: record for record in await log.read(run_id) if record.event_type == "StepCompleted"}
            for line in file.read_text().splitlines():
                step_id, _, _, when, token = line.split()
                if step_id in ends and token == token_of(run_id, step_id):
                    assert int(when) <= to_micros(ends[step_id].persisted_at), "the step ran again after its end"
        assert len((await log.list_runs()).runs) == 4


def token_of(run_id: str, step_id: str) -> str:
    return hashlib.sha256(f"{run_id}|{step_id}|1".encode()).hexdigest()


async def test_a_long_step_resumes_at_its_last_checkpoint(durable_url: str, tmp_path: Path) -> None:
    file, plan = tmp_path / "numbers", tmp_path / "plan.json"
    step = {
        "id": "count",
        "python": {"call": "support.side_effects:count_up", "args": {"file": str(file), "target": 200}},
    }
    plan.write_text(json.dumps({"plan": "count", "steps": [step]}))
    for _ in range(3):
        run_once(durable_url, plan, "run-1", 0.9)
    run_once(durable_url, plan, "run-1", None)
    numbers = [int(line) for line in file.read_text().split()]
    assert len(set(numbers)) >= 197  # each kill between checkpoint and file can lose one line
    assert len(numbers) == len(set(numbers)), "work before a checkpoint was repeated"
    async with rw.open_log(durable_url) as log:
        assert (await log.snapshot("run-1")).status == "COMPLETED"
