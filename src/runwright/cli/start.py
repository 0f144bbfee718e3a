"""`runwright init`: something to begin with."""

from __future__ import annotations

from pathlib import Path

import click

from runwright.contract.errors import ErrorCode, RunwrightError
from runwright.plans.starter import PLAN_FILE, starter_files

from .render import heading
from .session import DONE, Session, command

_NEXT = (
    (f"runwright run {PLAN_FILE}", "run it, with live progress"),
    ("runwright show @last", "see how it went"),
    (f"runwright plan graph {PLAN_FILE}", "see which step comes after which"),
)


@command("init")
async def init_command(session: Session) -> int:
    """Write a starter plan and runwright.toml into this folder. Nothing that is there is overwritten."""
    written: list[str] = []
    kept: list[str] = []
    for name, text in starter_files().items():
        (written if _write(Path(name), text) else kept).append(name)
    if session.as_json:
        session.print_json({"written": written, "kept": kept})
        return DONE
    for name in written:
        click.echo(f"{name}: written")
    for name in kept:
        click.echo(f"{name}: was there, left as it is")
    click.echo("Next:")
    for words, what in _NEXT:
        click.echo(f"  {heading(words)}{' ' * (36 - len(words))}{what}")
    return DONE


def _write(path: Path, text: str) -> bool:
    """False if there is something of that name."""
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        return False
    except OSError as error:
        raise RunwrightError(ErrorCode.INVALID_ARGUMENT, f"{path} cannot be written: {error.strerror}.") from None
    return True
