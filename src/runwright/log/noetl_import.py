"""Taking in logs of NoETL: each event once, by its execution and its id, whatever form that id has."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from runwright.contract.envelope import uuid4_bytes
from runwright.contract.errors import ErrorCode, RunwrightError
from runwright.contract.events import Receipt, Refusal, RunEventRecord, RunEventWrite, RunIdentity
from runwright.contract.noetl_read import Incoming, NoetlReader
from runwright.contract.transitions import Enforcement

from .judge import NOT_ATTEMPTED
from .model import Outcome
from .open import new_event, new_run
from .reader import LogReader

MOST_REMEMBERED = 100_000
MOST_SPOTS = 100_000  # that one event may be moved on, before it is refused


class Home(msgspec.Struct, frozen=True):
    """Where runs from elsewhere belong; their events do not say."""

    tenant_id: str = "default"
    project_id: str = "default"
    environment_id: str = "default"
    plan_id: str = "noetl"


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
        self._runs: dict[str, tuple[RunIdentity, bool]] = {}  # and whether the store had it before
        self._taken: set[tuple[str, str, str | None, int]] = set()  # spots, of runs that this stream made
        self._seen: set[tuple[str, str]] = set()  # and their events
        self.blocked: set[str] = set() if blocked is None else blocked

    async def take(self, lines: Sequence[bytes]) -> list[Outcome]:
        """Import some lines; a receipt or refusal for each, in order."""
        outcomes: list[Outcome] = []
        waiting: list[RunEventWrite] = []
        for line in lines:
            found = await self._look_at(line)
            if isinstance(found, RunEventWrite):
                waiting.append(found)
                continue
            outcomes += await self._ingest(waiting)  # those before it go in, whatever becomes of it
            waiting = []
            if isinstance(found, Incoming):
                found = await self._again(found)
            run_id = _run_id(line)
            if isinstance(found, Refusal) and run_id is not None:
                found = NOT_ATTEMPTED if run_id in self.blocked else found
                self.blocked.add(run_id)
            outcomes.append(found)
        outcomes += await self._ingest(waiting)
        if len(self._taken) > MOST_REMEMBERED:  # from here on the store is asked
            self._taken.clear()
            self._seen.clear()
            self._runs = {run_id: (run, True) for run_id, (run, _) in self._runs.items()}
        return outcomes

    async def _ingest(self, events: list[RunEventWrite]) -> list[Outcome]:
        return await self._log.ingest(events, blocked=self.blocked, enforcement=Enforcement.OBSERVE) if events else []

    async def _again(self, event: Incoming) -> Outcome:
        """The receipt of an event that came in this stream before."""
        record = await self._log.find_by_id(event.run_id, event.event_id)
        return NOT_ATTEMPTED if record is None else _receipt(record)

    async def _look_at(self, line: bytes) -> RunEventWrite | Outcome | Incoming:
        """The event in our words; its receipt, if the log has it; itself, if it came before; or why it is refused."""
        try:
            return await self._event(line)
        except RunwrightError as error:
            return Refusal("refused", error.code, error.detail, error.facts)

    async def _event(self, line: bytes) -> RunEventWrite | Outcome | Incoming:
        try:
            document = msgspec.json.decode(line)
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            document = None
        if not isinstance(document, dict):
            sentence = "This is not a JSON object. Give one event a line; of a list, `jq -c '.[]'` makes lines."
            raise RunwrightError(ErrorCode.SCHEMA_VALIDATION_FAILED, sentence)
        event = self._reader.read(document)  # pyright: ignore[reportUnknownArgumentType]
        if event.run_id in self.blocked:
            return NOT_ATTEMPTED
        run, is_known = await self._run(event)
        if (run.run_id, event.event_id) in self._seen:
            return event
        if is_known and (record := await self._log.find_by_id(run.run_id, event.event_id)) is not None:
            return _receipt(record)
        for _ in range(MOST_SPOTS):
            if not await self._is_taken(run.run_id, event, is_known=is_known):
                break
            event = event.further()
        write = _write(event, run, self._log.ids.event_id)
        if self._may is not None and (refusal := self._may(write)) is not None:
            return refusal
        self._seen.add((run.run_id, event.event_id))
        self._taken.add((run.run_id, *event.spot))
        return write

    async def _is_taken(self, run_id: str, event: Incoming, *, is_known: bool) -> bool:
        """Whether another event is where this one would be."""
        for spot in (event.spot, *event.rivals):
            if (run_id, *spot) in self._taken:
                return True
            if is_known and await self._log.find_event(run_id, *spot) is not None:
                return True
        return False

    async def _run(self, event: Incoming) -> tuple[RunIdentity, bool]:
        known = self._runs.get(event.run_id)
        if known is not None:
            return known
        try:
            found = (await self._log.find_run(event.run_id)).identity
        except RunwrightError as error:
            if error.code != ErrorCode.RUN_NOT_FOUND:
                raise
            found = None
        if found is not None and found.tenant_id == self._home.tenant_id:
            known = (found, True)
        else:
            plan_id, version = event.plan or (self._home.plan_id, "noetl")
            place = msgspec.structs.asdict(self._home)
            del place["plan_id"]
            identity = new_run(event.run_id, plan_id, version, **place)
            known = (identity, False)
        self._runs[event.run_id] = known
        return known


def _write(event: Incoming, run: RunIdentity, new_id: Callable[[], str]) -> RunEventWrite:
    is_ours = uuid4_bytes(event.event_id) is not None
    made = new_event(
        event.event_type,
        run,
        step_id=event.step_id,
        payload=event.payload or None,
        attempt=event.attempt,
        emitted_at=event.emitted_at,
        event_id=event.event_id if is_ours else new_id(),
        emitted_by=event.emitted_by,
    )
    return made if is_ours else msgspec.structs.replace(made, foreign_event_id=event.event_id)


def _receipt(record: RunEventRecord) -> Receipt:
    return Receipt("duplicate", record.event_id, record.run_seq, record.persisted_at, idempotent=True, persisted=True)


class _Head(msgspec.Struct):
    execution_id: str | int | None = None


def _run_id(line: bytes) -> str | None:
    try:
        found = msgspec.json.decode(line, type=_Head).execution_id
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return None
    return None if found is None else str(found)
