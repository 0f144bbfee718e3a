"""What every subcommand shares: its options, the open log, and how an error reaches a person."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec

import click
import msgspec

from runwright.contract.errors import STORE_CODES, ErrorCode, RunwrightError
from runwright.log.base import RunLog
from runwright.log.open import DEFAULT_STORE, open_log

from .render import plain

P = ParamSpec("P")

DONE, FOUND_SOMETHING, REFUSED, UNREACHABLE = 0, 1, 2, 3


class Session:
    """One invocation of a command."""

    def __init__(self, store: str | None, as_json: bool) -> None:
        self.store = store or os.environ.get("RUNWRIGHT_STORE") or _configured("store") or DEFAULT_STORE
        self.as_json = as_json
        self.unheard = False  # whoever read our output has gone

    def open(self, *, must_exist: bool = True) -> RunLog:
        """The log. Only what appends may make a store: looking at one that is not there is a mistake."""
        path = self.sqlite_path
        if must_exist and path is not None and not path.exists():
            raise RunwrightError(
                ErrorCode.STORE_UNAVAILABLE,
                f"There is no store at {path} yet. Append something, or name one with --store.",
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


def command(name: str) -> Callable[[Callable[..., Awaitable[int]]], click.Command]:
    """A subcommand from an async function of (session, its own arguments) that gives the exit code."""

    def wrap(work: Callable[..., Awaitable[int]]) -> click.Command:
        @click.command(name, help=work.__doc__)
        @click.option(
            "--store", metavar="URL", help="Where the log is. Default: RUNWRIGHT_STORE, runwright.toml, a file."
        )
        @click.option("--json", "as_json", is_flag=True, help="Print JSON.")
        @wraps(work)
        def run(store: str | None, as_json: bool, **arguments: Any) -> int:
            try:
                return asyncio.run(_run(work, store, as_json, arguments))
            except RunwrightError as error:
                show_error(error, as_json=as_json)
                return UNREACHABLE if error.code in STORE_CODES else REFUSED
            except BrokenPipeError:
                return DONE  # whoever read our output has seen enough
            except (OSError, ValueError, OverflowError) as error:
                unusable = RunwrightError(ErrorCode.INVALID_ARGUMENT, f"This cannot be used: {error}.")
                show_error(unusable, as_json=as_json)
                return REFUSED

        return run

    return wrap


async def _run(work: Callable[..., Awaitable[int]], store: str | None, as_json: bool, arguments: dict[str, Any]) -> int:
    return await work(Session(store, as_json), **arguments)


def show_error(error: RunwrightError, *, as_json: bool) -> None:
    if as_json:
        click.echo(msgspec.json.encode({"status": "error", "code": error.code, "detail": error.detail}), err=True)
    else:
        click.echo(f"{click.style(error.code, fg='red', bold=True)} {plain(error.detail)}", err=True)
