"""Ctrl-C in a terminal: a prompt to pause, resume, cancel or leave the run."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.commands import SLOW, Project
from support.terminal import Terminal
from support.waiting import wait_until


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    project = Project(tmp_path)
    project.plan(SLOW)
    yield project
    project.end()


def test_ctrl_c_prompts_to_pause_resume_or_cancel(project: Project) -> None:
    terminal = Terminal(project.folder, "run", "plan.yaml", "--run-id", "r1")
    terminal.wait_for("● b ", "Ctrl-C: pause, cancel or leave")
    wait_until(lambda: "b" in project.lines_of("out.txt"))  # The process of the step is in its own group by now.
    terminal.type("typed into the picture\n\x03")
    terminal.wait_for("[p]ause", "[c]ancel", "[l]eave it")
    terminal.type("p")
    terminal.wait_for("PAUSED DRAINING", "resume: runwright resume r1")
    terminal.type("\x03")
    terminal.wait_for("[r]esume")
    terminal.type("x")  # Other keys close the prompt and change nothing.
    terminal.wait_for("resume: runwright resume r1")
    terminal.type("\x03")
    terminal.wait_for("[r]esume")
    terminal.type("r")
    terminal.wait_for("RUNNING")
    terminal.type("\x03")
    terminal.wait_for("[p]ause")
    terminal.type("c")
    terminal.wait_for("CANCELLED  slow", "retry:  runwright rerun r1")
    assert terminal.echoes()  # The terminal settings are restored.
    assert terminal.end() == 1
    assert "typed" not in terminal.output
    kinds = [json.loads(line)["eventType"] for line in project("events", "r1", "--json").splitlines()]
    assert [kind for kind in kinds if kind in ("RunPaused", "RunResumed", "RunCancelled")] == [
        "RunPaused", "RunResumed", "RunCancelled",
    ]  # fmt: skip


def test_a_second_ctrl_c_leaves_the_run_for_later(project: Project) -> None:
    terminal = Terminal(project.folder, "run", "plan.yaml", "--run-id", "r1")
    terminal.wait_for("● b ")
    wait_until(lambda: "b" in project.lines_of("out.txt"))
    terminal.type("\x03")
    terminal.wait_for("[l]eave it")
    terminal.type("\x03")
    terminal.wait_for("runwright run --run-id r1", "runwright recover")
    assert terminal.end() == 130
    assert "[l]eave it" not in terminal.screen.text  # The prompt is erased, the progress view stays.
    assert project.snapshot("r1")["status"] == "RUNNING"
    project.continue_slow_step()
    assert "run r1 completed" in project("recover")


def test_ctrl_c_ends_watching_and_the_run_continues(project: Project) -> None:
    driver = project.start("run", "plan.yaml", "--run-id", "r1")
    assert driver.stdout is not None
    driver.stdout.readline()
    terminal = Terminal(project.folder, "watch", "r1", columns=60, lines=20)
    terminal.wait_for("● b ", "Ctrl-C ends watching")
    terminal.type("\x03")
    assert terminal.end() == 130
    project.continue_slow_step()
    assert driver.wait(20) == 0
