"""Validation of appends by key look-ups: it gives the same answers as a fold of the whole history.

The log stores a run's summary on its row and derives the rest from the keys that exist. These tests compare
its answers, event by event, with those of an authority that folds every event it accepted, and with those
of a log whose key index is limited.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import runwright as rw
from runwright.core.fold.evolve import transition
from runwright.core.fold.run_state import RunState
from runwright.log.append.aggregate import RunAggregate
from runwright.log.append.authority import RunAppend
from runwright.log.append.prepare import prepare
from runwright.log.memory import MemoryStore
from support.event_streams import STEPS, Event, Opinion, streams, to_write


class FixedClock:
    """A clock that does not advance, so that receipts of two logs can be compared."""

    def now(self) -> int:
        return 1_769_846_400_000_000

    def monotonic(self) -> float:
        return 0.0

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class Batch(NamedTuple):
    """Events that are appended together: all or nothing, or up to the first refusal."""

    events: list[rw.RunEventWrite]
    atomic: bool


Outcomes = list[rw.Receipt | rw.Refusal]
Sizes = list[tuple[int, bool]]


def to_batches(events: list[Event], sizes: Sizes) -> list[Batch]:
    writes = [to_write(event, place) for place, event in enumerate(events, 1)]
    batches: list[Batch] = []
    for number in range(len(writes)):
        if not writes:
            break
        size, atomic = sizes[number % len(sizes)]
        batches.append(Batch(writes[:size], atomic))
        writes = writes[size:]
    return batches


batch_sizes = st.lists(st.tuples(st.integers(1, 4), st.booleans()), min_size=1, max_size=4)


# Three implementations that answer the same batches


class FoldingAuthority:
    """An append authority that folds every accepted event into one state, and validates against it."""

    def __init__(self) -> None:
        self.state = RunState(detailed=True)
        self.accepted: dict[str, rw.Receipt] = {}

    def answer(self, batch: Batch) -> Outcomes:
        saved = copy.deepcopy((self.state, self.accepted))
        outcomes: Outcomes = []
        for event in batch.events:
            outcome = self._validate(event)
            if isinstance(outcome, rw.Receipt):
                outcomes.append(outcome)
                continue
            rest = len(batch.events) - len(outcomes) - 1
            if batch.atomic:
                self.state, self.accepted = saved
                outcomes = [receipt if receipt.run_seq <= len(saved[1]) else NOT_ATTEMPTED for receipt in outcomes]
            return [*outcomes, outcome, *[NOT_ATTEMPTED] * rest]
        return outcomes

    def _validate(self, event: rw.RunEventWrite) -> rw.Receipt | rw.Refusal:
        earlier = self.accepted.get(event.idempotency_key)
        if earlier is not None:
            return msgspec.structs.replace(earlier, status="duplicate", idempotent=True, persisted=False)
        if any(receipt.event_id == event.event_id for receipt in self.accepted.values()):
            detail = f"eventId {event.event_id} is already used by another event of this run. Generate a new UUID v4."
            return rw.Refusal("refused", "EVENT_ID_REUSED", detail)
        seq = self.state.summary.last_event_seq + 1
        fields = {name: getattr(event, name) for name in event.__struct_fields__}
        record = rw.RunEventRecord(**fields, run_seq=seq, persisted_at=NOW, hash="")
        invalid = transition(self.state, record)
        if invalid is not None:
            facts = {
                "attemptedEventType": invalid.attempted_event_type,
                "expectedState": invalid.expected_state,
                "actualState": invalid.actual_state,
            }
            return rw.Refusal("refused", "INVALID_TRANSITION", invalid.detail, facts)
        self.state.summary.last_event_seq = seq
        receipt = rw.Receipt("appended", event.event_id, seq, NOW, False, True)
        self.accepted[event.idempotency_key] = receipt
        return receipt


NOW = "2026-01-31T08:00:00.000000Z"
NOT_ATTEMPTED = rw.Refusal(
    "not_attempted", "NOT_ATTEMPTED", "Another event of this run was refused; this one was not written."
)


async def answer(log: rw.RunLog, batch: Batch) -> Outcomes:
    if not batch.atomic:
        return await log.ingest(batch.events)
    try:
        return list(await log.append(batch.events))
    except rw.AppendRefused as error:
        return list(error.results)


class CachingStore(MemoryStore):
    """The memory store, with aggregates that are cached from one append to the next as in the other stores."""

    def __init__(self) -> None:
        super().__init__(clock=FixedClock())
        self._cached: dict[str, RunAggregate] = {}

    def _load_aggregate(self, run: object) -> RunAggregate:
        row = run.row  # type: ignore[attr-defined]
        if row.identity.run_id not in self._cached:
            self._cached[row.identity.run_id] = super()._load_aggregate(run)  # type: ignore[arg-type]
        return self._cached[row.identity.run_id]

    def _commit(self, open_run: RunAggregate) -> None:
        super()._commit(open_run)
        open_run.run_key = self._runs[open_run.run_id].row.run_key
        open_run.mark_committed()
        self._cached[open_run.run_id] = open_run


def caching() -> rw.RunLog:
    return rw.RunLog(CachingStore())


async def append_group(log: rw.RunLog, group: list[Batch]) -> list[Outcomes]:
    """Commit the appends of several callers as one."""
    units = [RunAppend("run-1", [prepare(event) for event in batch.events], batch.atomic) for batch in group]
    await log.store.append_queue.submit(units)
    return [list(unit.results) for unit in units]


@contextmanager
def index_limit(limit: int | None) -> Iterator[None]:
    """Limit the number of keys that a run keeps in memory."""
    with pytest.MonkeyPatch.context() as patch:
        if limit is not None:
            patch.setattr("runwright.log.append.aggregate.INDEX_LIMIT", limit)
            patch.setattr("runwright.log.memory.INDEX_LIMIT", limit)
        yield


async def append_batches(
    batches: list[Batch], limit: int | None, make: Callable[[], rw.RunLog]
) -> tuple[list[Outcomes], str]:
    """Append all batches to one log; return its answers and the final summary on the run's row."""
    with index_limit(limit):
        async with make() as log:
            outcomes = [await answer(log, batch) for batch in batches]
            assert (await log.rebuild(check=True)).different == []  # The row is the fold of the events.
            assert [finding async for finding in log.verify()] == []
            runs = (await log.list_runs()).runs
            return outcomes, runs[0].summary_text if runs else ""


def memory() -> rw.RunLog:
    return rw.open_log("memory://", clock=FixedClock())


# Regression cases: an event of the first attempt arrives after later attempts have started or failed.
LATE_SCHEDULE = [
    *(Event("RunStarted"), Event("StepStarted", "a"), Event("StepFailed", "a")),
    *(Event("StepStarted", "a", 2), Event("StepFailed", "a", 2)),
    *(Event("StepRetryScheduled", "a"), Event("StepCompleted", "a", 2), Event("StepSkipped", "a", 3)),
]
LATE_SCHEDULE_OF_A_RUNNING_STEP = [
    *(Event("RunStarted"), Event("StepStarted", "a"), Event("StepFailed", "a")),
    *(Event("StepStarted", "a", 2), Event("StepFailed", "a", 2), Event("StepStarted", "a", 3)),
    *(Event("StepRetryScheduled", "a"), Event("StepCompleted", "a", 3)),
]

LATE_END_OF_A_RUNNING_STEP = [
    *(Event("RunStarted"), Event("StepStarted", "a"), Event("StepFailed", "a")),
    *(Event("StepStarted", "a", 2), Event("StepFailed", "a", 2), Event("StepStarted", "a", 3)),
    *(Event("StepCompleted", "a"), Event("StepCompleted", "a", 3)),
]


@given(streams(35), batch_sizes)
@example(LATE_SCHEDULE, [(5, True), (2, True)])
@example(LATE_SCHEDULE, [(8, False)])
@example(LATE_SCHEDULE_OF_A_RUNNING_STEP, [(6, True), (2, True)])
@example(LATE_SCHEDULE_OF_A_RUNNING_STEP, [(1, True)])
def test_key_lookups_and_a_full_fold_give_the_same_answers(events: list[Event], sizes: Sizes) -> None:
    authority, batches = FoldingAuthority(), to_batches(events, sizes)
    expected = [authority.answer(batch) for batch in batches]
    for make in (memory, caching):
        for limit in (None, 0, 2):
            outcomes, summary = asyncio.run(append_batches(batches, limit, make))
            assert outcomes == expected, (make.__name__, limit)
            if summary:
                assert summary == msgspec.json.encode(authority.state.summary).decode()


# The end of a run that is rolled back with its batch must not cancel a scheduled retry.
ROLLED_BACK_END = [
    *(Event("RunStarted"), Event("StepStarted", "c"), Event("StepFailed", "c"), Event("StepRetryScheduled", "c")),
    *(Event("RunFailed"), Event("StepStarted", "a"), Event("StepStarted", "c", 2)),
]


@given(streams(35), batch_sizes, st.lists(st.integers(1, 4), min_size=1, max_size=3))
@example(LATE_SCHEDULE_OF_A_RUNNING_STEP, [(6, True), (1, True), (1, True)], [1, 2])
@example(LATE_SCHEDULE_OF_A_RUNNING_STEP, [(5, True), (1, True), (1, True), (1, True)], [1, 1, 2])
@example(LATE_END_OF_A_RUNNING_STEP, [(5, True), (1, True), (1, True), (1, True)], [1, 1, 2])
@example(ROLLED_BACK_END, [(4, True), (2, True), (1, True)], [1])
def test_group_commit_gives_the_same_answers(events: list[Event], sizes: Sizes, groups: list[int]) -> None:
    authority, batches = FoldingAuthority(), to_batches(events, sizes)
    expected = [authority.answer(batch) for batch in batches]

    async def in_groups() -> list[Outcomes]:
        outcomes: list[Outcomes] = []
        async with caching() as log:
            for number in range(len(batches)):
                if len(outcomes) == len(batches):
                    break
                group = batches[len(outcomes) :][: groups[number % len(groups)]]
                outcomes += await append_group(log, group)
            assert (await log.rebuild(check=True)).different == []
        return outcomes

    for limit in (None, 0, 2):
        with index_limit(limit):
            assert asyncio.run(in_groups()) == expected, limit


@given(streams(35))
def test_the_summary_on_the_row_matches_the_events(events: list[Event]) -> None:
    """Check after each append that the summary on the row is the fold of all events so far."""

    async def append_all() -> None:
        async with memory() as log:
            model, accepted = Opinion(), set[tuple[object, ...]]()
            for place, event in enumerate(events, 1):
                (outcome,) = await log.ingest([to_write(event, place)])
                if isinstance(outcome, rw.Refusal):
                    if outcome.code == "INVALID_TRANSITION":
                        assert model.hear(event) == "illegal"
                    else:
                        assert outcome.code == "EVENT_ID_REUSED"
                    continue
                assert (outcome.status == "duplicate") == (event[:3] in accepted)
                if outcome.status == "appended":
                    accepted.add(event[:3])
                    model.hear(event)
                summary = (await log.find_run("run-1")).summary
                counts = model.counts()
                assert {name: getattr(summary, name) for name in counts} == counts
                assert summary.retrying_steps == len(model.retrying())
                assert summary.waiting_approvals == model.waiting_approvals()
                assert (summary.status, summary.inconsistent) == (model.run_status, False)
                assert summary.last_event_seq == len(accepted)
                assert (await log.rebuild(check=True)).different == []

    asyncio.run(append_all())


@given(streams(35))
def test_an_observed_run_folds_its_stored_events(events: list[Event]) -> None:
    """Without enforcement, a key in the log does not mean that its event took effect."""

    async def observe(limit: int | None) -> tuple[str, list[rw.Alert]]:
        with index_limit(limit):
            async with memory() as log:
                run = rw.new_run("run-1", "orders")
                await log.create_run(run, enforcement=rw.Enforcement.OBSERVE)
                for place, event in enumerate(events, 1):
                    (outcome,) = await log.ingest([to_write(event, place)])
                    assert isinstance(outcome, rw.Receipt) or outcome.code == "EVENT_ID_REUSED"
                records = await log.read("run-1")
                assert (await log.rebuild(check=True)).different == []
                projector = rw.SnapshotProjector()
                if records:
                    projector.project_run("run-1", records)
                alerts = await log.alerts("run-1")
                assert {alert.subject for alert in alerts} == {key[2] for key in projector.alerts}
                return (await log.find_run("run-1")).summary_text, alerts

    first = asyncio.run(observe(None))
    assert asyncio.run(observe(0)) == first
    assert asyncio.run(observe(2)) == first


@pytest.mark.parametrize("limit", [None, 0, 2])
@pytest.mark.parametrize("make", [memory, caching])
async def test_attempts_of_several_steps_are_tracked_separately(
    limit: int | None, make: Callable[[], rw.RunLog]
) -> None:
    events = [Event("RunStarted")]
    for attempt in (1, 2, 3, 4):
        events += [Event("StepStarted", step, attempt) for step in STEPS]
        events += [Event("StepFailed", step, attempt) for step in STEPS]
        events += [Event("StepRetryScheduled", step, attempt) for step in STEPS]
    outcomes, _ = await append_batches(to_batches(events, [(1, True)]), limit, make)
    assert [outcome.status for (outcome,) in outcomes] == ["appended"] * len(events)
    late = [Event("StepCompleted", step, attempt) for step in STEPS for attempt in (4, 1, 3, 2)]
    outcomes, _ = await append_batches(to_batches(events + late, [(1, False)]), limit, make)
    states = [outcome.facts["actualState"] for (outcome,) in outcomes[-12:] if isinstance(outcome, rw.Refusal)]
    assert states == ["FAILED"] * 12
