"""Signals from another terminal: each is decided, applied and reported in a line."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.commands import SLOW, Project, parsed
from support.waiting import wait_until

WAITS = """
plan: waits
onFailure: wait
order: graph
params: {word: first}
steps:
  - {id: gate, shell: "test -e open || { echo it is shut >&2; exit 4; }"}
  - {id: extra, shell: "exit 5"}
  - {id: last, dependsOn: [gate, extra], shell: "echo {{ params.word | quote }}"}
"""


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    project = Project(tmp_path)
    yield project
    project.end()


def test_operator_retries_and_skips_failed_steps(project: Project) -> None:
    driver = project.start("run", project.plan(WAITS), "--run-id", "r1")
    assert driver.stdout is not None
    output = b""
    while output.count(b"  skip:   ") < 2:
        output += driver.stdout.readline()
    assert b"FAILED step gate  EXIT_STATUS exit code 4: it is shut\n  | it is shut\n" in output
    assert b"  retry:  runwright retry r1 gate\n" in output
    (project.folder / "open").touch()
    answer = project("retry", "r1", "gate")
    assert answer == "ACCEPTED RETRY_STEP: the step is retried. The run is RUNNING.\n" or "1 step(s) failed" in answer
    update = ("--payload", '{"params": {"word": "second"}}')
    project("signal", "r1", "update_params", *update, exits=2)
    assert project.stderr.startswith("AUTHZ_REASON_REQUIRED")
    assert "from the next step on" in project("signal", "r1", "update_params", *update, "--reason", "better")
    decision = json.loads(project("skip", "r1", "extra", "--reason", "not today", "--json"))
    assert (decision["decision"], decision["engineResult"]) == ("ACCEPTED", "SKIPPED")
    assert driver.wait(20) == 0
    assert project("logs", "r1", "last") == "second\n"
    records = parsed(project("events", "r1", "--json"))
    kinds = [record["eventType"] for record in records]
    assert kinds.count("SignalAccepted") == kinds.count("SignalProcessed") == 3
    assert kinds.count("SignalRejected") == 1


def test_run_in_another_process_is_paused_and_cancelled(project: Project) -> None:
    driver = project.start("run", project.plan(SLOW), "--run-id", "r1")
    wait_until(lambda: project.lines_of("out.txt") == ["a", "b"])
    assert project("pause", "r1", "--reason", "coffee").startswith(
        "ACCEPTED PAUSE: no new steps start. The run is PAUSED."
    )
    project.continue_slow_step()
    wait_until(lambda: project.snapshot("r1").get("substatus") is None)
    assert project.lines_of("out.txt") == ["a", "b"]
    assert project("cancel", "@last") == "ACCEPTED CANCEL: the run has ended. The run is CANCELLED.\n"
    assert b"  resume:  runwright resume r1\n" in driver.communicate(timeout=20)[0]
    assert driver.returncode == 1
    project("resume", "r1", exits=2)
    assert project.stderr.startswith("RUN_TERMINAL")
    rejected = json.loads(project("resume", "r1", "--json", exits=2))
    assert (rejected["decision"], rejected["code"]) == ("REJECTED", "RUN_TERMINAL")


def test_abandoned_run_accepts_signals_and_prints_next_command(project: Project) -> None:
    driver = project.start("run", project.plan(SLOW), "--run-id", "r1")
    wait_until(lambda: project.lines_of("out.txt") == ["a", "b"])
    driver.kill()
    driver.communicate()
    signal_id = str(uuid.uuid4())
    lines = project("signal", "r1", "PAUSE", "--signal-id", signal_id).splitlines()
    assert lines[0].startswith("ACCEPTED PAUSE")
    hint = "Resume it with: runwright resume r1  then continue with: runwright recover"
    assert lines[1] == f"No process is driving this run. {hint}"
    again = project("signal", "r1", "PAUSE", "--signal-id", signal_id).splitlines()
    assert again == lines, "a signal id is decided once"
    resumed = project("resume", "r1").splitlines()
    assert (
        resumed[1] == "No process is driving this run. Continue with: runwright run --run-id r1  (or runwright recover)"
    )
    project("signal", "r1", "EMERGENCY_STOP", "--reason", "smoke")
    assert project.snapshot("r1")["status"] == "CANCELLED"
    made = project("signal", "r1", "RETRY_RUN").splitlines()
    assert made[1].startswith("Continue with: runwright run --run-id ")
    assert project.snapshot()["originRunId"] == "r1"


def test_invalid_signals_are_refused(project: Project) -> None:
    project("pause", "@last", exits=3)  # There is no store yet.
    project("run", project.plan("plan: p\nsteps:\n  - {id: s, noop: {}}\n"), "--run-id", "r1")
    for arguments in (["DANCE"], ["PAUSE", "--payload", "{"], ["PAUSE", "--payload", "[]"], ["SKIP_STEP"]):
        project("signal", "r1", *arguments, exits=2)
        assert project.stderr.startswith("SIGNAL_INVALID_PAYLOAD")
    project("pause", "nobody", exits=2)
    assert project.stderr.startswith("RUN_NOT_FOUND")
