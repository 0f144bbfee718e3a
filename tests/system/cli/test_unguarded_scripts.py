"""Scripts that open an app at their top level: shown, run and recovered without executing themselves again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from support.commands import Shell

UNGUARDED = """
import pathlib
import runwright as rw

@rw.step
def a() -> int:
    return 1

@rw.step{options}
def b(value: int) -> int:
    {body}
    return value + 1

@rw.plan
def flow():
    return b(a())

with rw.open("sqlite:///script/runs.db") as app:
    run = app.start(flow, run_id="r")
    snapshot = run.wait()
    print(snapshot.status, *(step.error.code for step in snapshot.steps if step.error is not None))
"""


def write(folder: Path, options: str = "", body: str = "pass") -> Path:
    file = folder / "script.py"
    file.write_text(UNGUARDED.format(options=options, body=body))
    return file


@pytest.mark.parametrize(
    "command", [("plan", "show"), ("plan", "validate"), ("plan", "hash"), ("plan", "graph"), ("run",)]
)
def test_commands_refuse_a_script_that_opens_an_app(runwright: Shell, tmp_path: Path, command: tuple[str, ...]) -> None:
    write(tmp_path)
    printed = runwright(*command, "script.py", exits=2) + runwright.stderr
    assert "OPEN_DURING_IMPORT" in printed
    assert 'if __name__ == "__main__":' in " ".join(printed.split())
    assert not (tmp_path / "script").exists()
    assert not (tmp_path / ".runwright").exists()


@pytest.mark.parametrize(
    "start",
    [
        "import threading\nthread = threading.Thread(target=main)\nthread.start()\nthread.join()",
        "import asyncio\nasyncio.run(open_async())",
    ],
)
def test_script_that_opens_an_app_elsewhere_is_not_executed(runwright: Shell, tmp_path: Path, start: str) -> None:
    """In a thread, or on an event loop."""
    code = UNGUARDED.format(options="", body="pass").replace("with rw.open", "def main():\n  with rw.open")
    code = code.replace("\n    run = ", "\n      run = ").replace("\n    snapshot", "\n      snapshot")
    code = code.replace("\n    print", "\n      print")
    opening = 'async def open_async():\n    async with rw.open_async("sqlite:///script/runs.db"): print("opened")\n'
    (tmp_path / "script.py").write_text(f"{code}\n{opening}\n{start}\n")
    done = runwright.process("plan", "hash", "script.py")
    assert b"OPEN_DURING_IMPORT" in done.stderr
    assert not (tmp_path / "script").exists()


def test_isolated_step_of_a_script_starts_no_other_run(tmp_path: Path) -> None:
    file = write(tmp_path, options='(step_class="isolation")')
    done = subprocess.run([sys.executable, file.name], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "FAILED OPEN_DURING_IMPORT", done


def test_recovery_of_a_script_ends(runwright: Shell, tmp_path: Path) -> None:
    file = write(tmp_path, body="pathlib.Path('began').touch(); import time; time.sleep(60)")
    process = subprocess.Popen([sys.executable, file.name], cwd=tmp_path, start_new_session=True)
    while not (tmp_path / "began").exists():
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    store = f"sqlite:///{tmp_path}/script/runs.db"
    runwright.process("recover", "--store", store)
    shown = json.loads(runwright("show", "r", "--json", "--store", store))
    assert (shown["status"], shown["steps"][1]["error"]["code"]) == ("FAILED", "OPEN_DURING_IMPORT")


GUARDED = """
import runwright as rw
from .numbers import ONE

@rw.step(step_class="isolation")
def a() -> int:
    return ONE

@rw.plan
def flow():
    return a()
"""


def test_plan_in_a_package_finds_its_modules(runwright: Shell, tmp_path: Path) -> None:
    package = tmp_path / "shop" / "jobs"
    package.mkdir(parents=True)
    for folder in (package, package.parent):
        (folder / "__init__.py").touch()
    (package / "numbers.py").write_text("ONE = 1\n")
    (package / "flow.py").write_text(GUARDED)
    runwright.check(runwright.process("run", "shop/jobs/flow.py", "--run-id", "r"))
    assert runwright("results", "get", "r").strip() == "1"


SPAWNED = """
import multiprocessing, pathlib, time
import runwright as rw

@rw.step
def slow() -> int:
    if not pathlib.Path("go").exists():
        pathlib.Path("began").touch()
        time.sleep(60)
    return 1

@rw.plan
def flow():
    return slow()

def main():
    with rw.open("sqlite:///spawned/runs.db") as app:
        app.start(flow, run_id="r").wait()

if __name__ == "__main__":
    child = multiprocessing.get_context("spawn").Process(target=main)
    child.start()
    child.join()
"""


def test_run_of_a_spawned_process_is_recovered(runwright: Shell, tmp_path: Path) -> None:
    (tmp_path / "spawned.py").write_text(SPAWNED)
    process = subprocess.Popen([sys.executable, "spawned.py"], cwd=tmp_path, start_new_session=True)
    while not (tmp_path / "began").exists():
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    (tmp_path / "go").touch()
    store = f"sqlite:///{tmp_path}/spawned/runs.db"
    runwright.check(runwright.process("recover", "--store", store))
    assert json.loads(runwright("show", "r", "--json", "--store", store))["status"] == "COMPLETED"
