"""Approvals and events for a run, sent from another terminal."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from support.commands import Shell

PLAN = """
plan: release
steps:
  - id: ok
    approval: {prompt: "Release?", fields: {share: integer}}
  - {id: paid, wait: {event: paid}}
  - {id: ship, shell: "echo shipping {{ steps.ok.result.answer.share | quote }} for {{ steps.paid.result.payload.amount | quote }}"}
"""


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    (tmp_path / "plan.yaml").write_text(PLAN)
    return Shell(tmp_path)


def until(shell: Shell, text: str, *command: str) -> None:
    for _ in range(200):
        if text in shell(*command):
            return
        time.sleep(0.05)
    pytest.fail(f"{text!r} was not printed in time")


def test_running_run_receives_an_approval_and_an_event(shell: Shell) -> None:
    with (shell.folder / "out.txt").open("w") as out:
        driver = subprocess.Popen(
            [sys.executable, "-m", "runwright", "run", "plan.yaml", "--run-id", "r1"],
            cwd=shell.folder, env=shell.environment, stdout=out, stderr=out,
        )  # fmt: skip
        (shell.folder / ".runwright").mkdir(exist_ok=True)
        while driver.poll() is None and not (shell.folder / ".runwright" / "runs.db").exists():
            time.sleep(0.02)
        until(shell, "WAITING_APPROVAL", "list")
        shell("approve", "r1", "--field", "share=many", exits=2)
        assert "an integer" in shell.stderr
        assert "the step continues" in shell("approve", "r1", "ok", "--field", "share=20", "--reason", "fine")
        assert "the waiting step continues" in shell("send", "r1", "paid", "--payload", '{"amount": 5}')
        assert driver.wait(timeout=30) == 0
    output = (shell.folder / "out.txt").read_text()
    assert "step ok requests approval: Release? (fields: share)" in output
    assert "answer:  runwright approve r1 ok --field share=..." in output
    assert "step paid waits for event paid" in output
    assert "shipping 20 for 5" in shell("logs", "r1", "ship")


def test_denied_run_fails_with_the_reason(shell: Shell) -> None:
    driver = subprocess.Popen(
        [sys.executable, "-m", "runwright", "run", "plan.yaml", "--run-id", "r1"],
        cwd=shell.folder, env=shell.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    while driver.poll() is None and not (shell.folder / ".runwright" / "runs.db").exists():
        time.sleep(0.02)
    until(shell, "WAITING_APPROVAL", "list")
    assert "the step has failed" in shell("deny", "r1", "--reason", "not on a friday")
    output, _ = driver.communicate(timeout=30)
    assert driver.returncode == 1
    assert b"APPROVAL_DENIED" in output
    assert b"not on a friday" in output


def test_send_refuses_a_payload_that_is_not_json(shell: Shell) -> None:
    shell("run", "plan.yaml", "--runtime", "mock", "--run-id", "r1", "--detach")
    until(shell, "WAITING_APPROVAL", "list")
    shell("send", "r1", "paid", "--payload", "{amount", exits=2)
    assert "SIGNAL_INVALID_PAYLOAD" in shell.stderr
    assert "stored until one does" in shell("send", "r1", "paid", "--payload", '{"amount": 5}')
    shell("cancel", "r1")
