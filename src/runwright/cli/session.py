"""What every subcommand shares: its options, the open log, and how an error reaches a person."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec

import click
import msgspec

from runwright.contract.errors import STORE_CODES, ErrorCode, RunwrightError
from runwright.log.open import DEFAULT_STORE, open_log

from .render import plain

if TYPE_CHECKING:
    from runwright.client.operations import RemoteOperations
    from runwright.log.base import RunLog
    from runwright.log.reader import LogReader

P = ParamSpec("P")

DONE, FOUND_SOMETHING, REFUSED, UNREACHABLE = 0, 1, 2, 3
AWAY = STORE_CODES | {ErrorCode.SERVER_UNREACHABLE, ErrorCode.SERVER_CLOSING}


class Session:
    """One invocation of a command."""

    def __init__(self, store: str | None, as_json: bool, server: str | None = None, token: str | None = None) -> None:
        self.store = store or os.environ.get("RUNWRIGHT_STORE") or _configured("store") or DEFAULT_STORE
        # Whoever names a store means the store, whatever the environment says.
        self.server = server or (None if store else os.environ.get("RUNWRIGHT_SERVER"))
        self.token = token or os.environ.get("RUNWRIGHT_TOKEN")
        self.as_json = as_json
        self.unheard = False  # whoever read our output has gone

    def remote(self) -> AbstractAsyncContextManager[RemoteOperations]:
        """The server that was named."""
        assert self.server is not None
        try:
            from runwright.client.operations import open_remote
        except ImportError as error:
            if (error.name or "").startswith("runwright"):
                raise
            missing = "A server is asked with one more package: pip install 'runwright[client]'."
            raise RunwrightError(ErrorCode.INVALID_ARGUMENT, missing) from None
        return open_remote(self.server, self.token)

    def open(self, *, must_exist: bool = True) -> AbstractAsyncContextManager[LogReader]:
        """The log. Only what appends may make a store: looking at one that is not there is a mistake."""
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
                f"There is no store at {path} yet. Run a plan, go where you ran one, or name its store with --store.",
            )
        return open_log(self.store)

    @property
    def sqlite_path(self) -> Path | None:
        scheme, _, rest = self.store.partition("://")
        return Path(rest[1:]) if scheme == "sqlite" and len(rest) > 1 else None

    @property
    def state_folder(self) -> Path:
        """Where this store's keys are: beside its file, or in .runwright."""
        path = self.sqlite_path
        return Path(".runwright") if path is None else path.parent

    def print_json(self, document: Any) -> None:
        click.echo(msgspec.json.encode(document))


def _configured(name: str) -> str | None:
    from runwright.control.settings import read_settings

    value = read_settings().get(name)
    return value if isinstance(value, str) else None


def command(
    name: str, main: Callable[[Coroutine[Any, Any, int]], int] = asyncio.run
) -> Callable[[Callable[..., Awaitable[int]]], click.Command]:
    """A subcommand from an async function of (session, its own arguments) that gives the exit code."""

    def wrap(work: Callable[..., Awaitable[int]]) -> click.Command:
        @click.command(name, help=work.__doc__)
        @click.option(
            "--store", metavar="URL", help="Where the log is. Default: RUNWRIGHT_STORE, runwright.toml, a file."
        )
        @click.option("--server", metavar="URL", help="Ask this server instead of a store. Default: RUNWRIGHT_SERVER.")
        @click.option("--token", metavar="TOKEN", help="Who you are to the server. Default: RUNWRIGHT_TOKEN.")
        @click.option("--json", "as_json", is_flag=True, help="Print JSON.")
        @wraps(work)
        def run(
            store: str | None, as_json: bool, server: str | None = None, token: str | None = None, **arguments: Any
        ) -> int:
            try:
                if store and server:
                    raise RunwrightError(ErrorCode.INVALID_ARGUMENT, "Name a store or a server, not both.")
                return main(_run(work, Session(store, as_json, server, token), arguments))
            except RunwrightError as error:
                show_error(error, as_json=as_json)
                return UNREACHABLE if error.code in AWAY else REFUSED
            except BrokenPipeError:
                return DONE  # whoever read our output has seen enough
            except (OSError, ValueError, OverflowError) as error:
                unusable = RunwrightError(ErrorCode.INVALID_ARGUMENT, f"This cannot be used: {error}.")
                show_error(unusable, as_json=as_json)
                return REFUSED

        return run

    return wrap


async def _run(work: Callable[..., Awaitable[int]], session: Session, arguments: dict[str, Any]) -> int:
    return await work(session, **arguments)


def show_error(error: RunwrightError, *, as_json: bool) -> None:
    if as_json:
        click.echo(msgspec.json.encode({"status": "error", "code": error.code, "detail": error.detail}), err=True)
    else:
        click.echo(f"{click.style(error.code, fg='red', bold=True)} {plain(error.detail)}", err=True)
