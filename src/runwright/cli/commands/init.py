"""`runwright init`: write a starter plan."""

from __future__ import annotations

from pathlib import Path

import click

from runwright.cli.session import EXIT_OK, Session, command
from runwright.cli.terminal.formatting import bold
from runwright.contract.errors import ErrorCode, RunwrightError
from runwright.plans.starter import PLAN_FILE, starter_files

_NEXT_COMMANDS = (
    (f"runwright run {PLAN_FILE}", "run it with live progress"),
    ("runwright show @last", "show the run"),
    (f"runwright plan graph {PLAN_FILE}", "show the dependencies of its steps"),
)


@command("init")
async def init_command(session: Session) -> int:
    """Write a starter plan and runwright.toml to this directory. Existing files are not overwritten."""
    written: list[str] = []
    existing: list[str] = []
    for name, text in starter_files().items():
        (written if _write_new(Path(name), text) else existing).append(name)
    if session.as_json:
        session.print_json({"written": written, "kept": existing})
        return EXIT_OK
    for name in written:
        click.echo(f"{name}: written")
    for name in existing:
        click.echo(f"{name}: exists, not changed")
    click.echo("Next:")
    for command_line, purpose in _NEXT_COMMANDS:
        click.echo(f"  {bold(command_line)}{' ' * (36 - len(command_line))}{purpose}")
    return EXIT_OK


def _write_new(path: Path, text: str) -> bool:
    """Write the file; return False if it already exists."""
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        return False
    except OSError as error:
        raise RunwrightError(ErrorCode.INVALID_ARGUMENT, f"Cannot write {path}: {error.strerror}.") from None
    return True
