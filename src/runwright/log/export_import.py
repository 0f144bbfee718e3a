"""Export and import of runs as JSON lines."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

import msgspec

from runwright.contract.envelope import decode_event
from runwright.contract.errors import ErrorCode, RunwrightError
from runwright.contract.events import Refusal, RunEventWrite, RunIdentity
from runwright.contract.legacy_v1 import V1Normaliser, is_before_v2
from runwright.contract.transitions import Enforcement
from runwright.log.append.authority import NOT_ATTEMPTED
from runwright.log.append.prepare import checked_context, run_id_in, run_identity_of

from .model import AppendResult
from .protocols import LogReader, run_or_none


async def export_run(log: LogReader, run_id: str) -> AsyncIterator[bytes]:
    """Yield every event of a run as one JSON object per line."""
    encoder = msgspec.json.Encoder()
    async for record in log.events(run_id):
        yield encoder.encode(record)


class ExportedEvent(RunEventWrite, frozen=True, kw_only=True):
    """An event exported from a log. The fields set by that log's append authority are accepted and ignored."""

    run_seq: int | None = None
    persisted_at: str | None = None
    hash: str | None = None
    redacted: bool | None = None


class Importer:
    """Imports events from other logs: exported events, new events, and streams older than v2.

    Runs that are not in the store are created with enforcement `observe`: events that happened elsewhere cannot be
    refused, so illegal transitions are marked instead. Order and payloads are preserved; runSeq, persistedAt and hash
    are assigned by this store, which is responsible for them.
    """

    def __init__(self, log: LogReader) -> None:
        self._log = log
        self._normaliser = V1Normaliser(log.ids)
        self._blocked: set[str] = set()
        self._known: dict[str, RunIdentity] = {}

    async def import_lines(self, lines: Sequence[bytes]) -> list[AppendResult]:
        """Import lines; return a receipt or refusal for each, in order."""
        outcomes: list[AppendResult] = []
        waiting: list[RunEventWrite] = []
        for line in lines:
            try:
                waiting.append(await self._decode(line))
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

    async def _decode(self, line: bytes) -> RunEventWrite:
        document = _decode_object(line)
        run_id = document.get("runId")
        known = await self._find_identity(run_id) if isinstance(run_id, str) else None
        if is_before_v2(document):
            event = decode_event(msgspec.json.encode(self._normaliser.normalise(document, known)))
        else:
            event = decode_event(line, ExportedEvent)
        if known is None:
            self._known[event.run_id] = run_identity_of(checked_context(event))
        return event

    async def _ingest(self, events: list[RunEventWrite]) -> list[AppendResult]:
        return await self._log.ingest(events, blocked=self._blocked, enforcement=Enforcement.OBSERVE)

    async def _find_identity(self, run_id: str) -> RunIdentity | None:
        if run_id not in self._known and (row := await run_or_none(self._log, run_id)) is not None:
            self._known[run_id] = row.identity
        return self._known.get(run_id)


def _decode_object(line: bytes) -> dict[str, Any]:
    try:
        document = msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        document = None
    if not isinstance(document, dict):
        raise RunwrightError(ErrorCode.SCHEMA_VALIDATION_FAILED, "Invalid line: not a JSON object.")
    return document  # pyright: ignore[reportUnknownVariableType]
