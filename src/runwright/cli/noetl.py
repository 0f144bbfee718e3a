"""NoETL's event model: logs in its words, and whether they keep to it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import msgspec

from runwright.contract.errors import ErrorCode, RunwrightError
from runwright.contract.noetl_check import NoetlChecker, NoetlFinding

from .render import plain, plural
from .session import DONE, FOUND_SOMETHING, Session, command


@click.group("noetl")
def noetl_command() -> None:
    """Logs in the words of the NoETL event model."""


@command("check")
@click.argument("file", type=click.Path(path_type=Path, allow_dash=True))
async def _check(session: Session, file: Path) -> int:
    """Check a log in the NoETL format: JSON lines, or one JSON list; - reads standard input.

    Names, envelopes, who may emit what, causes before effects, one root, one end, and for playbooks that nothing is
    missing. Exits with 1 if anything is wrong; warnings are told, and are nothing wrong.
    """
    findings = NoetlChecker().check(_events(file))
    wrong = [finding for finding in findings if not finding.is_warning]
    if session.as_json:
        click.echo(msgspec.json.encode(findings))
    else:
        for finding in findings:
            click.echo(plain(_line(finding)))
        warnings = len(findings) - len(wrong)
        rest = f", {plural(warnings, 'warning')}" if warnings else ""
        click.echo(f"{'WRONG' if wrong else 'ok'}  {plural(len(wrong), 'problem')}{rest}")
    return FOUND_SOMETHING if wrong else DONE


def _line(finding: NoetlFinding) -> str:
    where = "" if finding.seq is None else f"event {finding.seq}: "
    return f"{'warning' if finding.is_warning else finding.code}  {where}{finding.sentence}"


def _events(file: Path) -> Iterator[Any]:
    text = sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()
    if not text.strip():
        raise RunwrightError(ErrorCode.INVALID_ARGUMENT, "There are no events in it.")
    where = "This"
    try:
        if text.lstrip()[:1] == b"[":
            yield from msgspec.json.decode(text, type=list[Any])
            return
        for number, line in enumerate(text.split(b"\n"), 1):
            where = f"Line {number}"
            if line.strip():
                yield msgspec.json.decode(line)
    except msgspec.DecodeError as error:
        raise RunwrightError(ErrorCode.INVALID_ARGUMENT, f"{where} is not JSON: {error}.") from None


noetl_command.add_command(_check)
