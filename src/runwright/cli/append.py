"""`runwright append`: events in, receipts out, as a stream."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import threading
from collections.abc import AsyncIterator

import click
import msgspec

from runwright.contract.errors import ErrorCode, RunwrightError
from runwright.contract.events import Receipt, Refusal
from runwright.log.model import Outcome

from .render import plain
from .session import DONE, REFUSED, Session, command

CHUNK = 1 << 20
MAX_LINE = 8 << 20


class Lines:
    """Lines of a file or of standard input, given on as soon as they are there."""

    def __init__(self, source: str) -> None:
        self._source = source
        self.number = 0  # of the last line given out

    async def batches(self) -> AsyncIterator[list[tuple[int, bytes]]]:
        """Lines with their numbers, as many at a time as have arrived. Blank ones are passed over."""
        rest, too_long = b"", False
        async for chunk in self._chunks():
            *whole, rest = (rest + chunk).split(b"\n")
            if whole and too_long:
                whole[0], too_long = b"", False  # the end of a line that was refused already
            batch = self._numbered(whole)
            if len(rest) > MAX_LINE and not too_long:
                too_long = True
                batch.append((self.number + 1, rest[:MAX_LINE]))
            if too_long:
                rest = b""
            yield batch
        if rest:
            yield self._numbered([rest])

    async def _chunks(self) -> AsyncIterator[bytes]:
        """What can be read, when it can. A thread of its own reads, so that Ctrl-C need not wait for it."""
        try:
            descriptor = 0 if self._source == "-" else os.open(self._source, os.O_RDONLY)
            os.fstat(descriptor)
        except OSError as error:
            raise _unreadable(self._source, error) from None
        loop, arrived = asyncio.get_running_loop(), asyncio.Queue[bytes | OSError]()
        room = threading.Semaphore(4)

        def pump() -> None:
            more: bytes | OSError = b" "
            while more and isinstance(more, bytes):
                room.acquire()
                try:
                    more = os.read(descriptor, CHUNK)
                except OSError as error:
                    more = error
                with contextlib.suppress(RuntimeError):  # the loop is gone, and with it whoever wanted to know
                    loop.call_soon_threadsafe(arrived.put_nowait, more)

        threading.Thread(target=pump, daemon=True).start()
        while chunk := await arrived.get():
            if isinstance(chunk, OSError):
                raise _unreadable(self._source, chunk)
            yield chunk
            room.release()

    def _numbered(self, lines: list[bytes]) -> list[tuple[int, bytes]]:
        start = self.number + 1
        self.number += len(lines)
        stripped = [line.strip() for line in lines]
        if start == 1 and stripped:
            stripped[0] = stripped[0].removeprefix(b"\xef\xbb\xbf")
        return [(start + offset, line) for offset, line in enumerate(stripped) if line]


def _unreadable(source: str, error: OSError) -> RunwrightError:
    return RunwrightError(ErrorCode.INVALID_ARGUMENT, f"{source} cannot be read: {error.strerror}.")


@command("append")
@click.argument("source", metavar="FILE|-")
@click.option(
    "--atomic", is_flag=True, help="All or nothing for each run in the file, instead of up to the first refusal."
)
async def append_command(session: Session, source: str, atomic: bool) -> int:
    """Append events, one JSON object (a RunEventWrite) a line; - reads standard input.

    Prints one receipt or refusal a line, in order, as soon as the event is durable. Of each run, events go
    in up to the first refused one; later ones of that run are not attempted. Exits with 2 if any was refused.
    """
    refusals = 0
    async with session.open(must_exist=False) as log:
        blocked: set[str] = set()
        held: list[tuple[int, bytes]] = []
        async for batch in Lines(source).batches():
            if atomic:
                held += batch
                continue
            outcomes = await log.ingest([line for _, line in batch], blocked=blocked)
            refusals += report(session, [number for number, _ in batch], outcomes)
        if held:
            outcomes = await log.ingest([line for _, line in held], atomic=True)
            refusals += report(session, [number for number, _ in held], outcomes)
    return REFUSED if refusals else DONE


def report(session: Session, numbers: list[int], outcomes: list[Outcome]) -> int:
    """Print the outcomes; gives back how many are refusals."""
    refusals = 0
    lines: list[str] = []
    for number, outcome in zip(numbers, outcomes, strict=True):
        refusals += isinstance(outcome, Refusal)
        lines.append(_json_line(number, outcome) if session.as_json else _plain_line(number, outcome))
    if lines and not session.unheard:
        try:
            click.echo("\n".join(lines))
            sys.stdout.flush()
        except BrokenPipeError:
            session.unheard = True  # what was sent in is taken in, whether or not anybody reads the receipts
    return refusals


def _json_line(number: int, outcome: Outcome) -> str:
    if isinstance(outcome, Receipt):
        return msgspec.json.encode(outcome).decode()
    document = {"status": outcome.status, "code": outcome.code, "detail": outcome.detail, "line": number}
    return msgspec.json.encode({**document, **({"facts": outcome.facts} if outcome.facts else {})}).decode()


def _plain_line(number: int, outcome: Outcome) -> str:
    if isinstance(outcome, Receipt):
        return f"{outcome.status:<10} event {outcome.run_seq}  {outcome.event_id}  {outcome.persisted_at}"
    word = click.style(outcome.status.replace("_", " "), fg="red" if outcome.status == "refused" else "yellow")
    return f"{word} line {number}: {outcome.code} {plain(outcome.detail)}"
