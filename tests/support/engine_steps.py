"""Steps that tests of the engine execute."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import runwright as rw


def sleep(seconds: float, value: Any = None) -> Any:
    time.sleep(seconds)
    return value


def note(file: str, value: Any = None, seconds: float = 0.0) -> Any:
    """Append a line to a file in one write, safe for concurrent steps."""
    step = rw.current_step()
    write_line(file, f"{step.step_id} {step.attempt} {step.engine_attempt} {value}")
    time.sleep(seconds)
    return value


def write_line(file: str, text: str) -> None:
    descriptor = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(descriptor, f"{text}\n".encode())
    os.close(descriptor)


def fail_times(file: str, times: int, value: Any = None) -> Any:
    """Fail the first `times` calls; the file has one line per call."""
    write_line(file, "called")
    if len(Path(file).read_text().splitlines()) <= times:
        raise RuntimeError("not yet")
    return value


def wait_for_file(file: str, value: Any = None) -> Any:
    """Wait for a file, or stop when cancelled."""
    step = rw.current_step()
    while not Path(file).exists():
        if step.cancelled.wait(0.01):
            raise rw.StepError("STOPPED", "asked to stop", retryable=False)
    return value


def ignore_stop(file: str) -> str:
    while not Path(file).exists():
        time.sleep(0.01)
    return "never stopped"


def count_at_once(folder: str, name: str, seconds: float) -> int:
    """Return how many of these steps run concurrently, this one included."""
    mine = Path(folder, str(name))
    mine.touch()
    time.sleep(seconds)
    count = len(list(Path(folder).iterdir()))
    mine.unlink()
    return count


def fail_without_retry() -> None:
    raise rw.StepError("NO_SUCH_ORDER", "it is not there", retryable=False, category="data")


def echo(**values: Any) -> dict[str, Any]:
    return values


def checkpoint(state: Any) -> None:
    rw.current_step().checkpoint(state)


def checkpoint_for_ever() -> None:
    number = 0
    while True:
        number += 1
        time.sleep(0.02)
        rw.current_step().checkpoint(number)


def fork_children(file: str) -> int:
    """Start a child that outlives the step and appends to a file while it is alive."""
    code = f"import time\nwhile True:\n  open({file!r}, 'a').write('x')\n  time.sleep(0.05)"
    child = subprocess.Popen([sys.executable, "-c", code])
    return child.pid


def ignore_sigterm(file: str) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    Path(file).write_text(str(os.getpid()))
    while True:
        time.sleep(1)


def exit_process() -> None:
    raise SystemExit(3)


async def block_loop(seconds: float) -> str:
    time.sleep(seconds)  # noqa: ASYNC251 - blocking the loop is its purpose
    return "blocked"


async def quick() -> str:
    return "quick"


def big(size: int, letter: str = "x") -> str:
    return letter * size


def note_or_fail(file: str, number: int, bad: list[int], good: str = "") -> int:
    """Append a line, then fail for bad numbers until the file `good` exists."""
    write_line(file, str(number))
    if number in bad and not (good and Path(good).exists()):
        raise ValueError(number)
    return number


def note_and_hold(file: str, number: int, held: int, go: str) -> int:
    """Append a line; the number `held` waits until the file `go` exists."""
    write_line(file, str(number))
    while number == held and not Path(go).exists():
        time.sleep(0.01)
    return number


def first_time_hang(file: str) -> str:
    """Hang until cancelled, but only the first time."""
    if Path(file).exists():
        return "done"
    Path(file).touch()
    rw.current_step().cancelled.wait(60)
    raise ValueError("stopped")


def checkpoint_in_spite_of_all(seconds: float) -> None:
    """Keep writing checkpoints in the first attempt, even after it was abandoned."""
    step = rw.current_step()
    if step.attempt > 1:
        time.sleep(seconds)
        return
    for number in range(1000):
        time.sleep(0.05)
        step.checkpoint(number)


def tell_secrets() -> dict[str, str]:
    secrets = dict(rw.current_step().secrets)
    print(secrets)
    return secrets


def keep(value: str) -> None:
    rw.current_step().checkpoint({"value": value})


def keep_report(text: str) -> Any:
    file = Path("report.txt")
    file.write_text(text)
    return rw.current_step().keep(file, "report")


def read_artifact(ref: dict[str, Any]) -> str:
    rw.current_step().fetch(ref, "fetched.txt")
    return Path("fetched.txt").read_text()


def step_output(status: str) -> rw.StepOutput:
    made = rw.ArtifactRef("s3://elsewhere/report", "report", "0" * 64, 7)
    if status == "SUCCESS":
        return rw.StepOutput(artifact_refs=[made], result={"rows": 3})
    return rw.StepOutput("FAILED", [made], rw.ErrorInfo("NO_STOCK", "Nothing left.", retryable=False, category="user"))


def fail_with(text: str, pad: int) -> None:
    raise ValueError("x" * pad + text)
