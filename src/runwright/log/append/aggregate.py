"""In-memory state of a run that is needed to validate its next event, and a cache of such states.

The run's constant-size summary is in its row. Everything else that an event depends on (is this key used? has attempt
1 of this step failed?) follows from the idempotency keys that exist, and keys can be derived. Therefore the history of
a strict run is never folded to append to it. Short runs have all their keys in memory; for others the store is
queried. Runs with enforcement `observe` are folded completely, because there a key in the log does not imply that its
event took effect.
"""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Callable, Iterable

import msgspec

from runwright.contract.events import RunConstants
from runwright.contract.keys import key_bytes
from runwright.contract.paths import signal_path
from runwright.contract.payloads import StepStarted
from runwright.contract.snapshot import RunSummary
from runwright.contract.transitions import ENDED, STEP_TRANSITIONS, Enforcement, StepStatus
from runwright.core.fold.evolve import approval_key
from runwright.core.fold.payload_reader import may_contain_field, read_payload
from runwright.core.fold.run_state import RunState, StepState
from runwright.core.integrity.chain import GENESIS, StoredEvent, encode_run_fields
from runwright.log.model import RunRow

from .prepare import run_identity_of

INDEX_LIMIT = 2048
"""Runs of at most this many events have their keys in memory. The stores' index of event ids starts after this
number (see their schema): the ids of a run's first events are always in memory here."""

SeqLookup = Callable[[bytes], "int | None"]

APPROVALS = ("ApprovalRequested", "ApprovalGranted", "ApprovalDenied")
_STEP_ENDS = (
    ("StepCompleted", StepStatus.SUCCESS),
    ("StepFailed", StepStatus.FAILED),
    ("StepSkipped", StepStatus.SKIPPED),
    ("StepStarted", StepStatus.RUNNING),
)


class StoredKey(msgspec.Struct, gc=False):
    """The stored event that has a key, as far as a duplicate needs it."""

    run_seq: int
    event_id: bytes
    persisted_at: int
    raw_payload: bytes | None
    payload_digest: bytes | None


class RunAggregate:
    """One run, loaded for appending. Cached between appends; valid only while its seq equals that of the row."""

    __slots__ = (
        "context",
        "early_ids",
        "edition",
        "enforcement",
        "epoch",
        "exists",
        "head",
        "ids",
        "is_complete",
        "keys",
        "owner",
        "part",
        "persisted_at",
        "run_key",
        "state",
        "stored_seq",
        "stored_status",
        "uncommitted",
    )

    def __init__(self, context: RunConstants, enforcement: Enforcement) -> None:
        """Create the aggregate of a run that does not exist yet."""
        self.context = context
        self.enforcement = enforcement
        self.part = encode_run_fields(run_identity_of(context), enforcement)
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
        self.ids: set[bytes] = set()  # of the indexed events and the uncommitted ones
        self.early_ids: set[bytes] = set()  # of the first INDEX_LIMIT events of a long run
        self.is_complete = True  # whether `state` contains every entity of the run
        self.uncommitted: dict[bytes, StoredEvent] = {}  # validated but not committed events, by key

    @property
    def run_id(self) -> str:
        return self.context.run_id

    @property
    def seq(self) -> int:
        return self.state.summary.last_event_seq

    def restore(self, row: RunRow) -> None:
        """Load the summary and owner from the run's row. The entities of the run are then not in the state."""
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
        self.is_complete = row.last_seq == 0

    def index(self, rows: Iterable[tuple[bytes, int, bytes]]) -> None:
        """Load every key and event id of the run into memory."""
        self.keys = {}
        for key, seq, event_id in rows:
            self.keys[key] = seq
            self.ids.add(event_id)

    def add(self, event: StoredEvent) -> None:
        """Add a validated event that is not committed yet."""
        self.uncommitted[event.idempotency_key] = event
        self.ids.add(event.event_id)
        if self.keys is not None:
            self.keys[event.idempotency_key] = event.run_seq

    def truncate(self, count: int) -> None:
        """Remove all but the first `count` uncommitted events."""
        for key, event in list(self.uncommitted.items())[count:]:
            del self.uncommitted[key]
            self.ids.discard(event.event_id)
            if self.keys is not None:
                del self.keys[key]

    def mark_committed(self) -> None:
        """Move the uncommitted events to the stored ones, and drop the index once the run exceeds INDEX_LIMIT."""
        self.exists = True
        self.stored_seq = self.seq
        self.stored_status = self.state.summary.status
        self.uncommitted = {}
        if self.keys is None:
            self.ids = set()
        if self.keys is not None and len(self.keys) > INDEX_LIMIT:
            self.keys, self.early_ids, self.ids = None, self.ids, set()
            if self.enforcement is Enforcement.STRICT:
                self._drop_entities()
        elif self.keys is None and self.enforcement is Enforcement.STRICT and len(self.state.steps) > INDEX_LIMIT:
            self._drop_entities()

    def has_event_id(self, event_id: bytes) -> bool:
        """Whether an event in memory has this id. Later events of a long run are not in memory."""
        return event_id in self.ids or event_id in self.early_ids

    def _drop_entities(self) -> None:
        self.state = RunState(summary=self.state.summary)
        self.is_complete = False

    # The entity of an event

    def entity_keys(self, event: StoredEvent) -> list[tuple[str, bytes]]:
        """Return the keys whose presence determines the state of the event's entity, each with its entity.

        Empty if the state is already loaded.
        """
        if self.is_complete:
            return []
        signal = forcing_signal(event)
        keys = [] if signal is None else [(signal, self._key(signal, 1, "SignalAccepted"))]
        if self._has_entity(event):
            return keys
        for attempt, names in _entity_event_types(event):
            keys += [(event.step_id or "", self._key(event.step_id, attempt, name)) for name in names]
        return keys

    def load_entity(self, event: StoredEvent, seq_of: SeqLookup) -> bool:
        """Load the event's entity into the state, derived from the keys that exist. True if a step was loaded."""
        signal = forcing_signal(event)
        if signal is not None and seq_of(self._key(signal, 1, "SignalAccepted")) is not None:
            self.state.signals[signal] = None
        if self._has_entity(event):
            return False
        newest = self.state.steps.get(event.step_id or "")
        step: StepState | None = None
        for attempt, names in _entity_event_types(event):
            seqs = {name: seq for name in names if (seq := seq_of(self._key(event.step_id, attempt, name))) is not None}
            if event.event_type in APPROVALS:
                if seqs:
                    self.state.approvals[approval_key(event)] = seqs.keys() == {"ApprovalRequested"}
                return False
            status = next((status for name, status in _STEP_ENDS if name in seqs), None)
            if status is None:
                continue
            if newest is not None:  # The step is loaded, but not the end of this earlier attempt.
                newest.past = {**(newest.past or {}), attempt: status}
                continue
            retry = status is StepStatus.FAILED and seqs.get("StepRetryScheduled", 0) > seqs["StepFailed"]
            past = None if step is None else {**(step.past or {}), step.attempt: step.status}
            step = StepState(attempt, status, past, retry)
        if step is None:
            return False
        self.state.steps[event.step_id or ""] = step
        return True

    def evict_step_unless_newest(self, event: StoredEvent, *, legal: bool) -> None:
        """Remove a step that was just loaded, unless the event proves that its attempt is the newest."""
        step = self.state.steps[event.step_id or ""]
        if not legal or step.attempt != event.logical_attempt_id:
            del self.state.steps[event.step_id or ""]

    def _has_entity(self, event: StoredEvent) -> bool:
        if event.event_type in APPROVALS:
            return approval_key(event) in self.state.approvals
        step = self.state.steps.get(event.step_id or "")
        if event.event_type == "StepRetryScheduled":
            return step is not None  # It concerns only the newest attempt.
        if event.event_type not in STEP_TRANSITIONS:
            return True
        attempt = event.logical_attempt_id
        return step is not None and (attempt in (step.attempt, step.attempt + 1) or attempt in (step.past or ()))

    def _key(self, step_id: str | None, attempt: int, event_type: str) -> bytes:
        run = self.context
        return key_bytes(run.run_id, step_id, attempt, event_type, run.plan_id, run.plan_version)


def _entity_event_types(event: StoredEvent) -> list[tuple[int, tuple[str, ...]]]:
    """Return, by attempt, the event types whose keys determine the state of the event's entity.

    No more than necessary: a step that was not started has not ended, and duplicates were checked before.
    """
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
    """Return the path of the signal that a forced start refers to, or None."""
    if event.event_type != "StepStarted" or not may_contain_field(event, b"forcedBy"):
        return None
    forced_by = read_payload(StepStarted, event).forced_by
    return None if forced_by is None else signal_path(forced_by)


_encode_summary = msgspec.json.Encoder().encode


def encode_summary(summary: RunSummary) -> str:
    return _encode_summary(summary).decode()


class AggregateCache:
    """Least recently used cache of aggregates, limited by the number of runs and the total number of keys."""

    def __init__(self, max_runs: int = 2048, max_keys: int = 250_000) -> None:
        self._max_runs = max_runs
        self._max_keys = max_keys
        self._runs: OrderedDict[str, RunAggregate] = OrderedDict()
        self._keys = 0  # in memory, over all runs
        self._key_counts: dict[str, int] = {}

    def get(self, run_id: str) -> RunAggregate | None:
        run = self._runs.get(run_id)
        if run is not None:
            self._runs.move_to_end(run_id)
        return run

    def add(self, run: RunAggregate) -> None:
        self._runs[run.run_id] = run
        self._count(run)
        while len(self._runs) > self._max_runs or (self._keys > self._max_keys and len(self._runs) > 1):
            self.drop(next(iter(self._runs)))

    def drop(self, run_id: str) -> None:
        self._runs.pop(run_id, None)
        self._keys -= self._key_counts.pop(run_id, 0)

    def clear(self) -> None:
        self._runs.clear()
        self._key_counts.clear()
        self._keys = 0

    def on_committed(self, run: RunAggregate) -> None:
        """Cache a committed run unless it has ended."""
        run.mark_committed()
        if run.state.summary.status in ENDED:
            self.drop(run.run_id)
        else:
            self.add(run)

    def _count(self, run: RunAggregate) -> None:
        count = len(run.ids) + len(run.early_ids)
        self._keys += count - self._key_counts.get(run.run_id, 0)
        self._key_counts[run.run_id] = count
