"""A server's log, read over the line."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from datetime import UTC, datetime
from typing import Any, Self
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
from runwright.core.verify import Finding
from runwright.log.arguments import not_found
from runwright.log.clock import SystemIds
from runwright.log.model import EventFilter, Outcome, RebuildReport, RunFilter, RunPage, RunRow, TailPage

from .line import Line

PAGE = 1000
HERE = ("server", 0)
"""Who drives a run that is a server's: it does not matter which of them."""
PAUSE = 0.5


class RemoteRow(RunRow):
    """A run as a server lists it."""

    document: dict[str, Any] = msgspec.field(default_factory=dict[str, Any])

    def to_json(self) -> dict[str, Any]:
        return self.document


def address(run_id: str) -> str:
    return f"/v1/runs/{quote(run_id, safe='')}"


class RemoteLog:
    def __init__(self, line: Line) -> None:
        self._line = line
        self.clock: Clock = line.clock
        self.ids: Ids = SystemIds()
        self._plans: dict[str, str] = {}  # the run that each plan was seen in

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._line.close()

    # Events

    async def read(self, run_id: str, after: int = 0, limit: int | None = None) -> list[RunEventRecord]:
        records: list[RunEventRecord] = []
        while limit is None or len(records) < limit:
            most = PAGE if limit is None else min(PAGE, limit - len(records))
            page = await self._line.get(f"{address(run_id)}/events", {"afterSeq": after, "limit": most})
            records += [_record(each) for each in page["events"]]
            if page["nextAfterSeq"] is None:
                break
            after = page["nextAfterSeq"]
        return records

    async def events(self, run_id: str, after: int = 0) -> AsyncIterator[RunEventRecord]:
        while records := await self.read(run_id, after, PAGE):
            for record in records:
                yield record
            after = records[-1].run_seq

    async def follow(self, run_id: str, after: int = 0) -> AsyncIterator[RunEventRecord]:
        """All events of a run, those to come included; whichever server is there. Ends when you stop asking."""
        while True:
            try:
                async with self._line.stream(f"{address(run_id)}/stream", {"last-event-id": str(after)}) as answer:
                    if answer.status_code == 204:
                        await self.clock.sleep(PAUSE)  # it has ended; but more may still be said of it
                    async for line in answer.aiter_lines():
                        if line.startswith("data: "):
                            record = _record(msgspec.json.decode(line[6:]))
                            after = record.run_seq
                            yield record
            except RunwrightError as error:
                if error.code not in (ErrorCode.SERVER_UNREACHABLE, ErrorCode.SERVER_CLOSING):
                    raise
                await self._line.get(f"{address(run_id)}/status")  # as patient as the line is

    async def find_event(
        self, run_id: str, event_type: str, step_id: str | None = None, attempt: int = 1
    ) -> RunEventRecord | None:
        query = {"eventType": event_type, "stepId": step_id, "attempt": attempt}
        page = await self._line.get(f"{address(run_id)}/events", query)
        if not page["events"]:
            return None
        record = _record(page["events"][0])
        reference = (record.payload or {}).get("planRef") if event_type == "RunStarted" else None
        if isinstance(reference, dict):
            self._plans[str(reference.get("sha256"))] = run_id  # pyright: ignore[reportUnknownMemberType, reportUnknownArgumentType]
        return record

    async def select(self, run_id: str, wanted: EventFilter, after: int = 0, limit: int = 1000) -> list[RunEventRecord]:
        types = None if wanted.types is None else ",".join(wanted.types)
        query = {"types": types, "entity": wanted.entity, "afterSeq": after, "limit": limit}
        page = await self._line.get(f"{address(run_id)}/events", query)
        return [_record(event) for event in page["events"]]

    async def search(
        self,
        types: Sequence[str],
        since: str | datetime,
        *,
        cursor: str | None = None,
        limit: int = 1000,
        tenant_id: str | None = None,
    ) -> TailPage:
        time = since if isinstance(since, str) else since.astimezone(UTC).isoformat().replace("+00:00", "Z")
        query = {"types": ",".join(types), "since": time, "cursor": cursor, "limit": limit, "tenantId": tenant_id}
        page = await self._line.get("/v1/log", query)
        return TailPage([_record(event) for event in page["events"]], page["cursor"], [])

    async def find_by_id(self, run_id: str, event_id: str) -> RunEventRecord | None:
        page = await self._line.get(f"{address(run_id)}/events", {"eventId": event_id})
        return _record(page["events"][0]) if page["events"] else None

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
    ) -> list[Outcome]:
        lines = [each if isinstance(each, bytes) else _written(each) for each in events]
        if not lines:
            return []
        query = {
            "atomic": "true" if atomic else None,
            "enforcement": None if enforcement is Enforcement.STRICT else str(enforcement),
            "blocked": None if not blocked else msgspec.json.encode(sorted(blocked)).decode(),
        }
        body = b"\n".join(line.replace(b"\n", b" ") for line in lines)
        answer = await self._line.send("POST", "/v1/events", data=body, kind="application/x-ndjson", query=query)
        document = msgspec.json.decode(answer.content)
        if blocked is not None:
            blocked.update(document.get("blocked", []))
        return [_outcome(each) for each in document["results"]]

    # Runs

    async def find_run(self, run_id: str) -> RunRow:
        found = await self._rows({"idPrefix": run_id, "limit": 1})
        if not found or found[0].identity.run_id != run_id:
            raise not_found(run_id)
        return found[0]

    async def resolve(self, name: str) -> RunRow:
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
                ErrorCode.RUN_NOT_FOUND, f"{name!r} is the beginning of several run ids; give more of it."
            )
        raise not_found(name)

    async def _rows(self, query: dict[str, Any]) -> list[RunRow]:
        return [_row(each) for each in (await self._line.get("/v1/runs", query))["runs"]]

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
        page = await self._line.get("/v1/runs", query)
        return RunPage([_row(each) for each in page["runs"]], page["cursor"])

    async def snapshot(self, run_id: str, at: int | str | datetime | None = None) -> RunSnapshot:
        query: dict[str, Any] = {}
        if isinstance(at, datetime):
            at = at.astimezone(UTC).isoformat().replace("+00:00", "Z")
        if at is not None:
            query = {"atSeq": at} if isinstance(at, int) else {"atTime": at}
        return snapshot_of(await self._line.get(address(run_id), query))

    async def owners(self) -> frozenset[tuple[str, int]]:
        return frozenset({HERE})  # the server tells by itself which runs nobody drives

    async def alerts(self, run_id: str | None = None, *, tenant_id: str | None = None) -> list[Alert]:
        del tenant_id
        found = await self._line.get("/v1/alerts", {"runId": run_id})
        return msgspec.convert(found["alerts"], list[Alert])

    async def wait_for_news(self, timeout: float | None = None) -> bool:
        await self.clock.sleep(PAUSE if timeout is None else min(timeout, PAUSE))
        return True

    async def plan(self, sha256: str, tenant_id: str = DEFAULT_TENANT) -> bytes:
        del tenant_id  # the run's, as the server knows
        run_id = self._plans.get(sha256)
        if run_id is None:
            raise RunwrightError(ErrorCode.PLAN_NOT_FOUND, f"No run that was looked at follows the plan {sha256}.")
        return (await self._line.send("GET", f"{address(run_id)}/plan")).content

    # The store as a whole

    async def verify(self, run_id: str | None = None) -> AsyncIterator[Finding]:
        found = await self._line.get("/v1/verify", {"runId": run_id})
        for each in found["findings"]:
            yield Finding(each["runId"], each["kind"], each["detail"], each["runSeq"])

    async def heads(self) -> AsyncIterator[tuple[str, int, bytes]]:
        for run_id, seq, head in (await self._line.get("/v1/heads"))["heads"]:
            yield run_id, seq, bytes.fromhex(head)

    async def rebuild(self, *, check: bool = False) -> RebuildReport:
        return msgspec.convert(await self._line.post("/v1/rebuild", None, check=str(check).lower()), RebuildReport)

    async def health(self) -> dict[str, Any]:
        facts: dict[str, Any] = await self._line.get("/v1/store")
        return {"server": self._line.server, **facts}


def _record(document: dict[str, Any]) -> RunEventRecord:
    return decode_event(msgspec.json.encode(document), RunEventRecord)


def _written(event: RunEventWrite) -> bytes:
    """An event as it is sent. One that comes from another log leaves behind what that log said of it."""
    if type(event) is not RunEventWrite:
        event = RunEventWrite(**{name: getattr(event, name) for name in RunEventWrite.__struct_fields__})
    return msgspec.json.encode(event)


def _outcome(document: dict[str, Any]) -> Outcome:
    if document["status"] in ("appended", "duplicate"):
        return msgspec.convert(document, Receipt)
    return msgspec.convert(document, Refusal)


def _row(document: dict[str, Any]) -> RemoteRow:
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
    left = status in ENDED or document["substatus"] == "RECOVERING"
    owner, epoch = (None, None) if left else HERE
    made = document["createdAt"]
    return RemoteRow(
        0,
        identity,
        Enforcement.STRICT,
        to_micros(made) if is_utc(made) else 0,
        document["lastEventSeq"],
        b"",
        0,
        status,
        "",
        summary,
        summary.provider,
        None,
        None,
        0,
        owner,
        epoch,
        None,
        document,
    )


def snapshot_of(document: dict[str, Any]) -> RunSnapshot:
    known = {name: value for name, value in document.items() if name != "asOf"}
    return msgspec.convert(known, RunSnapshot)
