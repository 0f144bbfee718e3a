"""The log of a server, read over HTTP: events, runs and step output."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, Self, TypeVar
from urllib.parse import quote

import msgspec

from runwright.contract.clock import Clock, Ids
from runwright.contract.envelope import decode_event
from runwright.contract.errors import ErrorCode, RunwrightError
from runwright.contract.events import Receipt, Refusal, RunEventRecord, RunEventWrite, RunIdentity
from runwright.contract.refs import DEFAULT_TENANT
from runwright.contract.snapshot import Alert, RunSnapshot, RunSummary
from runwright.contract.timestamps import from_micros, is_utc, to_micros
from runwright.contract.transitions import ENDED, Enforcement, RunStatus
from runwright.core.integrity.verify import Finding
from runwright.log.model import AppendResult, EventFilter, RebuildReport, RunFilter, RunPage, RunRow, TailPage
from runwright.log.system_clock import SystemIds
from runwright.log.validation import not_found
from runwright.storage.output.files import LogLine

from .transport import HttpTransport

T = TypeVar("T")

PAGE_SIZE = 1000
REMOTE_OWNER = ("server", 0)
"""Owner of every run that a server drives: it does not matter which server."""
POLL_SECONDS = 0.5
LAST_LINES = 200
MAX_LINES = 100_000


class RemoteRunRow(RunRow):
    """A run from the run list of a server, with the document it was decoded from."""

    document: dict[str, Any] = msgspec.field(default_factory=dict[str, Any])

    def to_json(self) -> dict[str, Any]:
        return self.document


def run_path(run_id: str) -> str:
    """The path of a run's resource on the server."""
    return f"/v1/runs/{quote(run_id, safe='')}"


class RemoteLog:
    """LogReader over HTTP."""

    def __init__(self, transport: HttpTransport) -> None:
        self._transport = transport
        self.clock: Clock = transport.clock
        self.ids: Ids = SystemIds()
        self._run_of_plan: dict[str, str] = {}  # by hash: a run that follows the plan

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._transport.close()

    # Events

    async def read(self, run_id: str, after: int = 0, limit: int | None = None) -> list[RunEventRecord]:
        records: list[RunEventRecord] = []
        while limit is None or len(records) < limit:
            page_size = PAGE_SIZE if limit is None else min(PAGE_SIZE, limit - len(records))
            page = await self._transport.get(f"{run_path(run_id)}/events", {"afterSeq": after, "limit": page_size})
            records += [_decode_record(event) for event in page["events"]]
            if page["nextAfterSeq"] is None:
                break
            after = page["nextAfterSeq"]
        return records

    async def events(self, run_id: str, after: int = 0) -> AsyncIterator[RunEventRecord]:
        while records := await self.read(run_id, after, PAGE_SIZE):
            for record in records:
                yield record
            after = records[-1].run_seq

    async def follow(self, run_id: str, after: int = 0) -> AsyncIterator[RunEventRecord]:
        """Yield all events of a run, also future ones, reconnecting to any available server. Never ends by itself."""
        while True:
            try:
                headers = {"last-event-id": str(after)}
                async with self._transport.stream(f"{run_path(run_id)}/stream", headers) as response:
                    if response.status_code == 204:
                        await self.clock.sleep(POLL_SECONDS)  # The run has ended, but events may still be appended.
                    async for line in response.aiter_lines():
                        if line.startswith("data: "):
                            record = _decode_record(msgspec.json.decode(line[6:]))
                            after = record.run_seq
                            yield record
            except RunwrightError as error:
                if error.code not in (ErrorCode.SERVER_UNREACHABLE, ErrorCode.SERVER_CLOSING, ErrorCode.SERVER_BUSY):
                    raise
                # Wait for a server with the transport's retries; raises once they are exhausted.
                await self._transport.get(f"{run_path(run_id)}/status")

    async def find_event(
        self, run_id: str, event_type: str, step_id: str | None = None, attempt: int = 1
    ) -> RunEventRecord | None:
        query = {"eventType": event_type, "stepId": step_id, "attempt": attempt}
        page = await self._transport.get(f"{run_path(run_id)}/events", query)
        if not page["events"]:
            return None
        record = _decode_record(page["events"][0])
        reference = (record.payload or {}).get("planRef") if event_type == "RunStarted" else None
        if isinstance(reference, dict):
            self._run_of_plan[str(reference.get("sha256"))] = run_id  # pyright: ignore[reportUnknownMemberType, reportUnknownArgumentType]
        return record

    async def select(self, run_id: str, wanted: EventFilter, after: int = 0, limit: int = 1000) -> list[RunEventRecord]:
        types = None if wanted.types is None else ",".join(wanted.types)
        query = {"types": types, "entity": wanted.entity, "afterSeq": after, "limit": limit}
        page = await self._transport.get(f"{run_path(run_id)}/events", query)
        return [_decode_record(event) for event in page["events"]]

    async def search(
        self,
        types: Sequence[str],
        since: str | datetime,
        *,
        cursor: str | None = None,
        limit: int = 1000,
        tenant_id: str | None = None,
    ) -> TailPage:
        start = since if isinstance(since, str) else _rfc3339(since)
        query = {"types": ",".join(types), "since": start, "cursor": cursor, "limit": limit, "tenantId": tenant_id}
        page = await self._transport.get("/v1/log", query)
        return TailPage([_decode_record(event) for event in page["events"]], page["cursor"], [])

    async def find_by_id(self, run_id: str, event_id: str) -> RunEventRecord | None:
        page = await self._transport.get(f"{run_path(run_id)}/events", {"eventId": event_id})
        return _decode_record(page["events"][0]) if page["events"] else None

    async def hash_at(self, run_id: str, seq: int) -> bytes | None:
        try:
            records = await self.read(run_id, seq - 1, 1)
        except RunwrightError as error:
            if error.code != ErrorCode.RUN_NOT_FOUND:
                raise
            return None
        return bytes.fromhex(records[0].hash) if records and records[0].run_seq == seq else None

    async def ingest(
        self,
        events: Iterable[RunEventWrite | bytes],
        *,
        blocked: set[str] | None = None,
        atomic: bool = False,
        enforcement: Enforcement = Enforcement.STRICT,
    ) -> list[AppendResult]:
        lines = [event if isinstance(event, bytes) else _encode_event(event) for event in events]
        if not lines:
            return []
        query = {
            "atomic": "true" if atomic else None,
            "enforcement": None if enforcement is Enforcement.STRICT else str(enforcement),
            "blocked": None if not blocked else msgspec.json.encode(sorted(blocked)).decode(),
        }
        body = b"\n".join(line.replace(b"\n", b" ") for line in lines)
        response = await self._transport.send(
            "POST", "/v1/events", content=body, content_type="application/x-ndjson", query=query
        )
        document = msgspec.json.decode(response.content)
        if blocked is not None:
            blocked.update(document.get("blocked", []))
        return [_decode_outcome(result) for result in document["results"]]

    # Runs

    async def find_run(self, run_id: str) -> RunRow:
        found = await self._rows({"idPrefix": run_id, "limit": 1})
        if not found or found[0].identity.run_id != run_id:
            raise not_found(run_id)
        return found[0]

    async def resolve_run(self, name: str) -> RunRow:
        if name == "@last":
            newest = await self._rows({"limit": 1})
            if not newest:
                raise RunwrightError(ErrorCode.RUN_NOT_FOUND, "There are no runs yet.")
            return newest[0]
        found = await self._rows({"idPrefix": name, "limit": 2}) if name else []
        if found and (len(found) == 1 or found[0].identity.run_id == name):
            return found[0]
        if found:
            raise RunwrightError(
                ErrorCode.RUN_NOT_FOUND,
                f"Ambiguous run id {name!r}: several runs match. Use more characters.",
            )
        raise not_found(name)

    async def _rows(self, query: dict[str, Any]) -> list[RunRow]:
        page = await self._transport.get("/v1/runs", query)
        return [_decode_row(run) for run in page["runs"]]

    async def list_runs(
        self, wanted: RunFilter | None = None, *, cursor: str | None = None, limit: int = 50
    ) -> RunPage:
        wanted = wanted or RunFilter()
        query = {
            "status": wanted.status,
            "planId": wanted.plan_id,
            "tenantId": wanted.tenant_id,
            "since": None if wanted.since is None else from_micros(wanted.since),
            "cursor": cursor,
            "limit": limit,
        }
        page = await self._transport.get("/v1/runs", query)
        return RunPage([_decode_row(run) for run in page["runs"]], page["cursor"])

    async def snapshot(self, run_id: str, at: int | str | datetime | None = None) -> RunSnapshot:
        query: dict[str, Any] = {}
        if isinstance(at, datetime):
            at = _rfc3339(at)
        if at is not None:
            query = {"atSeq": at} if isinstance(at, int) else {"atTime": at}
        return decode_snapshot(await self._transport.get(run_path(run_id), query))

    async def owners(self) -> frozenset[tuple[str, int]]:
        return frozenset({REMOTE_OWNER})  # The server itself reports runs without an owner as RECOVERING.

    async def alerts(self, run_id: str | None = None, *, tenant_id: str | None = None) -> list[Alert]:
        del tenant_id
        found = await self._transport.get("/v1/alerts", {"runId": run_id})
        return msgspec.convert(found["alerts"], list[Alert])

    async def wait_for_events(self, timeout: float | None = None) -> bool:
        await self.clock.sleep(POLL_SECONDS if timeout is None else min(timeout, POLL_SECONDS))
        return True

    async def plan(self, sha256: str, tenant_id: str = DEFAULT_TENANT) -> bytes:
        del tenant_id  # The server uses the tenant of the run.
        run_id = self._run_of_plan.get(sha256)
        if run_id is None:
            raise RunwrightError(ErrorCode.PLAN_NOT_FOUND, f"Plan {sha256} not found in the runs read so far.")
        return (await self._transport.send("GET", f"{run_path(run_id)}/plan")).content

    # The store as a whole

    async def verify(self, run_id: str | None = None) -> AsyncIterator[Finding]:
        found = await self._transport.get("/v1/verify", {"runId": run_id})
        for finding in found["findings"]:
            yield Finding(finding["runId"], finding["kind"], finding["detail"], finding["runSeq"])

    async def heads(self) -> AsyncIterator[tuple[str, int, bytes]]:
        for run_id, seq, head in (await self._transport.get("/v1/heads"))["heads"]:
            yield run_id, seq, bytes.fromhex(head)

    async def rebuild(self, *, check: bool = False) -> RebuildReport:
        return msgspec.convert(await self._transport.post("/v1/rebuild", None, check=str(check).lower()), RebuildReport)

    async def health(self) -> dict[str, Any]:
        facts: dict[str, Any] = await self._transport.get("/v1/store")
        return {"server": self._transport.server, **facts}


class RemoteOutput:
    """OutputReader over HTTP."""

    def __init__(self, transport: HttpTransport) -> None:
        self._transport = transport
        self._loop = asyncio.get_running_loop()
        self._last_lines: dict[tuple[str, str], str] = {}  # by run and entity
        self._refreshing: set[str] = set()  # runs whose last lines are being requested

    def read(self, run_id: str, entity: str | None = None, *, attempt: int | None = None) -> Iterator[LogLine]:
        """Read all output. Blocks, so it must not be called on the loop of the transport."""
        return iter(self._wait(self._lines(run_id, entity, attempt, None)))

    def _wait(self, request: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(request, self._loop).result()

    async def _lines(self, run_id: str, entity: str | None, attempt: int | None, after: str | None) -> list[LogLine]:
        path = f"{run_path(run_id)}/logs" + ("" if entity is None else f"/{quote(entity, safe='')}")
        page = await self._transport.get(path, {"attempt": attempt, "after": after, "tail": MAX_LINES})
        return [LogLine(**line) for line in page["lines"]]

    async def follow(
        self,
        run_id: str,
        entity: str | None = None,
        *,
        stopped: Callable[[], bool],
        attempt: int | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> AsyncIterator[LogLine]:
        after: str | None = None
        while True:
            is_last = stopped()  # Checked before reading, so that the last read misses no line.
            lines = await self._lines(run_id, entity, attempt, after)
            for line in lines:
                yield line
            after = lines[-1].time if lines else after
            if is_last:
                return
            await sleep(POLL_SECONDS)

    def last_line(self, run_id: str, entity: str) -> str | None:
        """Return the newest line received so far, and request newer ones in the background."""
        if run_id not in self._refreshing:
            self._refreshing.add(run_id)
            task = self._loop.create_task(self._refresh_last_lines(run_id))
            task.add_done_callback(lambda _: self._refreshing.discard(run_id))
        return self._last_lines.get((run_id, entity))

    async def _refresh_last_lines(self, run_id: str) -> None:
        page = await self._transport.get(f"{run_path(run_id)}/logs", {"tail": LAST_LINES})
        for line in page["lines"]:
            self._last_lines[run_id, line["entity"]] = line["text"]
        await self._transport.clock.sleep(POLL_SECONDS)


def _decode_record(document: dict[str, Any]) -> RunEventRecord:
    return decode_event(msgspec.json.encode(document), RunEventRecord)


def _rfc3339(time: datetime) -> str:
    return time.astimezone(UTC).isoformat().replace("+00:00", "Z")


def _encode_event(event: RunEventWrite) -> bytes:
    """Encode an event for the server, without the fields that the log it was read from had added."""
    if type(event) is not RunEventWrite:
        event = RunEventWrite(**{name: getattr(event, name) for name in RunEventWrite.__struct_fields__})
    return msgspec.json.encode(event)


def _decode_outcome(document: dict[str, Any]) -> AppendResult:
    if document["status"] in ("appended", "duplicate"):
        return msgspec.convert(document, Receipt)
    return msgspec.convert(document, Refusal)


def _decode_row(document: dict[str, Any]) -> RemoteRunRow:
    status = RunStatus(document["status"])
    identity = RunIdentity(
        run_id=document["runId"],
        tenant_id=document["tenantId"],
        project_id=document["projectId"],
        environment_id=document["environmentId"],
        plan_id=document["planId"],
        plan_version=document["planVersion"],
    )
    summary = msgspec.convert(
        {name: value for name, value in document.items() if value is not None}, RunSummary, strict=False
    )
    has_owner = status not in ENDED and document["substatus"] not in ("RECOVERING", "embedded/DRIVER_FAILED")
    owner, epoch = REMOTE_OWNER if has_owner else (None, None)
    created_at = document["createdAt"]
    return RemoteRunRow(
        run_key=0,
        identity=identity,
        enforcement=Enforcement.STRICT,
        created_at=to_micros(created_at) if is_utc(created_at) else 0,
        last_seq=document["lastEventSeq"],
        head=b"",
        persisted_at=0,
        status=status,
        summary_text="",
        summary=summary,
        provider=summary.provider,
        workflow_id=None,
        provider_run_id=None,
        edition=0,
        owner=owner,
        epoch=epoch,
        wake_at=None,
        document=document,
    )


def decode_snapshot(document: dict[str, Any]) -> RunSnapshot:
    fields = {name: value for name, value in document.items() if name != "asOf"}
    return msgspec.convert(fields, RunSnapshot)
