"""Shared by all subcommands: options, exit codes, opening the store or the server, and error output."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from runwright.cli.terminal.formatting import printable
from runwright.contract.errors import STORE_CODES, ErrorCode, RunwrightError
from runwright.log.factory import DEFAULT_STORE, open_log

if TYPE_CHECKING:
    from runwright.client.remote_operations import RemoteOperations
    from runwright.log.protocols import LogReader
    from runwright.log.run_log import RunLog

EXIT_OK, EXIT_PROBLEMS, EXIT_REFUSED, EXIT_UNAVAILABLE = 0, 1, 2, 3
UNAVAILABLE_CODES = STORE_CODES | {ErrorCode.SERVER_UNREACHABLE, ErrorCode.SERVER_CLOSING, ErrorCode.SERVER_BUSY}


class Session:
    """One invocation of a command."""

    def __init__(self, store: str | None, as_json: bool, server: str | None = None, token: str | None = None) -> None:
        self.store = store or os.environ.get("RUNWRIGHT_STORE") or _setting("store") or DEFAULT_STORE
        # --store takes precedence over RUNWRIGHT_SERVER.
        self.server = server or (None if store else os.environ.get("RUNWRIGHT_SERVER"))
        self.token = token or os.environ.get("RUNWRIGHT_TOKEN")
        self.as_json = as_json
        self.is_output_closed = False  # The reader of stdout closed the pipe.

    def remote(self) -> AbstractAsyncContextManager[RemoteOperations]:
        """Connect to the server of this session."""
        assert self.server is not None
        try:
            from runwright.client.remote_operations import open_remote
        except ImportError as error:
            if (error.name or "").startswith("runwright"):
                raise
            missing = "--server requires an extra package: pip install 'runwright[client]'."
            raise RunwrightError(ErrorCode.INVALID_ARGUMENT, missing) from None
        return open_remote(self.server, self.token)

    def open(self, *, must_exist: bool = True) -> AbstractAsyncContextManager[LogReader]:
        """Open the log of the server or the store. Only commands that append may create a store."""
        if self.server is not None:
            return self._remote_log()
        return self.open_store(must_exist=must_exist)

    @asynccontextmanager
    async def _remote_log(self) -> AsyncGenerator[LogReader]:
        async with self.remote() as operations:
            yield operations.log

    def open_store(self, *, must_exist: bool = True) -> RunLog:
        path = self.sqlite_path
        if must_exist and path is not None and not path.exists():
            raise RunwrightError(
                ErrorCode.STORE_UNAVAILABLE,
                f"There is no store at {path} yet. Run a plan first, change to the directory of an existing store, "
                "or name the store with --store.",
            )
        return open_log(self.store)

    @property
    def sqlite_path(self) -> Path | None:
        scheme, _, rest = self.store.partition("://")
        return Path(rest[1:]) if scheme == "sqlite" and len(rest) > 1 else None

    @property
    def state_folder(self) -> Path:
        """The folder with the keys of this store: that of the SQLite file, otherwise .runwright."""
        path = self.sqlite_path
        return Path(".runwright") if path is None else path.parent

    def print_json(self, document: Any) -> None:
        click.echo(msgspec.json.encode(document))


def _setting(name: str) -> str | None:
    from runwright.config.settings import read_settings

    value = read_settings().get(name)
    return value if isinstance(value, str) else None


def command(
    name: str, main: Callable[[Coroutine[Any, Any, int]], int] = asyncio.run
) -> Callable[[Callable[..., Awaitable[int]]], click.Command]:
    """Create a subcommand from an async function of (session, **arguments) that returns the exit code."""

    def wrap(function: Callable[..., Awaitable[int]]) -> click.Command:
        @click.command(name, help=function.__doc__)
        @click.option(
            "--store",
            metavar="URL",
            help="Store URL [default: $RUNWRIGHT_STORE, runwright.toml, .runwright/runs.db].",
        )
        @click.option("--server", metavar="URL", help="Server URL, instead of a store [default: $RUNWRIGHT_SERVER].")
        @click.option("--token", metavar="TOKEN", help="API token [default: $RUNWRIGHT_TOKEN].")
        @click.option("--json", "as_json", is_flag=True, help="Print JSON.")
        @wraps(function)
        def run(
            store: str | None, as_json: bool, server: str | None = None, token: str | None = None, **arguments: Any
        ) -> int:
            try:
                if store and server:
                    raise RunwrightError(ErrorCode.INVALID_ARGUMENT, "--store and --server are mutually exclusive.")
                return main(_run(function, Session(store, as_json, server, token), arguments))
            except RunwrightError as error:
                show_error(error, as_json=as_json)
                return EXIT_UNAVAILABLE if error.code in UNAVAILABLE_CODES else EXIT_REFUSED
            except BrokenPipeError:
                return EXIT_OK  # The reader of stdout has read enough.
            except (OSError, ValueError, OverflowError) as error:
                invalid = RunwrightError(ErrorCode.INVALID_ARGUMENT, f"Invalid argument: {error}.")
                show_error(invalid, as_json=as_json)
                return EXIT_REFUSED

        return run

    return wrap


async def _run(function: Callable[..., Awaitable[int]], session: Session, arguments: dict[str, Any]) -> int:
    return await function(session, **arguments)


def show_error(error: RunwrightError, *, as_json: bool) -> None:
    if as_json:
        click.echo(msgspec.json.encode({"status": "error", "code": error.code, "detail": error.detail}), err=True)
    else:
        click.echo(f"{click.style(error.code, fg='red', bold=True)} {printable(error.detail)}", err=True)
