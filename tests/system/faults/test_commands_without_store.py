"""Commands wait while their store is unavailable, and end as their runs do.

These tests start their own servers, because they kill them.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.commands import runwright
from support.components import Nats, Postgres, have_or_skip
from support.waiting import wait_until

pytestmark = pytest.mark.slow

PLAN = """
plan: p
steps:
  - {id: first, shell: "echo {{ run.id | quote }} >> executed; sleep 2"}
  - {id: second, shell: "while ! test -e go; do sleep 0.05; done"}
"""
OUTAGE = 7.0  # seconds: longer than a lease

PLAYBOOK = """
apiVersion: noetl.io/v10
kind: Playbook
metadata: {name: kept}
workflow:
- step: a
  tool: {kind: python, code: "result = 'x' * 100000", spec: {result: {store: {scope: execution}}}}
  next: {arcs: [{step: b}]}
- step: b
  tool: {kind: shell, command: "touch at_work; while ! test -e go; do sleep 0.05; done"}
"""


@pytest.fixture
def server() -> Iterator[Postgres]:
    started = have_or_skip("postgres", Postgres)
    assert isinstance(started, Postgres)
    yield started
    started.stop()


@pytest.fixture
def objects() -> Iterator[Nats]:
    started = have_or_skip("nats", Nats)
    assert isinstance(started, Nats)
    yield started
    started.stop()


def start_command(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "runwright", *arguments]
    return subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def test_commands_wait_for_an_outage_longer_than_the_lease(
    tmp_path: Path, server: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RUNWRIGHT_STORE", server.create_database("outage"))
    (tmp_path / "plan.yaml").write_text(PLAN)
    store_option = ("--store", server.url("outage"))

    killed = start_command(tmp_path, "run", "plan.yaml", "--run-id", "left")
    wait_until(lambda: "StepStarted" in runwright(tmp_path, "events", "left", *store_option).stdout)
    killed.kill()
    killed.communicate()
    running = start_command(tmp_path, "run", "plan.yaml", "--run-id", "own")
    recovering = start_command(tmp_path, "recover")
    wait_until(lambda: "StepStarted" in runwright(tmp_path, "events", "own", *store_option).stdout)
    wait_until(lambda: "RECOVERING" not in runwright(tmp_path, "list", *store_option).stdout)
    server.kill()
    time.sleep(OUTAGE)
    server.start()
    (tmp_path / "go").touch()
    for process in (running, recovering):
        output, _ = process.communicate(timeout=60)
        assert process.returncode == 0, output
    listed = runwright(tmp_path, "list", *store_option).stdout
    assert listed.count("COMPLETED") == 2, listed
    executed = (tmp_path / "executed").read_text().split()
    assert executed.count("own") == 1, "the step that ended during the outage was repeated"
    assert runwright(tmp_path, "alerts", "own", *store_option).stdout == "No alerts.\n"


def test_command_completes_when_the_result_store_is_gone(tmp_path: Path, objects: Nats) -> None:
    (tmp_path / "runwright.toml").write_text(
        f'[results]\nstore = "nats_object"\n[results.nats_object]\nurl = "{objects.url}"\n'
    )
    (tmp_path / "kept.yaml").write_text(PLAYBOOK)
    process = start_command(tmp_path, "run", "kept.yaml", "--run-id", "r", "--store", "sqlite:///runs.db")
    wait_until((tmp_path / "at_work").exists)
    objects.kill()
    (tmp_path / "go").touch()
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 0, output
    assert "Traceback" not in output
    assert any(line.startswith("COMPLETED") for line in output.splitlines()), output
