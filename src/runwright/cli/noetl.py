"""NoETL's event model: logs in its words, and whether they keep to it."""

from __future__ import annotations

import codecs
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import click
import msgspec

from runwright.contract.errors import ErrorCode, RunwrightError
from runwright.contract.noetl_check import NoetlChecker, NoetlFinding, Unreadable

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
    missing. A line that is no JSON is one thing wrong, and the rest is looked at all the same. A log that has not come
    to its end is held to what it has told so far. Exits with 1 if anything is wrong; warnings are nothing wrong.
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
    text = text.removeprefix(codecs.BOM_UTF8)
    if not text.strip():
        raise RunwrightError(ErrorCode.INVALID_ARGUMENT, "There are no events in it.")
    whole = _decoded(text, 1) if text.lstrip()[:1] == b"[" else None
    if isinstance(whole, list):
        yield from cast("list[Any]", whole)
        return
    read = [_decoded(line, number) for number, line in enumerate(text.split(b"\n"), 1) if line.strip()]
    if whole is not None and 2 * sum(isinstance(each, Unreadable) for each in read) > len(read):
        raise RunwrightError(ErrorCode.INVALID_ARGUMENT, f"This is not JSON: {whole.why}.")
    yield from read


def _decoded(text: bytes, line: int) -> Any:
    try:
        return msgspec.json.decode(text)
    except RecursionError:
        return Unreadable(line, "it is nested too deeply")
    except UnicodeError:
        return Unreadable(line, "it is not valid UTF-8")
    except msgspec.DecodeError as error:
        return Unreadable(line, str(error).rstrip("."))


noetl_command.add_command(_check)
