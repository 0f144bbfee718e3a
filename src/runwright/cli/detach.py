"""`run --detach`: a process in a session of its own drives the run; closing the terminal is nothing to it."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import click

from runwright.contract.errors import ErrorCode, RunwrightError
from runwright.contract.transitions import ENDED
from runwright.control.open import state_folder
from runwright.log.open import open_log
from runwright.log.reader import run_or_none
from runwright.results.logfiles import safe_name

from .hints import Commands
from .render import plain
from .session import DONE, REFUSED, Session

POLL = 0.05


async def start_apart(
    session: Session,
    plan_file: Path | None,
    given: tuple[str, ...],
    run_id: str | None,
    tenant: str,
    runtime: str,
) -> int | None:
    """Start a driver, and return once the run is under way. None if the run has ended: there is nothing to drive."""
    if session.store.startswith("memory:"):
        raise RunwrightError(
            ErrorCode.INVALID_ARGUMENT,
            "A store in memory ends with this process. Name a file or a server with --store.",
        )
    async with open_log(session.store) as log:
        run_id = run_id or log.ids.run_id()
        before = await run_or_none(log, run_id)
        if before is not None and before.status in ENDED:
            return None
        output = state_folder(session.store) / "logs" / safe_name(run_id) / "driver.txt"
        said = output.stat().st_size if output.exists() else 0
        options = ["--run-id", run_id, "--tenant", tenant, "--runtime", runtime]
        driver = _spawn(session, plan_file, given, options, output)
        while driver.poll() is None:
            # A new run is there when it is in the store; one that was there before, when the driver says so.
            if before is None and await run_or_none(log, run_id) is not None:
                break
            if before is not None and "\nRun " in f"\n{_said_since(output, said)}":
                break
            await asyncio.sleep(POLL)
        if driver.poll() not in (None, DONE) and await run_or_none(log, run_id) == before:
            click.echo(_said_since(output, said), err=True)
            return driver.returncode or REFUSED
    if session.as_json:
        session.print_json({"runId": run_id, "pid": driver.pid, "output": str(output)})
    else:
        click.echo(plain(run_id))
        click.echo(f"  watch:  {Commands(session, run_id).watch}", err=True)
    driver.returncode = driver.returncode or 0  # it outlives us, and nobody waits for it
    return DONE


def _spawn(
    session: Session, plan_file: Path | None, given: tuple[str, ...], options: list[str], output: Path
) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "runwright", "run", "--store", session.store, *options]
    for pair in given:
        command += ["--param", pair]
    if plan_file is not None:
        command += ["--", str(plan_file)]
    output.parent.mkdir(parents=True, exist_ok=True)
    with open(output, "ab", opener=lambda path, flags: os.open(path, flags, 0o600)) as file:
        return subprocess.Popen(  # noqa: S603 - it is ourselves
            command, stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True
        )


def _said_since(output: Path, size: int) -> str:
    """What the driver had to say, at its end."""
    text = output.read_bytes()[size:].decode(errors="replace")
    return "\n".join(plain(line) for line in text.splitlines()[-20:])
