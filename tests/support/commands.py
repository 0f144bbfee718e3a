"""Run the `runwright` command in a separate folder: in this process, or in a new one."""

from __future__ import annotations

import io
import json
import logging
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

from runwright.cli.main import main
from support.paths import ROOT

SLOW = """
plan: slow
steps:
  - {id: a, shell: "echo a >> out.txt"}
  - {id: b, shell: "echo b >> out.txt; while [ ! -e go ]; do sleep 0.05; done; echo b is done"}
  - {id: c, shell: "echo c >> out.txt"}
"""


class CommandResult(NamedTuple):
    returncode: int
    stdout: bytes
    stderr: bytes


def run_in_process(folder: Path, arguments: Sequence[str], environment: dict[str, str]) -> CommandResult:
    """Run the command in this process: the same entry point, without the start of an interpreter."""
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for _ in range(2))
    saved = (sys.argv, sys.stdin, sys.stdout, sys.stderr, dict(os.environ), Path.cwd(), list(sys.path))
    root = logging.getLogger()
    level, handlers = root.level, list(root.handlers)
    imported = {  # Plans of other tests: the command must not find them. The checkout may be in the same folder.
        name: module
        for name, module in _modules_below(Path(tempfile.gettempdir())).items()
        if not (module.__file__ or "").startswith((f"{ROOT}/", f"{sys.prefix}/"))
    }
    for name in imported:
        del sys.modules[name]
    try:
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(environment)
        sys.argv = ["runwright", *arguments]
        sys.stdin = io.TextIOWrapper(io.BytesIO())
        sys.stdout, sys.stderr = out, err
        try:
            main()
        except SystemExit as ended:
            code = ended.code
    finally:
        sys.argv, sys.stdin, sys.stdout, sys.stderr, variables, cwd, sys.path[:] = saved
        os.environ.clear()
        os.environ.update(variables)
        os.chdir(cwd)
        root.setLevel(level)
        root.handlers[:] = handlers
        for name in _modules_below(folder):
            del sys.modules[name]
        sys.modules.update(imported)
    assert isinstance(code, int)
    return CommandResult(code, *(stream.buffer.getvalue() for stream in (out, err)))  # type: ignore[attr-defined]


def _modules_below(folder: Path) -> dict[str, ModuleType]:
    return {
        name: module
        for name, module in list(sys.modules.items())
        if str(getattr(module, "__file__", None) or "").startswith(f"{folder}/")
    }


class Shell:
    """The command `runwright` in a separate folder, without a terminal.

    A call checks the exit code; it runs the command in this process unless there is standard input. `process` starts a
    real process, for tests of pipes, signals and imported code.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith("RUNWRIGHT_")}

    def __call__(self, *arguments: str, stdin: bytes = b"", exits: int | None = 0, **variables: str) -> str:
        if stdin:
            return self.check(self.process(*arguments, stdin=stdin, **variables), exits)
        return self.check(run_in_process(self.folder, arguments, {**self.environment, **variables}), exits)

    def check(self, done: CommandResult | subprocess.CompletedProcess[bytes], exits: int | None = 0) -> str:
        assert exits in (None, done.returncode), done.stdout.decode() + done.stderr.decode()
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
    """A folder with plans, and processes in the background."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.started: list[subprocess.Popen[bytes]] = []

    def plan(self, text: str, name: str = "plan.yaml") -> str:
        (self.folder / name).write_text(text)
        return name

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        def hear_ctrl_c() -> None:
            signal.signal(signal.SIGINT, signal.SIG_DFL)  # A shell makes background processes ignore SIGINT.

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

    def continue_slow_step(self) -> None:
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


class TextResult(NamedTuple):
    returncode: int
    stdout: str
    stderr: str


def runwright(folder: Path, *arguments: str, **variables: str) -> TextResult:
    """Run the command in this process; `variables` are added to the environment."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RUNWRIGHT_")}
    done = run_in_process(folder, arguments, {**environment, **variables})
    return TextResult(done.returncode, done.stdout.decode(), done.stderr.decode())
