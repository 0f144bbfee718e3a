"""What a process is told when it holds a lease or a run no longer, or not yet."""

from __future__ import annotations

from runwright.contract.errors import ErrorCode, RunwrightError


def lease_lost() -> RunwrightError:
    return RunwrightError(ErrorCode.LEASE_LOST, "The lease has ended. Stop driving its runs, then acquire a new one.")


def run_owned() -> RunwrightError:
    return RunwrightError(
        ErrorCode.RUN_OWNED, "A live process drives this run. Send a signal, or wait for its lease to end."
    )


def stale_fence() -> RunwrightError:
    return RunwrightError(ErrorCode.STALE_FENCE, "This process no longer drives the run. Stop driving it.")
