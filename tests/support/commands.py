"""Run the `runwright` command as a process in a folder of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

SLOW = """
plan: slow
steps:
  - {id: a, shell: "echo a >> out.txt"}
  - {id: b, shell: "echo b >> out.txt; while [ ! -e go ]; do sleep 0.05; done; echo b is done"}
  - {id: c, shell: "echo c >> out.txt"}
"""


class Shell:
    """Runs `runwright` in a folder of its own, without a terminal."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith("RUNWRIGHT_")}

    def __call__(self, *arguments: str, stdin: bytes = b"", exits: int = 0, **variables: str) -> str:
        done = self.process(*arguments, stdin=stdin, **variables)
        assert done.returncode == exits, done.stdout.decode() + done.stderr.decode()
        assert b"Traceback" not in done.stderr
        self.stderr = done.stderr.decode()
        return done.stdout.decode()

    def process(
        self, *arguments: str | bytes, stdin: bytes = b"", **variables: str
    ) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            [sys.executable, "-m", "runwright", *arguments],
            cwd=self.folder,
            input=stdin,
            capture_output=True,
            env={**self.environment, **variables},
            timeout=120,
        )


class Project(Shell):
    """A folder with plans, and processes that run in the background."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.started: list[subprocess.Popen[bytes]] = []

    def plan(self, text: str, name: str = "plan.yaml") -> str:
        (self.folder / name).write_text(text)
        return name

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        def hear_ctrl_c() -> None:
            signal.signal(signal.SIGINT, signal.SIG_DFL)  # a shell that runs us in the background has it ignored

        process = subprocess.Popen(
            [sys.executable, "-m", "runwright", *arguments],
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=self.environment,
            preexec_fn=hear_ctrl_c,
        )
        self.started.append(process)
        return process

    def let_go(self) -> None:
        """Let the slow step of SLOW end."""
        (self.folder / "go").touch()

    def end(self) -> None:
        for process in self.started:
            process.kill()
            process.communicate()

    def snapshot(self, run: str = "@last") -> dict[str, object]:
        return json.loads(self("show", run, "--json"))

    def lines_of(self, name: str) -> list[str]:
        path = self.folder / name
        return path.read_text().split() if path.exists() else []


def parsed(output: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in output.splitlines()]


def runwright(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RUNWRIGHT_")}
    command = [sys.executable, "-m", "runwright", *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
