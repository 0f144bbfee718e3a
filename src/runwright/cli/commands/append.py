"""`runwright append`: append events from a stream of JSON lines and print the receipts."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import threading
from collections.abc import AsyncIterator
from typing import NamedTuple

import click
import msgspec

from runwright.cli.session import EXIT_OK, EXIT_REFUSED, Session, command
from runwright.cli.terminal.formatting import printable
from runwright.contract.errors import ErrorCode, RunwrightError
from runwright.contract.events import Receipt, Refusal
from runwright.log.model import AppendResult

CHUNK = 1 << 20
MAX_LINE = 8 << 20
MAX_BUFFERED_CHUNKS = 4


class InputLine(NamedTuple):
    number: int
    """Line number, from 1."""
    content: bytes


class LineReader:
    """Reads the lines of a file or of standard input as soon as they arrive."""

    def __init__(self, source: str) -> None:
        self._source = source
        self.number = 0  # Of the last line that was returned.

    async def batches(self) -> AsyncIterator[list[InputLine]]:
        """Yield lines, as many at a time as have arrived. Blank lines are skipped.

        Of a line longer than MAX_LINE only the first MAX_LINE bytes are yielded, which cannot be decoded: the line is
        refused once, and the rest of it is skipped.
        """
        rest, is_too_long = b"", False
        async for chunk in self._chunks():
            *complete, rest = (rest + chunk).split(b"\n")
            if complete and is_too_long:
                complete[0], is_too_long = b"", False  # The end of a line that was already yielded.
            batch = self._numbered(complete)
            if len(rest) > MAX_LINE and not is_too_long:
                is_too_long = True
                batch.append(InputLine(self.number + 1, rest[:MAX_LINE]))
            if is_too_long:
                rest = b""
            yield batch
        if rest:
            yield self._numbered([rest])

    async def _chunks(self) -> AsyncIterator[bytes]:
        """Read in a daemon thread, so that Ctrl-C does not wait for a blocking read."""
        try:
            descriptor = 0 if self._source == "-" else os.open(self._source, os.O_RDONLY)
            os.fstat(descriptor)
        except OSError as error:
            raise _unreadable(self._source, error) from None
        loop, chunks = asyncio.get_running_loop(), asyncio.Queue[bytes | OSError]()
        capacity = threading.Semaphore(MAX_BUFFERED_CHUNKS)

        def read_chunks() -> None:
            chunk: bytes | OSError = b" "
            while chunk and isinstance(chunk, bytes):
                capacity.acquire()
                try:
                    chunk = os.read(descriptor, CHUNK)
                except OSError as error:
                    chunk = error
                with contextlib.suppress(RuntimeError):  # The loop is closed: the command has ended.
                    loop.call_soon_threadsafe(chunks.put_nowait, chunk)

        threading.Thread(target=read_chunks, daemon=True).start()
        while chunk := await chunks.get():
            if isinstance(chunk, OSError):
                raise _unreadable(self._source, chunk)
            yield chunk
            capacity.release()

    def _numbered(self, lines: list[bytes]) -> list[InputLine]:
        start = self.number + 1
        self.number += len(lines)
        stripped = [line.strip() for line in lines]
        if start == 1 and stripped:
            stripped[0] = stripped[0].removeprefix(b"\xef\xbb\xbf")  # byte order mark
        return [InputLine(start + offset, line) for offset, line in enumerate(stripped) if line]


def _unreadable(source: str, error: OSError) -> RunwrightError:
    return RunwrightError(ErrorCode.INVALID_ARGUMENT, f"Cannot read {source}: {error.strerror}.")


@command("append")
@click.argument("source", metavar="FILE|-")
@click.option(
    "--atomic", is_flag=True, help="Append all events of a run or none, instead of those before the first refusal."
)
async def append_command(session: Session, source: str, atomic: bool) -> int:
    """Append events from JSON lines (RunEventWrite); - reads standard input.

    Prints one receipt or refusal per line, in order, as soon as the event is durable. The events of a run are
    appended up to the first refusal; later ones of that run are not attempted. Exits with 2 if any event was refused.
    """
    refusals = 0
    async with session.open(must_exist=False) as log:
        blocked: set[str] = set()
        collected: list[InputLine] = []
        async for batch in LineReader(source).batches():
            if atomic:
                collected += batch
                continue
            outcomes = await log.ingest([line.content for line in batch], blocked=blocked)
            refusals += print_outcomes(session, [line.number for line in batch], outcomes)
        if collected:
            outcomes = await log.ingest([line.content for line in collected], atomic=True)
            refusals += print_outcomes(session, [line.number for line in collected], outcomes)
    return EXIT_REFUSED if refusals else EXIT_OK


def print_outcomes(session: Session, numbers: list[int], outcomes: list[AppendResult]) -> int:
    """Print one line per outcome; return the number of refusals."""
    refusals = 0
    lines: list[str] = []
    for number, outcome in zip(numbers, outcomes, strict=True):
        refusals += isinstance(outcome, Refusal)
        lines.append(_json_line(number, outcome) if session.as_json else _plain_line(number, outcome))
    if lines and not session.is_output_closed:
        try:
            click.echo("\n".join(lines))
            sys.stdout.flush()
        except BrokenPipeError:
            session.is_output_closed = True  # The remaining events are still appended.
    return refusals


def _json_line(number: int, outcome: AppendResult) -> str:
    if isinstance(outcome, Receipt):
        return msgspec.json.encode(outcome).decode()
    document = {"status": outcome.status, "code": outcome.code, "detail": outcome.detail, "line": number}
    return msgspec.json.encode({**document, **({"facts": outcome.facts} if outcome.facts else {})}).decode()


def _plain_line(number: int, outcome: AppendResult) -> str:
    if isinstance(outcome, Receipt):
        return f"{outcome.status:<10} event {outcome.run_seq}  {outcome.event_id}  {outcome.persisted_at}"
    status = click.style(outcome.status.replace("_", " "), fg="red" if outcome.status == "refused" else "yellow")
    return f"{status} line {number}: {outcome.code} {printable(outcome.detail)}"
