"""`run --detach`: drive the run in a process with its own session, which survives the terminal."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import click

from runwright.cli.terminal.formatting import printable
from runwright.contract.errors import ErrorCode, RunwrightError
from runwright.contract.transitions import ENDED
from runwright.control.bootstrap import state_folder
from runwright.log.factory import open_log
from runwright.log.model import RunRow
from runwright.log.protocols import run_or_none
from runwright.log.run_log import RunLog
from runwright.storage.output.chunks import safe_name
from runwright.storage.private_files import make_private_folder, open_private

from .hints import CommandHints
from .session import EXIT_OK, EXIT_REFUSED, Session

POLL = 0.05


async def start_detached(
    session: Session,
    plan_file: Path | None,
    params: tuple[str, ...],
    run_id: str | None,
    tenant: str,
    runtime: str,
) -> int | None:
    """Start a driver process and return the exit code once the run is in progress.

    Returns None if the run has already ended and there is nothing to drive.
    """
    if session.store.startswith("memory:"):
        raise RunwrightError(
            ErrorCode.INVALID_ARGUMENT,
            "A memory store is lost when this process exits. Name a file or a database with --store.",
        )
    async with open_log(session.store) as log:
        run_id = run_id or log.ids.run_id()
        before = await run_or_none(log, run_id)
        if before is not None and before.status in ENDED:
            return None
        output = state_folder(session.store) / "logs" / safe_name(run_id) / "driver.txt"
        offset = output.stat().st_size if output.exists() else 0
        options = ["--run-id", run_id, "--tenant", tenant, "--runtime", runtime]
        driver = _spawn(session, plan_file, params, options, output)
        while driver.poll() is None:
            # A new run is in progress once it is in the store; an existing one, once the driver reports it.
            if before is None and await run_or_none(log, run_id) is not None:
                break
            if before is not None and "\nRun " in f"\n{_output_since(output, offset)}":
                break
            await asyncio.sleep(POLL)
        if await _has_failed(driver, log, run_id, before):
            click.echo(_output_since(output, offset), err=True)
            return driver.returncode or EXIT_REFUSED
    if session.as_json:
        session.print_json({"runId": run_id, "pid": driver.pid, "output": str(output)})
    else:
        click.echo(printable(run_id))
        click.echo(f"  watch:  {CommandHints(session, run_id).watch}", err=True)
    driver.returncode = driver.returncode or 0  # Avoids a ResourceWarning: the driver outlives this process.
    return EXIT_OK


async def _has_failed(driver: subprocess.Popen[bytes], log: RunLog, run_id: str, before: RunRow | None) -> bool:
    """Whether the driver ended without driving the run. An existing run may grow meanwhile under another driver."""
    if driver.poll() in (None, EXIT_OK):
        return False
    is_refused = before is not None and driver.returncode == EXIT_REFUSED
    return is_refused or await run_or_none(log, run_id) == before


def _spawn(
    session: Session, plan_file: Path | None, params: tuple[str, ...], options: list[str], output: Path
) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "runwright", "run", "--store", session.store, *options]
    for pair in params:
        command += ["--param", pair]
    if plan_file is not None:
        command += ["--", str(plan_file)]
    make_private_folder(output.parent)
    with open_private(output, "ab") as file:
        return subprocess.Popen(  # noqa: S603 - the program is this one
            command, stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True
        )


def _output_since(output: Path, offset: int) -> str:
    """Return the last lines that the driver wrote after `offset`."""
    text = output.read_bytes()[offset:].decode(errors="replace")
    return "\n".join(printable(line) for line in text.splitlines()[-20:])
