"""Steps that leave a trace outside the log, so that a test can tell how often they really ran."""

from __future__ import annotations

import os
import time

import runwright as rw


def touch(file: str, seconds: float = 0.0) -> str:
    """Append one line, for good: which step, when."""
    step = rw.current_step()
    line = f"{step.step_id} {step.attempt} {step.engine_attempt} {time.time_ns() // 1000} {step.idempotency_token}\n"
    descriptor = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(descriptor, line.encode())
    os.fsync(descriptor)
    os.close(descriptor)
    time.sleep(seconds)
    return step.step_id


def count_up(file: str, target: int, seconds: float = 0.005) -> list[int]:
    """A long step that resumes where it was: each number is written down once it is checkpointed."""
    step = rw.current_step()
    began_at = step.restored or 0
    for number in range(began_at + 1, target + 1):
        time.sleep(seconds)
        step.checkpoint(number)
        with open(file, "a") as out:
            out.write(f"{number}\n")
    return [began_at, target]
