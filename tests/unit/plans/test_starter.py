"""The files that `runwright init` writes are valid and run unchanged."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

from runwright.plans.loader import load_plan
from runwright.plans.starter import PLAN_FILE, SETTINGS_FILE, starter_files
from runwright.tools.registry import builtin_tools


def test_the_starter_plan_has_three_steps_and_no_warnings() -> None:
    loaded = load_plan(starter_files()[PLAN_FILE], name=PLAN_FILE, tools=builtin_tools())
    assert [step.step_id for step in loaded.plan.steps] == ["greet", "count", "report"]
    assert loaded.warnings == ()


def test_the_starter_settings_name_the_default_store() -> None:
    assert tomllib.loads(starter_files()[SETTINGS_FILE]) == {"store": "sqlite:///.runwright/runs.db"}


def test_the_starter_plan_runs(tmp_path: Path) -> None:
    for name, text in starter_files().items():
        (tmp_path / name).write_text(text)
    command = [sys.executable, "-m", "runwright", "run", PLAN_FILE, "--param", "name=you"]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "COMPLETED" in result.stdout
