"""Taking in logs of NoETL: each event once, by its execution and its id, whatever form that id has."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from runwright.contract.envelope import uuid4_bytes
from runwright.contract.errors import ErrorCode, RunwrightError
from runwright.contract.events import NO_PAYLOAD, Receipt, Refusal, RunEventRecord, RunEventWrite, RunIdentity
from runwright.contract.noetl import rendered
from runwright.contract.noetl_read import TELLING, Incoming, NoetlReader
from runwright.contract.noetl_rest import REST
from runwright.contract.paths import EntityPath
from runwright.contract.refs import DEFAULT_TENANT
from runwright.contract.transitions import Enforcement

from .judge import NOT_ATTEMPTED
from .model import EventFilter, Outcome
from .noetl_heads import Head, head_of, in_sequence, plans_in
from .open import encode_payload, new_event, new_run
from .reader import LogReader, run_or_none

MOST_REMEMBERED = 100_000
MOST_SPOTS = 100_000  # that one event may be moved on at a time
AT_A_TIME = 1000  # events that go to the log together
IMPLIED_START = "playbook.started"
"""The id of a start that nobody said: servers without a model never do."""


class Home(msgspec.Struct, frozen=True):
    """Where runs from elsewhere belong; their events do not say."""

    tenant_id: str = DEFAULT_TENANT
    project_id: str = "default"
    environment_id: str = "default"
    plan_id: str = "noetl"


class _Move(msgspec.Struct):
    """An event on its way to the log, and what became of it."""

    event: Incoming
    write: RunEventWrite
    outcome: Outcome = NOT_ATTEMPTED


class NoetlImporter:
    """Takes in events in NoETL's words. Runs that the store does not know are made with enforcement `observe`."""

    def __init__(
        self,
        log: LogReader,
        home: Home,
        *,
        may: Callable[[RunEventWrite], Refusal | None] | None = None,
        blocked: set[str] | None = None,
    ) -> None:
        self._log = log
        self._home = home
        self._may = may
        self._reader = NoetlReader()
        self._plans: dict[str, tuple[str, str | None]] = {}  # that events of this stream name
        self._runs: dict[str, tuple[RunIdentity, bool]] = {}  # and whether the store had it before
        self._recalled: set[str] = set()  # runs of which the store has told what ids stand for
        self._started: set[str] = set()  # runs that are known to have started
        self._taken: set[tuple[str, str, str | None, int]] = set()  # spots that this stream gave away
        self._reached: dict[Any, tuple[EntityPath | str | None, int]] = {}  # how far those came that wanted the same
        self._seen: set[tuple[str, str]] = set()  # events of this stream
        self._waiting: list[_Move] = []
        self.blocked: set[str] = set() if blocked is None else blocked

    async def take(self, lines: Sequence[bytes]) -> list[Outcome]:
        """Import some lines; a receipt or refusal for each, in order. Those of a run go in as their `seq` has it."""
        heads = [head_of(line) for line in lines]
        self._plans = {**plans_in(lines, heads), **self._plans}
        found: list[_Move | Outcome] = [NOT_ATTEMPTED] * len(lines)
        for place in in_sequence(heads):
            found[place] = await self._take(lines[place], heads[place])
        await self._flush()
        return [each.outcome if isinstance(each, _Move) else each for each in found]

    async def _take(self, line: bytes, head: Head) -> _Move | Outcome:
        try:
            found = await self._look_at(line, head)
        except RunwrightError as error:
            found = Refusal("refused", error.code, error.detail, error.facts)
        if isinstance(found, _Move | Receipt):
            if len(self._waiting) >= AT_A_TIME:
                await self._flush()
            return found
        await self._flush()  # those before it go in, whatever becomes of it
        if isinstance(found, Incoming):
            record = await self._find(found)
            return NOT_ATTEMPTED if record is None else _receipt(record)
        if head.run_id in self.blocked:
            return NOT_ATTEMPTED
        if head.run_id is not None:
            self.blocked.add(head.run_id)
        return found

    async def _find(self, event: Incoming) -> RunEventRecord | None:
        """The event as the log has it; None also where its run was not made, because its first events were refused."""
        if await run_or_none(self._log, event.run_id) is None:
            return None
        return await self._log.find_by_id(event.run_id, event.event_id)

    async def _look_at(self, line: bytes, head: Head) -> _Move | Outcome | Incoming:
        """The event on its way; its receipt, if the log has it; itself, if it came before in this stream."""
        document = _document(line)
        if head.run_id in self.blocked:
            return NOT_ATTEMPTED
        if head.run_id is not None and head.run_id not in self._recalled:
            await self._recall(head.run_id, document)
        event = self._reader.read(document)
        run, is_known = await self._run(event.run_id)
        if (run.run_id, event.event_id) in self._seen:
            return event
        if is_known and (record := await self._log.find_by_id(run.run_id, event.event_id)) is not None:
            return _receipt(record)
        event = await self._place(event)
        move = _Move(event, _write(event, run))
        if self._may is not None and (refusal := self._may(move.write)) is not None:
            return refusal
        await self._start(event, run)
        self._seen.add((run.run_id, event.event_id))
        self._waiting.append(move)
        return move

    async def _recall(self, run_id: str, document: dict[str, Any]) -> None:
        """Learn from the log what the ids of a run stand for, if an event has some that mean nothing here."""
        _, is_known = await self._run(run_id)
        if not is_known or not self._reader.is_lost(document):
            return
        self._recalled.add(run_id)
        after, wanted = 0, EventFilter(sorted(TELLING))
        while page := await self._log.select(run_id, wanted, after):
            for record in page:
                self._reader.recall(record)
            after = page[-1].run_seq

    async def _run(self, run_id: str) -> tuple[RunIdentity, bool]:
        known = self._runs.get(run_id)
        if known is None:
            known = self._runs[run_id] = await self._find_run(run_id)
        return known

    async def _find_run(self, run_id: str) -> tuple[RunIdentity, bool]:
        row = await run_or_none(self._log, run_id)
        if row is not None and row.identity.tenant_id == self._home.tenant_id:
            return row.identity, True
        home = msgspec.structs.asdict(self._home)
        plan_id, version = self._plans.get(run_id, (home["plan_id"], None))
        return new_run(run_id, **{**home, "plan_id": plan_id, "plan_version": version or "noetl"}), False

    # Where an event is put

    async def _place(self, event: Incoming) -> Incoming:
        """The event where there is room for it. Where there was none before there is none now."""
        wanted = (event.run_id, *event.spot, event.says_visit)
        event = event.at(*self._reached.get(wanted, (event.place, event.attempt)))
        for _ in range(MOST_SPOTS):
            if not await self._is_taken(event):
                break
            event = event.further()
        self._reached[wanted] = (event.place, event.attempt)
        self._taken.add((event.run_id, *event.spot))
        self._reader.learn(event)
        return event

    async def _is_taken(self, event: Incoming) -> bool:
        """Whether another event is where this one would be."""
        _, is_known = self._runs[event.run_id]
        for spot in (event.spot, *event.rivals):
            if (event.run_id, *spot) in self._taken:
                return True
            if is_known and await self._log.find_event(event.run_id, *spot) is not None:
                return True
        return False

    async def _start(self, event: Incoming, run: RunIdentity) -> None:
        """Say that the run has started, where this event shows it and nobody ever says so."""
        if event.event_type == "RunStarted":
            self._started.add(run.run_id)
        if not event.is_under_way or run.run_id in self._started:
            return
        self._started.add(run.run_id)
        start = event.implied("RunStarted", IMPLIED_START)
        move = _Move(start, _write(start, run))
        if not await self._is_taken(start) and (self._may is None or self._may(move.write) is None):
            self._taken.add((run.run_id, *start.spot))
            self._waiting.append(move)

    # Into the log

    async def _flush(self) -> None:
        waiting, self._waiting = self._waiting, []
        while waiting:
            waiting = await self._append(waiting)
        if len(self._taken) > MOST_REMEMBERED:  # from here on the store is asked
            self._taken.clear()
            self._reached.clear()
            self._seen.clear()
            self._runs = {run_id: (run, True) for run_id, (run, _) in self._runs.items()}

    async def _append(self, moves: list[_Move]) -> list[_Move]:
        """Hand events to the log; give back those that have to be tried again, elsewhere or once more."""
        blocked, writes = set(self.blocked), [move.write for move in moves]
        outcomes = await self._log.ingest(writes, blocked=blocked, enforcement=Enforcement.OBSERVE)
        again: list[_Move] = []
        reopened: set[str] = set()
        for move, outcome in zip(moves, outcomes, strict=True):
            move.outcome, run_id = outcome, move.event.run_id
            is_held_up = run_id in reopened and outcome.status == NOT_ATTEMPTED.status
            is_done = not is_held_up and await self._is_done(move)
            if isinstance(outcome, Refusal) and (not is_done or isinstance(move.outcome, Receipt)):
                reopened.add(run_id)
            if not is_done:
                move.write = _write(move.event, self._runs[run_id][0])
                again.append(move)
        self.blocked |= blocked - reopened
        return again

    async def _is_done(self, move: _Move) -> bool:
        """Whether its outcome stands. Others may write at the same time: if one of them was faster, the event moves on;
        unless it was this very event."""
        outcome, event = move.outcome, move.event
        if isinstance(outcome, Receipt):
            is_own = uuid4_bytes(outcome.event_id) == uuid4_bytes(move.write.event_id)
            if outcome.status == "appended" or is_own or event.event_id == IMPLIED_START:
                return True
            if await self._is_there(move):
                return True
            self._runs[event.run_id] = (self._runs[event.run_id][0], True)
            move.event = await self._place(event.further())
            return False
        if outcome.code == ErrorCode.EVENT_ID_REUSED:
            await self._is_there(move)
        elif outcome.code == ErrorCode.RUN_CONTEXT_MISMATCH and not self._runs[event.run_id][1]:
            self._runs[event.run_id] = await self._find_run(event.run_id)  # others have made it in the meantime
            return not self._runs[event.run_id][1]
        return True

    async def _is_there(self, move: _Move) -> bool:
        record = await self._log.find_by_id(move.event.run_id, move.event.event_id)
        if record is not None:
            move.outcome = _receipt(record)
        return record is not None


def _document(line: bytes) -> dict[str, Any]:
    try:
        document = msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        document = None
    if not isinstance(document, dict):
        sentence = "This is not a JSON object. Give one event a line; of a list, `jq -c '.[]'` makes lines."
        raise RunwrightError(ErrorCode.SCHEMA_VALIDATION_FAILED, sentence)
    return document  # pyright: ignore[reportUnknownVariableType]


def _write(event: Incoming, run: RunIdentity) -> RunEventWrite:
    is_ours = uuid4_bytes(event.event_id) is not None
    made = new_event(
        event.event_type,
        run,
        step_id=event.step_id,
        attempt=event.attempt,
        emitted_at=event.emitted_at,
        event_id=event.event_id if is_ours else _id_for(event),
        emitted_by=event.emitted_by,
    )
    rest = event.rest(rendered(made, dict(event.payload), 1))
    payload = {**event.payload, REST: rest} if rest else event.payload
    return msgspec.structs.replace(
        made,
        foreign_event_id=None if is_ours else event.event_id,
        raw_payload=encode_payload(payload) if payload else NO_PAYLOAD,
    )


def _id_for(event: Incoming) -> str:
    """Always the same for an event from elsewhere, so that no two importers can store it twice."""
    name = f"{event.run_id}|{event.event_id}".encode("utf-8", "surrogatepass")
    return str(uuid.UUID(bytes=hashlib.sha256(name).digest()[:16], version=4))


def _receipt(record: RunEventRecord) -> Receipt:
    return Receipt("duplicate", record.event_id, record.run_seq, record.persisted_at, idempotent=True, persisted=True)
