"""Examples: each one runs unchanged, in the folder and with the effects that its comments describe."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from support.paths import ROOT

RUNWRIGHT = str(Path(sys.executable).with_name("runwright"))

pytestmark = pytest.mark.slow


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    return tmp_path


def runwright(folder: Path, *arguments: str, expect: int = 0) -> str:
    done = subprocess.run([RUNWRIGHT, *arguments], cwd=folder, capture_output=True, text=True, timeout=60)
    assert done.returncode == expect, done.stdout + done.stderr
    return done.stdout


def show(folder: Path) -> dict[str, Any]:
    return json.loads(runwright(folder, "show", "@last", "--json"))


def background(folder: Path, *arguments: str) -> subprocess.Popen[bytes]:
    with open(folder / "output", "wb") as output:
        return subprocess.Popen([RUNWRIGHT, *arguments], cwd=folder, stdout=output, stderr=output)


def until(folder: Path, holds: Any) -> dict[str, Any]:
    for _ in range(200):
        try:
            run = show(folder)
        except AssertionError:
            run = {}  # The run does not exist yet.
        if run and holds(run):
            return run
        time.sleep(0.1)
    raise AssertionError(run)


def test_every_example_is_named_here() -> None:
    assert {path.name for path in (ROOT / "examples").glob("*.yaml")} == {
        "hello.yaml", "etl.yaml", "files.yaml", "pause.yaml", "operator.yaml"
    }  # fmt: skip


@pytest.mark.parametrize("plan", ["hello", "files"])
def test_example_runs_to_completion(plan: str, folder: Path) -> None:
    runwright(folder, "run", f"examples/{plan}.yaml")
    assert show(folder)["status"] == "COMPLETED"


def test_etl_example_retries_its_flaky_step(folder: Path) -> None:
    runwright(folder, "run", "examples/etl.yaml", "--param", "day=2026-02-01")
    run = show(folder)
    assert run["status"] == "COMPLETED"
    extract = next(step for step in run["steps"] if step["stepId"] == "extract")
    assert (extract["logicalAttemptId"], extract["earlierAttempts"]) == (2, ["FAILED"])
    assert "503" not in runwright(folder, "logs", "@last", "report")


def test_a_run_is_paused_and_resumed_from_another_terminal(folder: Path) -> None:
    process = background(folder, "run", "examples/pause.yaml", "--param", "seconds=0.3")
    until(folder, lambda run: run["status"] == "RUNNING" and run["completedSteps"] >= 1)
    runwright(folder, "pause", "@last", "--reason", "the warehouse is being resized")
    run = until(folder, lambda run: run["status"] == "PAUSED" and "substatus" not in run)
    assert run["reason"] == "the warehouse is being resized"
    runwright(folder, "resume", "@last")
    assert process.wait(30) == 0, (folder / "output").read_text()
    assert show(folder)["status"] == "COMPLETED"


def test_run_waiting_for_an_operator_continues_after_a_retry(folder: Path) -> None:
    process = background(folder, "run", "examples/operator.yaml")
    until(folder, lambda run: run.get("substatus") == "embedded/WAITING_OPERATOR")
    (folder / "ready.txt").touch()
    runwright(folder, "retry", "@last", "deliver")
    assert process.wait(30) == 0, (folder / "output").read_text()
    run = show(folder)
    assert run["status"] == "COMPLETED"
    assert [step["logicalAttemptId"] for step in run["steps"]] == [1, 2, 1]
