"""Status of runs whose process has died."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

PLAN = """
plan: p
steps:
  - {id: first, shell: "touch began; sleep 0.3"}
  - {id: second, shell: "test -e go || sleep 60"}
"""


def runwright(folder: Path, *arguments: str) -> str:
    done = subprocess.run(_command(*arguments), cwd=folder, env=_environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def _command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "runwright", *arguments]


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("RUNWRIGHT_")}


def test_run_of_a_killed_process_is_shown_as_recovering(tmp_path: Path) -> None:
    (tmp_path / "plan.yaml").write_text(PLAN)
    command = _command("run", "plan.yaml", "--run-id", "r")
    with subprocess.Popen(command, cwd=tmp_path, env=_environment(), stdout=subprocess.DEVNULL) as process:
        deadline = time.monotonic() + 20
        while not (tmp_path / "began").exists():
            assert time.monotonic() < deadline
            time.sleep(0.02)
        assert json.loads(runwright(tmp_path, "list", "--json"))["substatus"] is None, "the process is alive"
        process.kill()
    row = json.loads(runwright(tmp_path, "list", "--json"))
    assert (row["status"], row["substatus"]) == ("RUNNING", "RECOVERING")
    assert "RUNNING RECOVERING" in runwright(tmp_path, "list")
    shown = runwright(tmp_path, "show", "r")
    assert "RUNNING RECOVERING" in shown
    assert "Continue with: runwright recover" in shown
    assert json.loads(runwright(tmp_path, "show", "r", "--json"))["substatus"] == "RECOVERING"
    assert "RECOVERING" not in runwright(tmp_path, "show", "r", "--at", "2"), "the substatus is not part of the past"
    (tmp_path / "go").touch()
    runwright(tmp_path, "recover")
    row = json.loads(runwright(tmp_path, "list", "--json"))
    assert (row["status"], row["substatus"]) == ("COMPLETED", None)
