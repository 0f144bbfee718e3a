"""Steps with side effects outside the log, so that a test can count their executions."""

from __future__ import annotations

import os
import time

import runwright as rw


def touch(file: str, seconds: float = 0.0) -> str:
    """Append one line with step and time, and sync it to disk."""
    step = rw.current_step()
    line = f"{step.step_id} {step.attempt} {step.engine_attempt} {time.time_ns() // 1000} {step.idempotency_token}\n"
    descriptor = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(descriptor, line.encode())
    os.fsync(descriptor)
    os.close(descriptor)
    time.sleep(seconds)
    return step.step_id


def count_up(file: str, target: int, seconds: float = 0.005) -> list[int]:
    """Count up to a target from the last checkpoint; each number is written to the file after its checkpoint."""
    step = rw.current_step()
    began_at = step.restored or 0
    for number in range(began_at + 1, target + 1):
        time.sleep(seconds)
        step.checkpoint(number)
        with open(file, "a") as out:
            out.write(f"{number}\n")
    return [began_at, target]
