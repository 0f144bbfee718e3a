"""The working directory belongs to the run: relative paths of its steps mean the same wherever it is continued."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import runwright as rw
from support.commands import Shell
from support.waiting import wait_until

PLAN = """
plan: places
steps:
  - {id: make, shell: "echo made here > made.txt; mkdir sub"}
  - {id: hold, shell: "touch began; test -e go || sleep 60"}
  - {id: read, shell: "cat made.txt"}
  - {id: inside, shell: {command: "basename $PWD", cwd: sub}}
  - {id: store, artifact: {put: made.txt}}
  - {id: fetch, artifact: {get: "{{ steps.store.result }}", to: fetched.txt}}
  - {id: table, sql: {connection: "sqlite:///here.db", query: "create table if not exists t (n int)"}}
  - {id: import, python: {call: "places:where"}}
  - {id: process, class: isolation, python: {call: "places:where"}}
  - {id: child, plan: {path: child.yaml}}
"""
CHILD = "plan: child\nsteps:\n  - {id: inner, shell: cat made.txt}\n"
MODULE = "import os\n\ndef where():\n    return os.getcwd()\n"


@pytest.fixture
def started(tmp_path: Path) -> Path:
    """The folder in which a run was started, and killed in its second step."""
    folder = tmp_path / "origin"
    folder.mkdir()
    for name, text in (("plan.yaml", PLAN), ("child.yaml", CHILD), ("places.py", MODULE)):
        (folder / name).write_text(text)
    command = [sys.executable, "-m", "runwright", "run", "plan.yaml", "--run-id", "r"]
    process = subprocess.Popen(command, cwd=folder, start_new_session=True, stdout=subprocess.DEVNULL)
    wait_until(lambda: (folder / "began").exists())
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    (folder / "go").touch()
    return folder


def results(folder: Path, run_id: str) -> dict[str, Any]:
    with rw.open(f"sqlite:///{folder}/.runwright/runs.db") as app:
        run = app.run(run_id)
        assert run.wait(timeout=60).status == "COMPLETED", run.snapshot()
        return {step.step_id: run.result(step.step_id) for step in run.snapshot().steps}


def test_recovery_elsewhere_runs_steps_where_the_run_began(started: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    Shell(elsewhere).process("recover", "--store", f"sqlite:///{started}/.runwright/runs.db")
    found = results(started, "r")
    assert found["read"]["stdout"] == "made here\n"
    assert found["inside"]["stdout"] == "sub\n"
    assert (started / "fetched.txt").read_text() == "made here\n"
    assert (started / "here.db").exists()
    assert found["process"] == str(started)
    assert not [file.name for file in elsewhere.iterdir() if file.name != ".runwright"]


def test_rerun_elsewhere_uses_the_files_of_its_origin(started: Path, tmp_path: Path) -> None:
    store = f"sqlite:///{started}/.runwright/runs.db"
    Shell(started).process("recover", "--store", store)
    Shell(tmp_path).process("rerun", "r", "--from", "read", "--run-id", "again", "--store", store)
    assert results(started, "again")["read"]["stdout"] == "made here\n"


def test_missing_working_directory_is_named(tmp_path: Path) -> None:
    with rw.open(f"sqlite:///{tmp_path}/runs.db") as app:
        run = app.start({"plan": "p", "steps": [{"id": "a", "shell": {"command": "true", "cwd": "not-there"}}]})
        run.wait()
        (step,) = run.snapshot().steps
        assert step.error is not None
        assert step.error.code == "INVALID_INPUT"
        assert str(Path.cwd() / "not-there") in (step.error.message or "")
