"""`runwright worker`: carries steps out for servers elsewhere."""

from __future__ import annotations

import asyncio
import os
import signal
import socket

import click

from runwright.contract.errors import ErrorCode, RunwrightError
from runwright.control.open import tools_here
from runwright.control.settings import settings_table
from runwright.plans.durations import NoDuration, read_duration
from runwright.tools.secrets import provider_from

from .session import DONE, Session, command

DEFAULT_SERVER = "http://127.0.0.1:8484"


@command("worker")
@click.option("--queue", "queues", multiple=True, metavar="NAME", help="Default: default. May be repeated.")
@click.option("--slots", type=click.IntRange(1, 1000), default=8, show_default=True, help="Steps at a time.")
@click.option("--name", help="What to call this worker. Default: the machine's name and the process.")
@click.option("--drain", default="30s", show_default=True, help="How long steps may go on once it is asked to stop.")
@click.option("--log-format", type=click.Choice(["text", "json"]), default="text")
async def worker_command(
    session: Session,
    queues: tuple[str, ...],
    slots: int,
    name: str | None,
    drain: str,
    log_format: str,
) -> int:
    """Carry steps out that servers leave to workers.

    A server leaves a step to workers if the step says `dispatch: {queue: NAME}`, or all of them if it was started with
    `[server] steps = "workers"`. --server may name several, with commas: they share their store. The token needs the
    scope steps. Secrets are this process's own; code is looked for where the plan says it is.
    """
    try:
        from runwright.client.line import Line
        from runwright.worker.worker import Worker
    except ImportError as error:
        if (error.name or "").startswith("runwright"):
            raise
        missing = "A worker needs one more package: pip install 'runwright[client]'."
        raise RunwrightError(ErrorCode.INVALID_ARGUMENT, missing) from None
    from runwright.control.logs import set_up_logs

    try:
        patience = read_duration(drain)
    except NoDuration as error:
        raise RunwrightError(ErrorCode.INVALID_ARGUMENT, f"--drain: {error}") from None
    set_up_logs(in_json=log_format == "json", access=False)
    asked = (session.server or DEFAULT_SERVER).split(",")
    line = Line(asked, session.token, patience=None, name="runwright-worker")
    called = name or f"{socket.gethostname()}:{os.getpid()}"
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    provider = provider_from(settings_table("secrets"))
    worker = Worker(line, called, tools_here(), provider, queues=queues or ("default",), slots=slots)
    click.echo(f"Worker {called} takes steps from {', '.join(asked)}", err=session.as_json)
    try:
        await worker.run(stop, patience)
    finally:
        await line.close()
    return DONE
