"""`runwright noetl`: check logs against the NoETL event model."""

from __future__ import annotations

import codecs
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import click
import msgspec

from runwright.cli.session import EXIT_OK, EXIT_PROBLEMS, Session, command
from runwright.cli.terminal.formatting import plural, printable
from runwright.contract.errors import ErrorCode, RunwrightError
from runwright.contract.noetl.checker import InvalidLine, NoetlChecker, NoetlFinding


@click.group("noetl")
def noetl_command() -> None:
    """Check a log against the NoETL event model."""


@command("check")
@click.argument("file", type=click.Path(path_type=Path, allow_dash=True))
async def _check(session: Session, file: Path) -> int:
    """Check a log in the NoETL format: JSON lines, or one JSON list; - reads standard input.

    Checks names, envelopes, permitted emitters, causes before effects, one root and one end; for playbooks also
    that no event is missing. A line that is not JSON is reported, and checking continues. An unfinished log is
    checked as far as it goes. Exits with 1 if there are problems other than warnings.
    """
    findings = NoetlChecker().check(_events(file))
    problems = [finding for finding in findings if not finding.is_warning]
    if session.as_json:
        click.echo(msgspec.json.encode(findings))
    else:
        for finding in findings:
            click.echo(printable(_line(finding)))
        warnings = len(findings) - len(problems)
        suffix = f", {plural(warnings, 'warning')}" if warnings else ""
        click.echo(f"{'WRONG' if problems else 'ok'}  {plural(len(problems), 'problem')}{suffix}")
    return EXIT_PROBLEMS if problems else EXIT_OK


def _line(finding: NoetlFinding) -> str:
    event = "" if finding.seq is None else f"event {finding.seq}: "
    return f"{'warning' if finding.is_warning else finding.code}  {event}{finding.sentence}"


def _events(file: Path) -> Iterator[Any]:
    text = sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()
    text = text.removeprefix(codecs.BOM_UTF8)
    if not text.strip():
        raise RunwrightError(ErrorCode.INVALID_ARGUMENT, f"No events in {file}.")
    document = _decode(text, 1) if text.lstrip()[:1] == b"[" else None
    if isinstance(document, list):
        yield from cast("list[Any]", document)
        return
    lines = [_decode(line, number) for number, line in enumerate(text.split(b"\n"), 1) if line.strip()]
    # Most lines of a broken JSON list cannot be decoded on their own: report the error of the list instead.
    if document is not None and 2 * sum(isinstance(each, InvalidLine) for each in lines) > len(lines):
        raise RunwrightError(ErrorCode.INVALID_ARGUMENT, f"Invalid JSON: {document.reason}.")
    yield from lines


def _decode(text: bytes, line: int) -> Any:
    try:
        return msgspec.json.decode(text)
    except RecursionError:
        return InvalidLine(line, "it is nested too deeply")
    except UnicodeError:
        return InvalidLine(line, "it is not valid UTF-8")
    except msgspec.DecodeError as error:
        return InvalidLine(line, str(error).rstrip("."))


noetl_command.add_command(_check)
