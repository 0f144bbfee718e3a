"""Server-sent events of one run or of all runs.

`Last-Event-ID` is the position to resume from: for a run the number of its last event, for all runs a cursor of the
log. No event is lost or sent twice, also when the caller reconnects to another server. A slow reader catches up from
the log (`event_broadcaster.py`); one that does not read at all is disconnected after `stalled_reader_seconds`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial
from typing import Annotated, Any, Literal

from litestar import Response, get
from litestar.openapi.datastructures import ResponseSpec
from litestar.params import FromQuery, HeaderParameter, QueryParameter

from runwright.auth.roles import Action
from runwright.contract.errors import ErrorCode, RunwrightError
from runwright.contract.transitions import ENDED
from runwright.server.event_broadcaster import BroadcastEvent, Subscriber, read_run_events
from runwright.server.request_context import InjectedContext, RequestContext
from runwright.server.responses import problem_responses
from runwright.server.service import RUN_END_EVENTS
from runwright.server.stream_writer import CallerGone, StreamResponse, StreamWriter

from .runs import RunId, decode_slashes

POSSIBLY_LAST_EVENTS = frozenset({*RUN_END_EVENTS, "RunProcessed"})
"""Events after which a run may have no further ones."""
HEARTBEAT_SECONDS = 15.0
"""Interval of comments on an idle stream, which show the caller that the connection is alive."""
SSE_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
]
RETRY_LINE = b"retry: 1000\n\n"
PAGE_SIZE = 500

EventFormat = Literal["runevents", "noetl"]
LastEventId = Annotated[str | None, HeaderParameter(name="Last-Event-ID", max_length=2048)]


@get(
    "/v1/runs/{runId:str}/stream",
    operation_id="streamRun",
    tags=["events"],
    summary="Stream the events of a run",
    description="Resumes after `Last-Event-ID`, the number of an event; ends when the run has ended.",
    media_type="text/event-stream",
    responses={
        204: ResponseSpec(None, description="The run has ended, and the caller has all of its events."),
        **problem_responses(404),
    },
)
async def stream_run(
    request_context: InjectedContext,
    runId: RunId,  # noqa: N803
    last_event_id: LastEventId = None,
    after_seq: Annotated[
        str | None,
        QueryParameter(
            name="afterSeq", max_length=20, description="Alternative to Last-Event-ID, if headers cannot be set."
        ),
    ] = None,
    format: FromQuery[EventFormat] = "runevents",  # noqa: A002
) -> Response[str]:
    run_id = decode_slashes(runId)
    row = await request_context.authorize_run(Action.READ, run_id)
    after = _parse_seq(last_event_id or after_seq or "0")
    if row.status in ENDED and after >= row.last_seq:
        return Response(None, status_code=204)  # pyright: ignore[reportReturnType]  # Browsers then stop reconnecting.
    return StreamResponse(partial(_respond_with_run, request_context, run_id, after, format))


async def _respond_with_run(
    context: RequestContext, run_id: str, after: int, event_format: EventFormat, receive: Any, send: Any
) -> None:
    stream = StreamWriter(context, receive, send)
    subscriber = await context.service.broadcaster.subscribe(run_id, None)
    stream.wake_at_end(subscriber)
    try:
        await _begin(stream)
        await _send_run_events(context, stream, subscriber, run_id, after, event_format)
        await stream.end()
    except CallerGone:
        await stream.abort()
    finally:
        context.service.broadcaster.unsubscribe(subscriber, run_id)
        stream.close()


async def _send_run_events(
    context: RequestContext,
    stream: StreamWriter,
    subscriber: Subscriber,
    run_id: str,
    after: int,
    event_format: EventFormat,
) -> None:
    """Send events until the run has ended: from the log while the subscriber is behind, then from its queue."""
    broadcaster, log = context.service.broadcaster, context.service.log
    while not broadcaster.is_closed:
        broadcaster.resubscribe(subscriber, run_id)
        async for event in read_run_events(log, run_id, after):
            after = event.record.run_seq
            await stream.write(_encode_run_event(event, event_format))
        while not subscriber.is_lagging:
            events = [event for event in subscriber.drain() if event.record.run_seq > after]
            if events:
                after = events[-1].record.run_seq
                await stream.write(b"".join(_encode_run_event(event, event_format) for event in events))
            if not events or events[-1].record.event_type in POSSIBLY_LAST_EVENTS:
                row = await log.find_run(run_id)
                if row.status in ENDED and row.last_seq <= after:
                    return
            await _wait(stream, subscriber)


def _encode_run_event(event: BroadcastEvent, event_format: EventFormat) -> bytes:
    return b"id: %d\n%b" % (event.record.run_seq, event.encode_as(event_format))


@get(
    "/v1/stream",
    operation_id="streamAll",
    tags=["events"],
    summary="Stream the events of all runs",
    description="Resumes after `Last-Event-ID`, a cursor of the log; without it, starts with the next event.",
    media_type="text/event-stream",
    responses=problem_responses(),
)
async def stream_all(
    request_context: InjectedContext,
    last_event_id: LastEventId = None,
    after: Annotated[
        str | None,
        QueryParameter(max_length=2048, description="Alternative to Last-Event-ID, if headers cannot be set."),
    ] = None,
    format: FromQuery[EventFormat] = "runevents",  # noqa: A002
) -> Response[str]:
    request_context.authorize(Action.READ)
    cursor = last_event_id or after
    if cursor is not None:
        await request_context.service.log.read_all(
            cursor, 1
        )  # Raises if the cursor is invalid, before the response begins.
    return StreamResponse(partial(_respond_with_all, request_context, cursor, format))


async def _respond_with_all(
    context: RequestContext, cursor: str | None, event_format: EventFormat, receive: Any, send: Any
) -> None:
    log, broadcaster = context.service.log, context.service.broadcaster
    positions = [int(part) for part in (cursor or await log.end_cursor()).split(".")]
    subscriber = await broadcaster.subscribe(None, context.actor.tenant_id)
    stream = StreamWriter(context, receive, send)
    stream.wake_at_end(subscriber)
    try:
        await _begin(stream)
        while not broadcaster.is_closed:
            broadcaster.resubscribe(subscriber, None)
            async for body in _read_log(context, subscriber, positions, event_format):
                await stream.write(body)
            while not subscriber.is_lagging:
                body = b"".join(_encode_log_event(event, positions, event_format) for event in subscriber.drain())
                if body:
                    await stream.write(body)
                await _wait(stream, subscriber)
        await stream.end()
    except CallerGone:
        await stream.abort()
    finally:
        broadcaster.unsubscribe(subscriber, None)
        stream.close()


async def _read_log(
    context: RequestContext, subscriber: Subscriber, positions: list[int], event_format: EventFormat
) -> AsyncIterator[bytes]:
    """Read the log from the positions to its end, and advance them."""
    while True:
        page = await context.service.log.read_all(".".join(map(str, positions)), PAGE_SIZE)
        bodies: list[bytes] = []
        for record, (shard, pos) in zip(page.records, page.places, strict=True):
            if subscriber.matches(record):
                bodies.append(_encode_log_event(BroadcastEvent(record, (shard, pos)), positions, event_format))
            positions[shard] = pos
        if bodies:
            yield b"".join(bodies)
        if not page.records:
            return


def _encode_log_event(event: BroadcastEvent, positions: list[int], event_format: EventFormat) -> bytes:
    """Encode an event with the cursor to resume from, and advance the positions. Empty if it was sent already."""
    shard, pos = event.position
    if pos <= positions[shard]:
        return b""
    positions[shard] = pos
    return b"id: " + ".".join(map(str, positions)).encode() + b"\n" + event.encode_as(event_format)


async def _begin(stream: StreamWriter) -> None:
    await stream.begin(SSE_HEADERS)
    await stream.write(RETRY_LINE)


async def _wait(stream: StreamWriter, subscriber: Subscriber) -> None:
    stream.check_caller()  # Nothing wakes a subscriber before this wait.
    await subscriber.wait(HEARTBEAT_SECONDS)
    if not subscriber.has_pending:
        await stream.write(b":\n\n")


def _parse_seq(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= 18):
        message = "Invalid Last-Event-ID: must be the number of the last received event."
        raise RunwrightError(ErrorCode.INVALID_CURSOR, message)
    return int(text)


ROUTES = [stream_run, stream_all]
