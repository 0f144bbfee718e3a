"""Server-sent events: a run's, or those of every run, as they come.

`Last-Event-ID` says where to go on: for a run the number of its event, for all runs the place in the log. Nothing is
lost and nothing is told twice, whichever server the caller comes back to.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Annotated, Any, Literal

from litestar import Response, get
from litestar.openapi.datastructures import ResponseSpec
from litestar.params import FromQuery, HeaderParameter, QueryParameter

from runwright.contract.errors import ErrorCode, RunwrightError
from runwright.contract.transitions import ENDED
from runwright.control.access import Act

from .answers import problems
from .call import Asking, Call
from .hub import Listener, Told, run_events
from .runs import RunId, real
from .service import ENDINGS

LAST = frozenset({*ENDINGS, "RunProcessed"})
"""After one of these a run may have no more to say."""
HEARTBEAT = 15.0
"""Seconds after which a caller hears that we are still there."""
RETRY = b"retry: 1000\n\n"
PAGE = 500


class Gone(Exception):
    """The caller has left, or does not read."""


class Stream:
    """One answer that goes on and on."""

    def __init__(self, call: Call, receive: Any, send: Any) -> None:
        self._call = call
        self._receive = receive
        self._send = send
        self._patience = call.service.settings.send_seconds
        self._left = asyncio.create_task(self._watch())

    async def begin(self) -> None:
        headers = [
            (b"content-type", b"text/event-stream; charset=utf-8"),
            (b"cache-control", b"no-store"),
            (b"x-accel-buffering", b"no"),
        ]
        await self._send({"type": "http.response.start", "status": 200, "headers": headers})
        await self.write(RETRY)

    async def write(self, body: bytes) -> None:
        if self._left.done():
            raise Gone
        try:
            async with asyncio.timeout(self._patience):
                await self._send({"type": "http.response.body", "body": body, "more_body": True})
        except TimeoutError:
            raise Gone from None

    async def end(self) -> None:
        self._left.cancel()
        await self._send({"type": "http.response.body", "body": b""})

    def on_leave(self, listener: Listener) -> None:
        self._left.add_done_callback(lambda _: listener.wake())

    def close(self) -> None:
        self._left.cancel()

    async def _watch(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass


class _Streamed(Response[Any]):
    """An answer that is given by our own hand, past the framework."""

    def __init__(self, give: Callable[[Any, Any], Awaitable[None]]) -> None:
        super().__init__(None)
        self._give = give

    def to_asgi_response(self, *_: Any, **__: Any) -> Any:
        async def give(_: Any, receive: Any, send: Any) -> None:
            await self._give(receive, send)

        return give


Words = Literal["runevents", "noetl"]
Resumed = Annotated[str | None, HeaderParameter(name="Last-Event-ID", max_length=2048)]


@get(
    "/v1/runs/{runId:str}/stream",
    operation_id="streamRun",
    tags=["events"],
    summary="A run's events as they come",
    description="Goes on after `Last-Event-ID`, the number of an event; ends when the run has.",
    media_type="text/event-stream",
    responses={204: ResponseSpec(None, description="The run has ended, and you have all of it."), **problems(404)},
)
async def stream_run(
    call: Asking,
    runId: RunId,  # noqa: N803
    resumed: Resumed = None,
    after_seq: Annotated[
        str | None, QueryParameter(name="afterSeq", max_length=20, description="The same, where no header can be set.")
    ] = None,
    format: FromQuery[Words] = "runevents",  # noqa: A002
) -> Response[str]:
    run_id = real(runId)
    row = await call.look(Act.READ, run_id)
    after = _number(resumed or after_seq or "0")
    if row.status in ENDED and after >= row.last_seq:
        return Response(None, status_code=204)  # pyright: ignore[reportReturnType]  # a browser then stops asking
    return _Streamed(partial(_give_run, call, run_id, after, format))


async def _give_run(call: Call, run_id: str, after: int, words: Words, receive: Any, send: Any) -> None:
    stream = Stream(call, receive, send)
    listener = await call.service.hub.join(run_id, None)
    stream.on_leave(listener)
    try:
        await stream.begin()
        await _tell_run(call, stream, listener, run_id, after, words)
        await stream.end()
    except Gone:
        pass
    finally:
        call.service.hub.leave(listener, run_id)
        stream.close()


async def _tell_run(call: Call, stream: Stream, listener: Listener, run_id: str, after: int, words: Words) -> None:
    hub, log = call.service.hub, call.service.log
    while not hub.is_closed:
        hub.join_again(listener, run_id)
        async for told in run_events(log, run_id, after):
            after = told.record.run_seq
            await stream.write(_numbered(told, words))
        while not listener.is_behind:
            taken = [told for told in listener.take() if told.record.run_seq > after]
            if taken:
                after = taken[-1].record.run_seq
                await stream.write(b"".join(_numbered(told, words) for told in taken))
            if not taken or taken[-1].record.event_type in LAST:
                row = await log.find_run(run_id)
                if row.status in ENDED and row.last_seq <= after:
                    return
            await _wait(stream, listener)


def _numbered(told: Told, words: Words) -> bytes:
    return b"id: %d\n%b" % (told.record.run_seq, told.in_words(words))


@get(
    "/v1/stream",
    operation_id="streamAll",
    tags=["events"],
    summary="The events of every run as they come",
    description="Goes on after `Last-Event-ID`, a place in the log; without it, from now on.",
    media_type="text/event-stream",
    responses=problems(),
)
async def stream_all(
    call: Asking,
    resumed: Resumed = None,
    after: Annotated[
        str | None, QueryParameter(max_length=2048, description="The same, where no header can be set.")
    ] = None,
    format: FromQuery[Words] = "runevents",  # noqa: A002
) -> Response[str]:
    call.glance(Act.READ)
    given = resumed or after
    if given is not None:
        await call.service.log.read_all(given, 1)  # says so if it is no place in this log
    return _Streamed(partial(_give_all, call, given, format))


async def _give_all(call: Call, given: str | None, words: Words, receive: Any, send: Any) -> None:
    log, hub = call.service.log, call.service.hub
    tenant_id = call.actor.tenant_id
    positions = [int(part) for part in (given or await log.end_cursor()).split(".")]
    listener = await hub.join(None, tenant_id)
    stream = Stream(call, receive, send)
    stream.on_leave(listener)
    try:
        await stream.begin()
        while not hub.is_closed:
            hub.join_again(listener, None)
            async for body in _from_log(call, listener, positions, words):
                await stream.write(body)
            while not listener.is_behind:
                body = b"".join(_placed(told, positions, words) for told in listener.take())
                if body:
                    await stream.write(body)
                await _wait(stream, listener)
        await stream.end()
    except Gone:
        pass
    finally:
        hub.leave(listener, None)
        stream.close()


async def _from_log(call: Call, listener: Listener, positions: list[int], words: Words) -> AsyncIterator[bytes]:
    """What the log has beyond the positions, which move along."""
    while True:
        page = await call.service.log.read_all(".".join(map(str, positions)), PAGE)
        bodies: list[bytes] = []
        for record, (shard, pos) in zip(page.records, page.places, strict=True):
            if listener.wants(record):
                bodies.append(_placed(Told(record, (shard, pos)), positions, words))
            positions[shard] = pos
        if bodies:
            yield b"".join(bodies)
        if not page.records:
            return


def _placed(told: Told, positions: list[int], words: Words) -> bytes:
    """An event with the place to go on from; nothing if it was told already."""
    shard, pos = told.place
    if pos <= positions[shard]:
        return b""
    positions[shard] = pos
    return b"id: " + ".".join(map(str, positions)).encode() + b"\n" + told.in_words(words)


async def _wait(stream: Stream, listener: Listener) -> None:
    await listener.wait(HEARTBEAT)
    if not listener.has_news:
        await stream.write(b":\n\n")


def _number(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= 18):
        raise RunwrightError(ErrorCode.INVALID_CURSOR, "Last-Event-ID is the number of the last event you have.")
    return int(text)


ROUTES = [stream_run, stream_all]
