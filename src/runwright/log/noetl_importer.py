"""Import of NoETL logs. Each event is stored once, identified by its execution and its id, which may have any form."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple

import msgspec

from runwright.contract.envelope import uuid4_bytes
from runwright.contract.errors import ErrorCode, RunwrightError
from runwright.contract.events import NO_PAYLOAD, Receipt, Refusal, RunEventRecord, RunEventWrite, RunIdentity
from runwright.contract.noetl.extras import EXTRAS
from runwright.contract.noetl.reader import IDENTIFYING_TYPES, ImportedEvent, NoetlReader, plan_of
from runwright.contract.noetl.view import render_event
from runwright.contract.paths import EntityPath
from runwright.contract.refs import DEFAULT_TENANT
from runwright.contract.transitions import Enforcement
from runwright.log.append.authority import NOT_ATTEMPTED

from .builders import encode_payload, new_event, new_run
from .model import AppendResult, EventFilter
from .protocols import LogReader, run_or_none

MAX_CACHED_POSITIONS = 100_000
MAX_CANDIDATES = 100_000  # positions tried for one event
BATCH_SIZE = 1000  # events per call of the log
IMPLIED_START_ID = "playbook.started"
"""The event id of an implied start: servers without an event model never emit one."""


class ImportTarget(msgspec.Struct, frozen=True):
    """Tenant, project, environment and default plan of imported runs, which NoETL events do not contain."""

    tenant_id: str = DEFAULT_TENANT
    project_id: str = "default"
    environment_id: str = "default"
    plan_id: str = "noetl"


class _LineHeader(msgspec.Struct, frozen=True):
    """The fields of a line that determine its order and plan, read before the line is decoded."""

    run_id: str | None = None
    seq: int | None = None
    names_plan: bool = False


class _HeaderFields(msgspec.Struct):
    execution_id: Any = None
    event_type: Any = None
    seq: Any = None


_decoder = msgspec.json.Decoder(_HeaderFields)


class _UnresolvedEvent(msgspec.Struct):
    """An event to be appended, and its result."""

    event: ImportedEvent
    write: RunEventWrite
    outcome: AppendResult = NOT_ATTEMPTED


class _ImportedRun(NamedTuple):
    identity: RunIdentity
    is_stored: bool  # whether the log may already have events of it


class NoetlImporter:
    """Imports NoETL events. Runs that are not in the store are created with enforcement `observe`."""

    def __init__(
        self,
        log: LogReader,
        target: ImportTarget,
        *,
        authorize: Callable[[RunEventWrite], Awaitable[Refusal | None]] | None = None,
        blocked: set[str] | None = None,
    ) -> None:
        self._log = log
        self._target = target
        self._authorize = authorize
        self._reader = NoetlReader()
        self._plans: dict[str, tuple[str, str | None]] = {}  # by run, from the events of this stream
        self._runs: dict[str, _ImportedRun] = {}
        self._loaded_runs: set[str] = set()  # runs whose ids were loaded from the log
        self._started: set[str] = set()  # runs that have a start event
        self._used_keys: set[tuple[str, str, str | None, int]] = set()  # keys assigned to events of this stream
        # The position assigned to the last event that had the same position in NoETL: earlier ones are occupied.
        self._last_candidates: dict[Any, tuple[EntityPath | str | None, int]] = {}
        self._seen_ids: set[tuple[str, str]] = set()  # events of this stream
        self._queue: list[_UnresolvedEvent] = []
        self.blocked: set[str] = set() if blocked is None else blocked

    async def import_lines(self, lines: Sequence[bytes]) -> list[AppendResult]:
        """Import lines; return a receipt or refusal for each, in order.

        The events of a run are appended in order of their `seq`.
        """
        headers = [_read_header(line) for line in lines]
        self._plans = {**_find_plans(lines, headers), **self._plans}
        results: list[_UnresolvedEvent | AppendResult] = [NOT_ATTEMPTED] * len(lines)
        for index in _order_by_seq(headers):
            results[index] = await self._import_line(lines[index], headers[index])
        await self._flush()
        return [result.outcome if isinstance(result, _UnresolvedEvent) else result for result in results]

    async def _import_line(self, line: bytes, header: _LineHeader) -> _UnresolvedEvent | AppendResult:
        try:
            found = await self._read_line(line, header)
        except RunwrightError as error:
            found = Refusal("refused", error.code, error.detail, error.facts)
        if isinstance(found, _UnresolvedEvent | Receipt):
            if len(self._queue) >= BATCH_SIZE:
                await self._flush()
            return found
        await self._flush()  # Earlier events are appended even if this one is refused.
        if isinstance(found, ImportedEvent):
            record = await self._find_record(found)
            return NOT_ATTEMPTED if record is None else _receipt(record)
        if header.run_id in self.blocked:
            return NOT_ATTEMPTED
        if header.run_id is not None:
            self.blocked.add(header.run_id)
        return found

    async def _find_record(self, event: ImportedEvent) -> RunEventRecord | None:
        """Return the stored event; None also if its run was not created because its first events were refused."""
        if await run_or_none(self._log, event.run_id) is None:
            return None
        return await self._log.find_by_id(event.run_id, event.event_id)

    async def _read_line(self, line: bytes, header: _LineHeader) -> _UnresolvedEvent | AppendResult | ImportedEvent:
        """Queue the event of a line and return it.

        Returns a receipt if the log has the event, and the decoded event if it occurred earlier in this stream.
        """
        document = _decode_object(line)
        if header.run_id in self.blocked:
            return NOT_ATTEMPTED
        if header.run_id is not None and header.run_id not in self._loaded_runs:
            await self._load_ids(header.run_id, document)
        event = self._reader.read(document)
        run, is_stored = await self._get_run(event.run_id)
        if (run.run_id, event.event_id) in self._seen_ids:
            return event
        if is_stored and (record := await self._log.find_by_id(run.run_id, event.event_id)) is not None:
            return _receipt(record)
        event = await self._find_free_position(event)
        pending_event = _UnresolvedEvent(event, _to_write(event, run))
        if self._authorize is not None and (refusal := await self._authorize(pending_event.write)) is not None:
            return refusal
        await self._add_implied_start(event, run)
        self._seen_ids.add((run.run_id, event.event_id))
        self._queue.append(pending_event)
        return pending_event

    async def _load_ids(self, run_id: str, document: dict[str, Any]) -> None:
        """Load the entities of a run's ids from the log, if the event refers to unknown ids."""
        run = await self._get_run(run_id)
        if not run.is_stored or not self._reader.has_unknown_ids(document):
            return
        self._loaded_runs.add(run_id)
        after, event_filter = 0, EventFilter(sorted(IDENTIFYING_TYPES))
        while page := await self._log.select(run_id, event_filter, after):
            for record in page:
                self._reader.learn_stored(record)
            after = page[-1].run_seq

    async def _get_run(self, run_id: str) -> _ImportedRun:
        run = self._runs.get(run_id)
        if run is None:
            run = self._runs[run_id] = await self._find_run(run_id)
        return run

    async def _find_run(self, run_id: str) -> _ImportedRun:
        row = await run_or_none(self._log, run_id)
        if row is not None and row.identity.tenant_id == self._target.tenant_id:
            return _ImportedRun(row.identity, is_stored=True)
        target = msgspec.structs.asdict(self._target)
        plan_id, version = self._plans.get(run_id, (target["plan_id"], None))
        identity = new_run(run_id, **{**target, "plan_id": plan_id, "plan_version": version or "noetl"})
        return _ImportedRun(identity, is_stored=False)

    # The position of an event: its entity path and attempt

    async def _find_free_position(self, event: ImportedEvent) -> ImportedEvent:
        """Move the event to the first free position, starting at the last one assigned for its original position."""
        original = (event.run_id, *event.key, event.has_visit_id)
        event = event.moved_to(*self._last_candidates.get(original, (event.path, event.attempt)))
        for _ in range(MAX_CANDIDATES):
            if not await self._is_occupied(event):
                break
            event = event.next_candidate()
        self._last_candidates[original] = (event.path, event.attempt)
        self._used_keys.add((event.run_id, *event.key))
        self._reader.learn(event)
        return event

    async def _is_occupied(self, event: ImportedEvent) -> bool:
        """Whether another event has this position or one that conflicts with it."""
        is_stored = self._runs[event.run_id].is_stored
        for key in (event.key, *event.conflicting_keys):
            if (event.run_id, *key) in self._used_keys:
                return True
            if is_stored and await self._log.find_event(event.run_id, *key) is not None:
                return True
        return False

    async def _add_implied_start(self, event: ImportedEvent, run: RunIdentity) -> None:
        """Queue a start event if this event implies that the run has started and the stream has none."""
        if event.event_type == "RunStarted":
            self._started.add(run.run_id)
        if not event.implies_start or run.run_id in self._started:
            return
        self._started.add(run.run_id)
        start = event.implied_event("RunStarted", IMPLIED_START_ID)
        pending_event = _UnresolvedEvent(start, _to_write(start, run))
        is_allowed = self._authorize is None or await self._authorize(pending_event.write) is None
        if is_allowed and not await self._is_occupied(start):
            self._used_keys.add((run.run_id, *start.key))
            self._queue.append(pending_event)

    # Appending

    async def _flush(self) -> None:
        queued, self._queue = self._queue, []
        while queued:
            queued = await self._append(queued)
        if len(self._used_keys) > MAX_CACHED_POSITIONS:  # The log is queried instead from here on.
            self._used_keys.clear()
            self._last_candidates.clear()
            self._seen_ids.clear()
            self._runs = {run_id: _ImportedRun(run.identity, is_stored=True) for run_id, run in self._runs.items()}

    async def _append(self, pending: list[_UnresolvedEvent]) -> list[_UnresolvedEvent]:
        """Append events; return those to be retried, at another position or unchanged."""
        blocked, writes = set(self.blocked), [pending_event.write for pending_event in pending]
        outcomes = await self._log.ingest(writes, blocked=blocked, enforcement=Enforcement.OBSERVE)
        retries: list[_UnresolvedEvent] = []
        reopened: set[str] = set()
        for pending_event, outcome in zip(pending, outcomes, strict=True):
            pending_event.outcome, run_id = outcome, pending_event.event.run_id
            is_blocked = run_id in reopened and outcome.status == NOT_ATTEMPTED.status
            is_final = not is_blocked and await self._is_final(pending_event)
            if isinstance(outcome, Refusal) and (not is_final or isinstance(pending_event.outcome, Receipt)):
                reopened.add(run_id)
            if not is_final:
                pending_event.write = _to_write(pending_event.event, self._runs[run_id].identity)
                retries.append(pending_event)
        self.blocked |= blocked - reopened
        return retries

    async def _is_final(self, pending_event: _UnresolvedEvent) -> bool:
        """Whether the result of an event is final.

        If another writer took its position in the meantime, the event moves to the next one, unless that writer has
        stored this very event.
        """
        outcome, event = pending_event.outcome, pending_event.event
        if isinstance(outcome, Receipt):
            is_own = uuid4_bytes(outcome.event_id) == uuid4_bytes(pending_event.write.event_id)
            if outcome.status == "appended" or is_own or event.event_id == IMPLIED_START_ID:
                return True
            if await self._resolve_as_stored(pending_event):
                return True
            self._runs[event.run_id] = _ImportedRun(self._runs[event.run_id].identity, is_stored=True)
            pending_event.event = await self._find_free_position(event.next_candidate())
            return False
        if outcome.code == ErrorCode.EVENT_ID_REUSED:
            await self._resolve_as_stored(pending_event)
        elif outcome.code == ErrorCode.RUN_CONTEXT_MISMATCH and not self._runs[event.run_id].is_stored:
            run = self._runs[event.run_id] = await self._find_run(event.run_id)  # Another writer may have created it.
            return not run.is_stored
        return True

    async def _resolve_as_stored(self, pending_event: _UnresolvedEvent) -> bool:
        """Set the receipt of an event that the log has; False if it does not have it."""
        record = await self._log.find_by_id(pending_event.event.run_id, pending_event.event.event_id)
        if record is not None:
            pending_event.outcome = _receipt(record)
        return record is not None


def _read_header(line: bytes) -> _LineHeader:
    try:
        found = _decoder.decode(line)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return _LineHeader()
    has_run_id = isinstance(found.execution_id, str | int) and not isinstance(found.execution_id, bool)
    has_seq = isinstance(found.seq, int) and not isinstance(found.seq, bool)
    return _LineHeader(
        str(found.execution_id) if has_run_id else None,
        found.seq if has_seq else None,
        isinstance(found.event_type, str) and found.event_type.startswith("playbook."),
    )


def _order_by_seq(headers: Sequence[_LineHeader]) -> list[int]:
    """Return the indexes of the lines in import order: lines of a run that have a `seq` are sorted by it."""
    numbered: dict[str, list[tuple[int, int]]] = {}
    for index, header in enumerate(headers):
        if header.run_id is not None and header.seq is not None:
            numbered.setdefault(header.run_id, []).append((header.seq, index))
    order = list(range(len(headers)))
    for lines in numbered.values():
        for (_, index), (_, sorted_index) in zip(lines, sorted(lines), strict=True):
            order[index] = sorted_index
    return order


def _find_plans(lines: Sequence[bytes], headers: Sequence[_LineHeader]) -> dict[str, tuple[str, str | None]]:
    """Return the playbook of each run that is named in these lines, preferably with its version."""
    plans: dict[str, tuple[str, str | None]] = {}
    for line, header in zip(lines, headers, strict=True):
        if header.run_id is None or not header.names_plan or plans.get(header.run_id, ("", None))[1] is not None:
            continue
        try:
            plan = plan_of(msgspec.json.decode(line))
        except (msgspec.MsgspecError, UnicodeError, RecursionError):
            continue  # The line is refused when it is imported.
        if plan is not None and (header.run_id not in plans or plan[1] is not None):
            plans[header.run_id] = plan
    return plans


def _decode_object(line: bytes) -> dict[str, Any]:
    try:
        document = msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        document = None
    if not isinstance(document, dict):
        detail = "Invalid line: not a JSON object. Pass one event per line; `jq -c '.[]'` splits a list into lines."
        raise RunwrightError(ErrorCode.SCHEMA_VALIDATION_FAILED, detail)
    return document  # pyright: ignore[reportUnknownVariableType]


def _to_write(event: ImportedEvent, run: RunIdentity) -> RunEventWrite:
    has_uuid = uuid4_bytes(event.event_id) is not None
    draft = new_event(
        event.event_type,
        run,
        step_id=event.step_id,
        attempt=event.attempt,
        emitted_at=event.emitted_at,
        event_id=event.event_id if has_uuid else _derive_event_id(event),
        emitted_by=event.emitted_by,
    )
    extras = event.extra_fields(render_event(draft, dict(event.payload), 1))
    payload = {**event.payload, EXTRAS: extras} if extras else event.payload
    return msgspec.structs.replace(
        draft,
        foreign_event_id=None if has_uuid else event.event_id,
        raw_payload=encode_payload(payload) if payload else NO_PAYLOAD,
    )


def _derive_event_id(event: ImportedEvent) -> str:
    """Derive an id from the foreign id, so that two importers cannot store the same event twice."""
    name = f"{event.run_id}|{event.event_id}".encode("utf-8", "surrogatepass")
    return str(uuid.UUID(bytes=hashlib.sha256(name).digest()[:16], version=4))


def _receipt(record: RunEventRecord) -> Receipt:
    return Receipt("duplicate", record.event_id, record.run_seq, record.persisted_at, idempotent=True, persisted=True)
