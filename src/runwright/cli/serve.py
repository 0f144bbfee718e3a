"""`runwright serve`: the engine behind an HTTP API."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Coroutine
from typing import Any

import click

from runwright.contract.errors import ErrorCode, RunwrightError
from runwright.control.settings import settings_table

from .session import DONE, Session, command

MISSING = "The server needs some more packages: pip install 'runwright[server]'."


def _on_a_fast_loop(main: Coroutine[Any, Any, int]) -> int:
    try:
        from runwright.server.serve import run_server
    except ImportError:
        return asyncio.run(main)  # which says what is missing
    return run_server(main)


@command("serve", _on_a_fast_loop)
@click.option("--host", help="Where to listen. Default: runwright.toml, 127.0.0.1.")
@click.option("--port", type=click.IntRange(0, 65535), help="Default: runwright.toml, 8484. 0 takes any.")
@click.option("--log-format", type=click.Choice(["text", "json"]), help="Default: text on a terminal, json elsewhere.")
@click.option("--access-log/--no-access-log", default=True, show_default=True, help="Log every request.")
async def serve_command(
    session: Session, host: str | None, port: int | None, log_format: str | None, access_log: bool
) -> int:
    """Serve the HTTP API, and drive runs.

    Start it as often as you like on one Postgres: each drives its own runs, and takes over those of one that is gone.
    Ctrl-C or SIGTERM hands its runs over to the others.
    """
    try:
        from runwright.control.logs import set_up_logs
        from runwright.server.serve import serve
        from runwright.server.service import Service
        from runwright.server.settings import read_server_settings
    except ImportError as error:
        if (error.name or "").startswith("runwright"):
            raise
        raise RunwrightError(ErrorCode.INVALID_ARGUMENT, MISSING) from None

    settings = read_server_settings(settings_table("server"), host=host, port=port)
    in_json = log_format == "json" or (log_format is None and not sys.stderr.isatty())
    set_up_logs(in_json=in_json, access=access_log)

    def ready(service: Service, address: str) -> None:
        if session.as_json:
            session.print_json({"address": address, "store": service.operations.log.__class__.__name__})
        else:
            click.echo(f"Runwright serves {address}")
            if service.was_open:
                word = click.style("OPEN", fg="yellow", bold=True)
                click.echo(f"{word}: no token was made yet, so everybody at this machine may do everything.")
                click.echo("      The first token closes it:  runwright token create NAME --role Admin")
        sys.stdout.flush()

    await serve(session.store, settings, ready)
    return DONE
