"""`runwright serve`: the HTTP API and the engine behind it."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Coroutine
from typing import Any

import click

from runwright.cli.session import EXIT_OK, Session, command
from runwright.config.settings import settings_table
from runwright.contract.errors import ErrorCode, RunwrightError

MISSING = "The server requires extra packages: pip install 'runwright[server]'."


def _run_on_server_loop(main: Coroutine[Any, Any, int]) -> int:
    """Run on the event loop of the server, which is faster than asyncio's own."""
    try:
        from runwright.server.main import run_server
    except ImportError:
        return asyncio.run(main)  # Reports the missing packages.
    return run_server(main)


@command("serve", _run_on_server_loop)
@click.option("--host", help="Address to listen on [default: runwright.toml, 127.0.0.1].")
@click.option(
    "--port", type=click.IntRange(0, 65535), help="Port [default: runwright.toml, 8484]; 0 selects a free port."
)
@click.option(
    "--log-format",
    type=click.Choice(["text", "json"]),
    help="Log format [default: text on a terminal, otherwise json].",
)
@click.option("--access-log/--no-access-log", default=True, show_default=True, help="Log every request.")
async def serve_command(
    session: Session, host: str | None, port: int | None, log_format: str | None, access_log: bool
) -> int:
    """Serve the HTTP API and drive runs.

    Several servers can share one Postgres store: each drives its own runs and recovers those of a server that died.
    Ctrl-C or SIGTERM releases the runs of this server to the others.
    """
    try:
        from runwright.config.settings import configure_logging
        from runwright.server.main import serve
        from runwright.server.service import Service
        from runwright.server.settings import read_server_settings
    except ImportError as error:
        if (error.name or "").startswith("runwright"):
            raise
        raise RunwrightError(ErrorCode.INVALID_ARGUMENT, MISSING) from None

    settings = read_server_settings(settings_table("server"), host=host, port=port)
    in_json = log_format == "json" or (log_format is None and not sys.stderr.isatty())
    configure_logging(in_json=in_json, access=access_log)

    def on_ready(service: Service, address: str) -> None:
        if session.as_json:
            session.print_json({"address": address, "store": service.operations.log.__class__.__name__})
        else:
            click.echo(f"Runwright serves {address}")
            if service.was_open_at_start:
                label = click.style("OPEN", fg="yellow", bold=True)
                click.echo(f"{label}: no token exists yet, so the user of this process has all permissions.")
                click.echo("      Create the first token:  runwright token create NAME --role Admin")
        sys.stdout.flush()

    await serve(session.store, settings, on_ready)
    return EXIT_OK
