"""The Append Authority's working copy of a run: what it must know to judge the next event.

The run's constant-size fold is on its row. What a particular event needs beyond that (is this key
taken? has attempt 1 of this step failed?) follows from which idempotency keys exist, and those can be
derived. So no history is ever folded to append to a strict run. Small, busy runs keep all their keys
in memory; for others the store is asked. Runs that only observe are folded whole, because there a key
in the log does not mean that its event took effect.
"""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Callable, Iterable

import msgspec

from runwright.contract.keys import key_bytes
from runwright.contract.paths import signal_path
from runwright.contract.payloads import StepStarted
from runwright.contract.snapshot import RunSummary
from runwright.contract.transitions import ENDED, STEP_TRANSITIONS, Enforcement, StepStatus
from runwright.core.chain import GENESIS, StoredEvent, run_part
from runwright.core.evolve import approval_ref
from runwright.core.reading import may_name, read_payload
from runwright.core.state import RunState, StepCell

from .model import RunRow
from .prepare import Context, identity

INDEX_LIMIT = 2048
"""Runs of at most this many events keep their keys in memory. The stores' index of event ids begins
beyond it (see their schema): the ids of a run's first events are always at hand here."""

SeqOf = Callable[[bytes], "int | None"]

APPROVALS = ("ApprovalRequested", "ApprovalGranted", "ApprovalDenied")
_STEP_ENDS = (
    ("StepCompleted", StepStatus.SUCCESS),
    ("StepFailed", StepStatus.FAILED),
    ("StepSkipped", StepStatus.SKIPPED),
    ("StepStarted", StepStatus.RUNNING),
)


class Found(msgspec.Struct, gc=False):
    """What the store has under a key."""

    run_seq: int
    event_id: bytes
    persisted_at: int
    raw_payload: bytes | None
    payload_digest: bytes | None


class OpenRun:
    """One run, open for appending. Lives between appends; true only while its seq is the row's."""

    __slots__ = (
        "context",
        "early_ids",
        "edition",
        "enforcement",
        "epoch",
        "exists",
        "fresh",
        "head",
        "ids",
        "keys",
        "owner",
        "part",
        "persisted_at",
        "run_key",
        "state",
        "stored_seq",
        "stored_status",
        "whole",
    )

    def __init__(self, context: Context, enforcement: Enforcement) -> None:
        """A run that does not exist yet."""
        self.context = context
        self.enforcement = enforcement
        self.part = run_part(identity(context), enforcement)
        self.exists = False
        self.run_key = 0
        self.state = RunState()
        self.stored_seq = 0
        self.stored_status = ""
        self.head = GENESIS
        self.persisted_at = 0
        self.edition = 0
        self.owner: str | None = None
        self.epoch: int | None = None
        self.keys: dict[bytes, int] | None = {}
        self.ids: set[bytes] = set()  # of the indexed events, and of fresh ones
        self.early_ids: set[bytes] = set()  # of a large run's first events
        self.whole = True  # `state` knows every entity of the run
        self.fresh: dict[bytes, StoredEvent] = {}  # judged, not yet committed, by key

    @property
    def run_id(self) -> str:
        return self.context[0]

    @property
    def seq(self) -> int:
        return self.state.summary.last_event_seq

    def restore(self, row: RunRow) -> None:
        """Take over what the run's row says. Which entities exist is then no longer known."""
        self.exists = True
        self.run_key = row.run_key
        self.state = RunState(summary=copy.copy(row.summary))
        self.stored_seq = row.last_seq
        self.stored_status = self.state.summary.status
        self.head = row.head
        self.persisted_at = row.persisted_at
        self.edition = row.edition
        self.owner, self.epoch = row.owner, row.epoch
        self.keys = None if row.last_seq else {}
        self.ids = set()
        self.whole = row.last_seq == 0

    def index(self, rows: Iterable[tuple[bytes, int, bytes]]) -> None:
        """Keep every key of the run in memory."""
        self.keys = {}
        for key, seq, event_id in rows:
            self.keys[key] = seq
            self.ids.add(event_id)

    def remember(self, event: StoredEvent) -> None:
        """Note a judged event, not yet committed."""
        self.fresh[event.idempotency_key] = event
        self.ids.add(event.event_id)
        if self.keys is not None:
            self.keys[event.idempotency_key] = event.run_seq

    def forget_after(self, count: int) -> None:
        """Take back all but the first `count` of the events not yet committed."""
        for key, event in list(self.fresh.items())[count:]:
            del self.fresh[key]
            self.ids.discard(event.event_id)
            if self.keys is not None:
                del self.keys[key]

    def committed(self) -> None:
        self.exists = True
        self.stored_seq = self.seq
        self.stored_status = self.state.summary.status
        self.fresh = {}
        if self.keys is None:
            self.ids = set()
        if self.keys is not None and len(self.keys) > INDEX_LIMIT:
            self.keys, self.early_ids, self.ids = None, self.ids, set()
            if self.enforcement is Enforcement.STRICT:
                self._forget_entities()
        elif self.keys is None and self.enforcement is Enforcement.STRICT and len(self.state.steps) > INDEX_LIMIT:
            self._forget_entities()

    def id_is_taken(self, event_id: bytes) -> bool:
        """Whether an event in memory has this id; those of a large run beyond its first are not in memory."""
        return event_id in self.ids or event_id in self.early_ids

    def _forget_entities(self) -> None:
        self.state = RunState(summary=self.state.summary)
        self.whole = False

    # What an event needs to know of its entity

    def entity_keys(self, event: StoredEvent) -> list[tuple[str, bytes]]:
        """The keys whose presence tells all that judging this event needs, each with what it is about; none if it is
        known already."""
        if self.whole:
            return []
        signal = forcing_signal(event)
        wanted = [] if signal is None else [(signal, self._key(signal, 1, "SignalAccepted"))]
        if self._knows(event):
            return wanted
        for attempt, names in _entity_of(event):
            wanted += [(event.step_id or "", self._key(event.step_id, attempt, name)) for name in names]
        return wanted

    def recall_entity(self, event: StoredEvent, seq_of: SeqOf) -> bool:
        """Bring the event's entity into the state, from the keys that exist. True if a step was brought in."""
        signal = forcing_signal(event)
        if signal is not None and seq_of(self._key(signal, 1, "SignalAccepted")) is not None:
            self.state.signals[signal] = None
        if self._knows(event):
            return False
        newest = self.state.steps.get(event.step_id or "")
        cell: StepCell | None = None
        for attempt, names in _entity_of(event):
            seqs = {name: seq for name in names if (seq := seq_of(self._key(event.step_id, attempt, name))) is not None}
            if event.event_type in APPROVALS:
                if seqs:
                    self.state.approvals[approval_ref(event)] = seqs.keys() == {"ApprovalRequested"}
                return False
            status = next((status for name, status in _STEP_ENDS if name in seqs), None)
            if status is None:
                continue
            if newest is not None:  # known, but not how this earlier attempt of it ended
                newest.past = {**(newest.past or {}), attempt: status}
                continue
            retry = status is StepStatus.FAILED and seqs.get("StepRetryScheduled", 0) > seqs["StepFailed"]
            past = None if cell is None else {**(cell.past or {}), cell.attempt: cell.status}
            cell = StepCell(attempt, status, past, retry)
        if cell is None:
            return False
        self.state.steps[event.step_id or ""] = cell
        return True

    def doubt_step(self, event: StoredEvent, *, legal: bool) -> None:
        """Forget a step that was just brought in, unless the event proves that its attempt is the newest."""
        cell = self.state.steps[event.step_id or ""]
        if not legal or cell.attempt != event.logical_attempt_id:
            del self.state.steps[event.step_id or ""]

    def _knows(self, event: StoredEvent) -> bool:
        if event.event_type in APPROVALS:
            return approval_ref(event) in self.state.approvals
        cell = self.state.steps.get(event.step_id or "")
        if event.event_type == "StepRetryScheduled":
            return cell is not None  # it concerns the newest attempt or none
        if event.event_type not in STEP_TRANSITIONS:
            return True
        attempt = event.logical_attempt_id
        return cell is not None and (attempt in (cell.attempt, cell.attempt + 1) or attempt in (cell.past or ()))

    def _key(self, step_id: str | None, attempt: int, event_type: str) -> bytes:
        run_id, _, _, _, plan_id, plan_version = self.context
        return key_bytes(run_id, step_id, attempt, event_type, plan_id, plan_version)


def _entity_of(event: StoredEvent) -> list[tuple[int, tuple[str, ...]]]:
    """By attempt, the types whose keys show the state of the event's entity. Never more than that takes:
    a step that was not started has not ended, and whether this very event is there was asked before."""
    attempt = event.logical_attempt_id
    if event.event_type in APPROVALS:
        return [(attempt, APPROVALS)]
    if event.event_type == "StepRetryScheduled":
        return [
            (attempt, ("StepCompleted", "StepFailed", "StepSkipped")),
            (attempt + 1, ("StepStarted", "StepSkipped")),
        ]
    if event.event_type == "StepStarted":
        now: tuple[str, ...] = ("StepSkipped",)
    else:
        now = ("StepStarted", "StepCompleted", "StepFailed", "StepSkipped")
    if attempt == 1 or event.event_type in ("StepCompleted", "StepFailed"):
        return [(attempt, now)]
    earlier = ("StepStarted", "StepCompleted", "StepFailed", "StepSkipped", "StepRetryScheduled")
    return [(attempt - 1, earlier), (attempt, now)]


def forcing_signal(event: StoredEvent) -> str | None:
    """The path of the signal that a forced start names."""
    if event.event_type != "StepStarted" or not may_name(event, b"forcedBy"):
        return None
    forced_by = read_payload(StepStarted, event).forced_by
    return None if forced_by is None else signal_path(forced_by)


_encode_summary = msgspec.json.Encoder().encode


def encode_summary(summary: RunSummary) -> str:
    return _encode_summary(summary).decode()


class OpenRuns:
    """The runs that are open, the longest unused ones dropped first; so many runs and so many keys in all."""

    def __init__(self, max_runs: int = 2048, max_keys: int = 250_000) -> None:
        self._max_runs = max_runs
        self._max_keys = max_keys
        self._runs: OrderedDict[str, OpenRun] = OrderedDict()
        self._keys = 0  # kept in memory, over all runs
        self._counted: dict[str, int] = {}

    def get(self, run_id: str) -> OpenRun | None:
        run = self._runs.get(run_id)
        if run is not None:
            self._runs.move_to_end(run_id)
        return run

    def put(self, run: OpenRun) -> None:
        self._runs[run.run_id] = run
        self._count(run)
        while len(self._runs) > self._max_runs or (self._keys > self._max_keys and len(self._runs) > 1):
            self.drop(next(iter(self._runs)))

    def drop(self, run_id: str) -> None:
        self._runs.pop(run_id, None)
        self._keys -= self._counted.pop(run_id, 0)

    def clear(self) -> None:
        self._runs.clear()
        self._counted.clear()
        self._keys = 0

    def settle(self, run: OpenRun) -> None:
        """After a commit: keep the run open unless it is over."""
        run.committed()
        if run.state.summary.status in ENDED:
            self.drop(run.run_id)
        else:
            self.put(run)

    def _count(self, run: OpenRun) -> None:
        kept = len(run.ids) + len(run.early_ids)
        self._keys += kept - self._counted.get(run.run_id, 0)
        self._counted[run.run_id] = kept
