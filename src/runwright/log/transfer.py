"""Runs from one store to another: out as JSON lines, in as JSON lines."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

import msgspec

from runwright.contract.envelope import decode_event
from runwright.contract.errors import ErrorCode, RunwrightError
from runwright.contract.events import Refusal, RunEventWrite, RunIdentity
from runwright.contract.transitions import Enforcement
from runwright.contract.v1 import V1Normaliser, is_before_v2

from .judge import NOT_ATTEMPTED
from .model import Outcome
from .prepare import identity, known_run, run_id_in
from .reader import LogReader, run_or_none


async def export_run(log: LogReader, run_id: str) -> AsyncIterator[bytes]:
    """Every record of a run, a JSON object a line."""
    encoder = msgspec.json.Encoder()
    async for record in log.events(run_id):
        yield encoder.encode(record)


class ImportedEvent(RunEventWrite, frozen=True, kw_only=True):
    """An event that was in a log before. What that log's authority said of it is read and left behind."""

    run_seq: int | None = None
    persisted_at: str | None = None
    hash: str | None = None
    redacted: bool | None = None


class Importer:
    """Takes in events from elsewhere: records, writes, and streams of before v2.

    Runs that the store does not know are made with enforcement `observe`: what happened elsewhere
    happened, and illegal transitions are marked, not refused. Order and payloads are kept; runSeq,
    persistedAt and hash are given anew, because this store answers for them.
    """

    def __init__(self, log: LogReader) -> None:
        self._log = log
        self._normaliser = V1Normaliser(log.ids)
        self._blocked: set[str] = set()
        self._known: dict[str, RunIdentity] = {}

    async def take(self, lines: Sequence[bytes]) -> list[Outcome]:
        """Import some lines; a receipt or refusal for each, in order."""
        outcomes: list[Outcome] = []
        waiting: list[RunEventWrite] = []
        for line in lines:
            try:
                waiting.append(await self._event(line))
            except RunwrightError as error:
                outcomes += await self._ingest(waiting)
                waiting = []
                run_id = run_id_in(line)
                if run_id in self._blocked:
                    outcomes.append(NOT_ATTEMPTED)
                    continue
                outcomes.append(Refusal("refused", error.code, error.detail, error.facts))
                if run_id is not None:
                    self._blocked.add(run_id)
        return outcomes + await self._ingest(waiting)

    async def _event(self, line: bytes) -> RunEventWrite:
        document = _object(line)
        run_id = document.get("runId")
        known = await self._look_up(run_id) if isinstance(run_id, str) else None
        if is_before_v2(document):
            event = decode_event(msgspec.json.encode(self._normaliser.normalise(document, known)))
        else:
            event = decode_event(line, ImportedEvent)
        if known is None:
            self._known[event.run_id] = identity(known_run(event))
        return event

    async def _ingest(self, events: list[RunEventWrite]) -> list[Outcome]:
        return await self._log.ingest(events, blocked=self._blocked, enforcement=Enforcement.OBSERVE)

    async def _look_up(self, run_id: str) -> RunIdentity | None:
        if run_id not in self._known and (row := await run_or_none(self._log, run_id)) is not None:
            self._known[run_id] = row.identity
        return self._known.get(run_id)


def _object(line: bytes) -> dict[str, Any]:
    try:
        document = msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        document = None
    if not isinstance(document, dict):
        raise RunwrightError(ErrorCode.SCHEMA_VALIDATION_FAILED, "This line is not a JSON object.")
    return document  # pyright: ignore[reportUnknownVariableType]
