"""`runwright worker`: executes steps for a server."""

from __future__ import annotations

import asyncio
import os
import signal
import socket

import click

from runwright.cli.session import EXIT_OK, Session, command
from runwright.config.settings import settings_table
from runwright.contract.errors import ErrorCode, RunwrightError
from runwright.control.bootstrap import installed_tools
from runwright.plans.durations import InvalidDuration, parse_duration
from runwright.tools.secrets import create_provider

DEFAULT_SERVER = "http://127.0.0.1:8484"


@command("worker")
@click.option(
    "--queue", "queues", multiple=True, metavar="NAME", help="Task queue [default: default]. May be repeated."
)
@click.option("--slots", type=click.IntRange(1, 1000), default=8, show_default=True, help="Concurrent steps.")
@click.option("--name", help="Worker name [default: HOST:PID].")
@click.option("--drain", default="30s", show_default=True, help="Time for running steps to finish on shutdown.")
@click.option(
    "--log-format", type=click.Choice(["text", "json"]), default="text", show_default=True, help="Log format."
)
async def worker_command(
    session: Session,
    queues: tuple[str, ...],
    slots: int,
    name: str | None,
    drain: str,
    log_format: str,
) -> int:
    """Run a worker that executes steps for a server.

    A server dispatches a step to workers if the step has `dispatch: {queue: NAME}`, or all steps if it runs with
    `[server] steps = "workers"`. --server accepts several URLs, separated by commas, of servers that share one store.
    The token requires the scope `steps`. Secrets are resolved in the worker's own environment; code is loaded from
    the location that the plan names.
    """
    try:
        from runwright.client.transport import HttpTransport
        from runwright.worker.worker import Worker
    except ImportError as error:
        if (error.name or "").startswith("runwright"):
            raise
        missing = "A worker requires an extra package: pip install 'runwright[client]'."
        raise RunwrightError(ErrorCode.INVALID_ARGUMENT, missing) from None
    from runwright.config.settings import configure_logging

    try:
        drain_timeout = parse_duration(drain)
    except InvalidDuration as error:
        raise RunwrightError(ErrorCode.INVALID_ARGUMENT, f"--drain: {error}") from None
    configure_logging(in_json=log_format == "json", access=False)
    servers = (session.server or DEFAULT_SERVER).split(",")
    transport = HttpTransport(servers, session.token, retry_seconds=None, name="runwright-worker")
    worker_name = name or f"{socket.gethostname()}:{os.getpid()}"
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    provider = create_provider(settings_table("secrets"))
    worker = Worker(transport, worker_name, installed_tools(), provider, queues=queues or ("default",), slots=slots)
    click.echo(f"Worker {worker_name} claims steps from {', '.join(servers)}", err=session.as_json)
    try:
        await worker.run(stop, drain_timeout)
    finally:
        await transport.close()
    return EXIT_OK
