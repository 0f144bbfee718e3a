"""Tools of an installed package: available if it loads, reported if it does not."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from support.paths import EXAMPLES

PACKAGE = EXAMPLES / "tool-package"
PLAN = """
plan: p
params: {title: "Hello, World!"}
steps:
  - {id: a, slug: "{{ params.title }}"}
  - {id: b, shell: "echo {{ steps.a.result | quote }}"}
"""

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("package")
    shutil.copytree(PACKAGE, folder / "source")
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation"]
    subprocess.run([*command, "--target", str(folder / "site"), str(folder / "source")], check=True)
    return folder / "site"


def runwright(folder: Path, path: Path | None, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RUNWRIGHT_")}
    if path is not None:
        environment["PYTHONPATH"] = str(path)
    command = [sys.executable, "-m", "runwright", *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def test_an_installed_tool_is_a_kind_of_step(installed: Path, tmp_path: Path) -> None:
    (tmp_path / "plan.yaml").write_text(PLAN)
    done = runwright(tmp_path, installed, "run", "plan.yaml")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "hello-world" in runwright(tmp_path, installed, "logs", "@last", "b").stdout
    (tmp_path / "bad.yaml").write_text("plan: p\nsteps:\n  - {id: a, slug: {text: x, longest: 0}}\n")
    bad = runwright(tmp_path, installed, "plan", "validate", "bad.yaml")
    assert bad.returncode == 2
    assert "at least 1" in bad.stdout


def test_without_the_package_the_kind_is_unknown(tmp_path: Path) -> None:
    (tmp_path / "plan.yaml").write_text(PLAN)
    done = runwright(tmp_path, None, "run", "plan.yaml")
    assert done.returncode == 2
    assert "slug" in done.stderr


def test_broken_tool_package_is_reported_and_runs_continue(installed: Path, tmp_path: Path) -> None:
    broken = tmp_path / "site"
    shutil.copytree(installed, broken)
    (broken / "runwright_slug" / "__init__.py").write_text("1 / 0")
    (tmp_path / "plan.yaml").write_text("plan: p\nsteps:\n  - {id: a, noop: {}}\n")
    done = runwright(tmp_path, broken, "run", "plan.yaml")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Loading tool" in done.stdout + done.stderr
