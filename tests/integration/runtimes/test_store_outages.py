"""A store that fails, loses answers or is slow during a run: the run waits and continues from its log."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import runwright as rw
from runwright.contract import payloads
from runwright.control.operations import Operations
from runwright.control.run_views import undriven_runs
from runwright.core.decider import Decider
from runwright.core.scheduling.context import Draft
from runwright.log.builders import new_event
from runwright.log.factory import open_log
from runwright.log.system_clock import SystemIds
from runwright.runtimes.run_session import EventIdRegistry
from support.engine import (
    engine,
    event_lines,
    lines_of_types,
    python_inputs,
    run_plan,
    step_of,
    wait_for_alerts,
    wait_for_end,
    wait_for_event,
    wait_for_file_inputs,
)
from support.waiting import until


class FaultyCalls:
    """The async methods of an object, with `before` called ahead of each and `after` when it is done."""

    def __init__(self, faults: FaultyLog, target: Any) -> None:
        self._faults = faults
        self._target = target

    def __getattr__(self, name: str) -> Any:
        member, faults = getattr(self._target, name), self._faults
        if not asyncio.iscoroutinefunction(member):
            return member

        async def call(*args: Any, **more: Any) -> Any:
            faults.before(name, args)
            result = await member(*args, **more)
            pending = faults.after(name, args)
            if pending is not None:
                await pending
            return result

        return call


class FaultyLog(FaultyCalls):
    """The real log and its leases, with faults in their calls."""

    def __init__(self, log: rw.RunLog) -> None:
        super().__init__(self, log)
        self.real = log
        self.leases = FaultyCalls(self, log.leases)
        self.before: Callable[[str, tuple[Any, ...]], None] = lambda *_: None
        self.after: Callable[[str, tuple[Any, ...]], Any] = lambda *_: None


WRITES = ("append", "append_prepared", "create_run")


def not_written(*_: Any) -> None:
    raise rw.RunwrightError(rw.ErrorCode.STORE_UNAVAILABLE, "It was not written.", outcome="withdrawn")


def outcome_unknown(*_: Any) -> None:
    raise rw.RunwrightError(rw.ErrorCode.STORE_UNAVAILABLE, "Nobody knows.", outcome="unknown")


@pytest.fixture
def store(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/runs.db"


@asynccontextmanager
async def engine_with_faulty_log(
    store: str, monkeypatch: pytest.MonkeyPatch, **settings: Any
) -> AsyncGenerator[tuple[Operations, FaultyLog]]:
    logs: list[FaultyLog] = []

    @asynccontextmanager
    async def open_faulty_log(url: str) -> AsyncGenerator[Any]:
        async with open_log(url) as log:
            logs.append(FaultyLog(log))
            yield logs[-1]

    monkeypatch.setattr("runwright.control.bootstrap.open_log", open_faulty_log)
    # The lease is renewed through the faulty log, on the event loop.
    monkeypatch.setattr("runwright.log.sqlite.store.SqliteStore.lease_renewer", lambda _: None)
    async with engine(store, **settings) as operations:
        yield operations, logs[-1]


def contains_event(args: tuple[Any, ...], event_type: str) -> bool:
    """Whether the arguments of an append contain an event of this type."""
    return any(
        getattr(getattr(made, "stored", made), "event_type", None) == event_type
        for part in args
        if isinstance(part, list)
        for made in part
    )


def plan(file: Path, **step: Any) -> dict[str, Any]:
    note = {"call": "support.engine_steps:note", "args": {"file": str(file)}}
    return {"plan": "p", "steps": [{"id": name, "python": note, **step} for name in "abc"]}


async def test_run_completes_after_short_store_outages(
    store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries = 0

    def fail_two_of_three(name: str, args: tuple[Any, ...]) -> None:
        nonlocal tries
        if name in WRITES:
            tries += 1
            if tries % 3:
                not_written()

    async with engine_with_faulty_log(store, monkeypatch) as (operations, log):
        log.before = fail_two_of_three
        snapshot = await run_plan(operations, plan(tmp_path / "notes"))
        lines = await event_lines(operations, snapshot.run_id)
    assert snapshot.status == "COMPLETED"
    assert lines_of_types(lines, "StepFailed") == []
    assert len((tmp_path / "notes").read_text().splitlines()) == 3


async def test_an_append_whose_answer_was_lost_is_not_done_twice(
    store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = 0

    def lose_answers(name: str, _args: tuple[Any, ...]) -> None:
        nonlocal lost
        if name in WRITES:
            lost += 1
            if lost % 2:
                outcome_unknown()

    async with engine_with_faulty_log(store, monkeypatch) as (operations, log):
        log.after = lose_answers
        snapshot = await run_plan(operations, plan(tmp_path / "notes"))
        lines = await event_lines(operations, snapshot.run_id)
    assert snapshot.status == "COMPLETED"
    assert lost > 4
    assert len(lines) == len(set(lines)) == 9
    assert len((tmp_path / "notes").read_text().splitlines()) == 3


async def test_end_beyond_the_write_budget_is_offered_again(
    store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Decision 10: the work is not repeated, and no dependent step starts before the end is in the log."""
    refused = 0

    def no_completions(name: str, args: tuple[Any, ...]) -> None:
        nonlocal refused
        if name in WRITES and contains_event(args, "StepCompleted") and not (tmp_path / "back").exists():
            refused += 1
            not_written()

    async with engine_with_faulty_log(store, monkeypatch) as (operations, log):
        operations.services.write_budget = 0.1
        log.before = no_completions
        run_id = await operations.start(operations.load(plan(tmp_path / "notes")))
        await until(lambda: refused > 8)
        assert len(await event_lines(operations, run_id)) == 3
        (tmp_path / "back").touch()
        snapshot = await wait_for_end(operations, run_id)
        lines = await event_lines(operations, run_id)
    assert snapshot.status == "COMPLETED"
    assert lines[2:4] == ["StepStarted a", "StepCompleted a"]
    assert len((tmp_path / "notes").read_text().splitlines()) == 3


async def test_end_with_unknown_outcome_is_never_contradicted(
    store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Decision 12: an append with an unknown outcome is resolved only by offering the same key again."""

    def lose_then_fail(name: str, args: tuple[Any, ...]) -> None:
        if name in WRITES and contains_event(args, "StepCompleted"):
            outcome_unknown()

    async with engine_with_faulty_log(store, monkeypatch) as (operations, log):
        operations.services.write_budget = 0.2
        log.after = lose_then_fail
        run_id = await operations.start(
            operations.load(plan(tmp_path / "notes", retry={"maxAttempts": 2, "initial": 0}))
        )
        await asyncio.sleep(1.0)
        log.after = lambda *_: None
        snapshot = await wait_for_end(operations, run_id)
        lines = await event_lines(operations, run_id)
    assert snapshot.status == "COMPLETED"
    assert lines_of_types(lines, "StepFailed") == []
    assert len((tmp_path / "notes").read_text().splitlines()) == 3


@pytest.mark.parametrize("seconds", [1.0, 3.0])
async def test_all_runs_continue_after_a_full_store_outage(
    store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: float
) -> None:
    """Outages shorter and longer than the lease; after a longer one, the engine claims its runs again."""
    go = tmp_path / "go"
    documents = [
        {"plan": "held", "steps": [{"id": "a", "python": wait_for_file_inputs(go)}, {"id": "b", "noop": {}}]},
        {
            "plan": "busy",
            "steps": [
                {
                    "id": f"s{n}",
                    "retry": {"maxAttempts": 9, "initial": "50ms"},
                    "python": python_inputs("import time\ntime.sleep(0.05)"),
                }
                for n in range(20)
            ],
        },
        {"plan": "parked", "steps": [{"id": "w", "wait": "700ms"}, {"id": "b", "noop": {}}]},
        {
            "plan": "retrying",
            "steps": [
                {
                    "id": "a",
                    "retry": {"maxAttempts": 30, "initial": "0.2s", "backoff": "fixed"},
                    "python": {
                        "call": "support.engine_steps:fail_times",
                        "args": {"file": str(tmp_path / "calls"), "times": 4},
                    },
                }
            ],
        },
    ]
    async with engine_with_faulty_log(store, monkeypatch, lease_ttl=2.0, park_after=0.0) as (operations, log):
        operations.services.write_budget = 0.3
        run_ids = [await operations.start(operations.load(document)) for document in documents]
        await wait_for_event(operations, run_ids[0], "StepStarted", "a")
        log.before = not_written
        await asyncio.sleep(seconds)
        log.before = lambda *_: None
        go.touch()
        snapshots = [await wait_for_end(operations, run_id) for run_id in run_ids]
    assert [snapshot.status for snapshot in snapshots] == ["COMPLETED"] * 4


async def test_signal_between_slices_of_an_append_loses_no_step(
    store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More events than fit into one append, and a signal in between: every started step is executed."""
    notes = tmp_path / "notes"
    steps: list[dict[str, Any]] = [
        {"id": f"go{n}", "python": {"call": "support.engine_steps:note", "args": {"file": str(notes)}}}
        for n in range(50)
    ]
    steps += [{"id": f"no{n}", "when": False, "noop": {}} for n in range(2500)]
    slices = 0

    async with engine_with_faulty_log(store, monkeypatch) as (operations, log):

        def signal_in_between(name: str, args: tuple[Any, ...]) -> Any:
            nonlocal slices
            if name not in WRITES or slices > 2 or not contains_event(args, "StepSkipped"):
                return None
            slices += 1
            return send()

        async def send() -> None:
            row = await log.real.find_run("run-1")
            signal_id = log.real.ids.event_id()
            body = {"signalId": signal_id, "signalType": "UPDATE_PARAMS", "payload": {"params": {"x": slices}}}
            await log.real.append(
                [new_event("SignalAccepted", row.identity, step_id=f"signal/{signal_id}", payload=body)]
            )

        log.after = signal_in_between
        snapshot = await run_plan(
            operations, {"plan": "p", "params": {"x": 0}, "order": "graph", "steps": steps}, run_id="run-1"
        )
        processed = lines_of_types(await event_lines(operations, "run-1"), "SignalProcessed")
    assert snapshot.status == "COMPLETED"
    assert len(notes.read_text().splitlines()) == 50
    assert slices > 1
    assert len(processed) == slices


async def test_run_waits_until_a_large_value_can_be_stored(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with engine(store) as operations:
        real, remaining = operations.engine.services.results.put, 2

        async def put(*arguments: Any) -> None:
            nonlocal remaining
            if remaining:
                remaining -= 1
                raise rw.RunwrightError(rw.ErrorCode.STORE_FULL, "No space left on device.")
            await real(*arguments)

        monkeypatch.setattr(operations.engine.services.results, "put", put)
        snapshot = await run_plan(
            operations,
            {
                "plan": "p",
                "steps": [{"id": "a", "python": {"call": "support.engine_steps:big", "args": {"size": 70_000}}}],
            },
        )
        assert await operations.result(snapshot.run_id, "a") == "x" * 70_000
    assert snapshot.status == "COMPLETED"


async def test_step_completes_if_its_output_cannot_be_stored(store: str, tmp_path: Path) -> None:
    (tmp_path / "logs").write_text("a file where a folder should be")
    async with engine(store) as operations:
        snapshot = await run_plan(
            operations,
            {
                "plan": "p",
                "steps": [{"id": "a", "shell": "echo hello"}, {"id": "b", "python": python_inputs("print('x')")}],
            },
        )
    assert snapshot.status == "COMPLETED"


async def test_start_raises_an_error_if_the_lease_is_lost(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The caller gets an error and no cancellation; a second start with the same id continues the run."""
    document = {"plan": "p", "steps": [{"id": "a", "noop": {}}]}
    async with engine_with_faulty_log(store, monkeypatch, lease_ttl=0.5) as (operations, log):
        log.before = lambda name, _: outcome_unknown() if name in (*WRITES, "renew") else None
        with pytest.raises(rw.RunwrightError) as caught:
            await operations.start(operations.load(document), run_id="r")
        assert caught.value.code in ("STORE_UNAVAILABLE", "LEASE_LOST")
        log.before = lambda *_: None
        await operations.start(operations.load(document), run_id="r")
        assert (await operations.wait("r", 10)).status == "COMPLETED"


async def test_start_is_unavailable_if_the_lease_expires_during_it(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The caller holds no fence, so STALE_FENCE would be no advice to retry."""
    document = {"plan": "p", "steps": [{"id": "a", "noop": {}}]}
    async with engine_with_faulty_log(store, monkeypatch) as (operations, log):

        def expire_lease(name: str, args: tuple[Any, ...]) -> None:
            if name in WRITES:
                log.before = lambda *_: None
                operations.engine.keeper._valid_until = 0.0
                outcome_unknown()

        log.before = expire_lease
        with pytest.raises(rw.RunwrightError) as caught:
            await operations.start(operations.load(document), run_id="r")
        assert caught.value.code == "STORE_UNAVAILABLE"
        await operations.start(operations.load(document), run_id="r")
        assert (await operations.wait("r", 10)).status == "COMPLETED"


async def test_run_continues_after_its_lease_was_in_doubt(store: str, tmp_path: Path) -> None:
    """A process that was blocked too long is unsure of its lease, but no other process claimed its runs."""
    go = tmp_path / "go"
    async with engine(store) as operations:
        steps = [{"id": "a", "python": wait_for_file_inputs(go)}, {"id": "b", "noop": {}}]
        run_id = await operations.start(operations.load({"plan": "p", "steps": steps}))
        await wait_for_event(operations, run_id, "StepStarted", "a")
        operations.engine.keeper._valid_until = 0.0
        go.touch()
        snapshot = await wait_for_end(operations, run_id)
        assert [finding async for finding in operations.log.verify(run_id)] == []
    assert snapshot.status == "COMPLETED"


# Validation by the producer, and the registry of event ids


class InvalidFact:
    """An impossible fact: the completion of an attempt that never started."""

    def __init__(self, step: str) -> None:
        self.step = step
        self.given_up = False

    def apply(self, decider: Decider) -> None:
        decider.emit("StepCompleted", self.step, 7, payloads.StepCompleted(1))

    def on_durable(self) -> None: ...

    def on_abandoned(self, _error: rw.RunwrightError) -> None:
        self.given_up = True


async def test_an_event_that_the_state_machines_forbid_is_not_written(
    store: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The step gets no more events; the rest of the run continues, and an operator can cancel it."""
    go, other = tmp_path / "go", tmp_path / "other"
    steps = [
        {"id": "a", "python": wait_for_file_inputs(go), "dependsOn": []},
        {"id": "b", "python": wait_for_file_inputs(other), "dependsOn": []},
        {"id": "c", "noop": {}, "dependsOn": ["b"]},
    ]
    async with engine(store) as operations:
        run_id = await operations.start(operations.load({"plan": "p", "steps": steps}))
        await wait_for_event(operations, run_id, "StepStarted", "b")
        operations.engine._drivers[run_id].report(InvalidFact("a"))
        raised = await wait_for_alerts(operations, run_id, "INVALID_TRANSITION")
        assert raised[0].facts == {
            "invalidTransitionDetected": True,
            "expectedState": "RUNNING",
            "actualState": "PENDING",
            "attemptedEventType": "StepCompleted",
        }
        go.touch()
        other.touch()
        await wait_for_event(operations, run_id, "StepCompleted", "c")
        ends = [record.step_id for record in await operations.log.read(run_id) if record.event_type == "StepCompleted"]
        assert ends == ["b", "c"]
        await operations.signal(run_id, "CANCEL")
        snapshot = await wait_for_end(operations, run_id)
        assert [finding async for finding in operations.log.verify(run_id)] == []
    assert {step.step_id: step.status for step in snapshot.steps} == {"a": "FAILED", "b": "SUCCESS", "c": "SUCCESS"}
    assert snapshot.status == "CANCELLED"
    assert not snapshot.inconsistent


class InvalidRunFact(InvalidFact):
    def apply(self, decider: Decider) -> None:
        decider.emit("RunResumed", None, 7)


async def test_run_with_an_invalid_run_event_is_released(store: str, tmp_path: Path) -> None:
    go = tmp_path / "go"
    document = {"plan": "p", "steps": [{"id": "a", "python": wait_for_file_inputs(go)}, {"id": "b", "noop": {}}]}
    async with engine(store) as operations:
        run_id = await operations.start(operations.load(document), run_id="run-1")
        await wait_for_event(operations, run_id, "StepStarted", "a")
        before = await event_lines(operations, run_id)
        operations.engine._drivers[run_id].report(InvalidRunFact("a"))
        await wait_for_alerts(operations, run_id, "INVALID_TRANSITION")

        async def is_released() -> bool:
            return (await operations.log.find_run(run_id)).owner is None

        await until(is_released)
        assert await event_lines(operations, run_id) == before
        assert (await run_plan(operations, {"plan": "q", "steps": [{"id": "a", "noop": {}}]})).status == "COMPLETED"
        go.touch()
        await operations.start(operations.load(document), run_id="run-1")  # A new claim continues the run.
        snapshot = await wait_for_end(operations, run_id)
        assert [finding async for finding in operations.log.verify(run_id)] == []
    assert snapshot.status == "COMPLETED"
    assert not snapshot.inconsistent


def test_an_event_keeps_its_id_until_it_is_in_the_log() -> None:
    run = rw.new_run("run-1", "p", "1")
    registry = EventIdRegistry(SystemIds(), run, "embedded")
    made = Draft("StepStarted", "a", 1, None, "2026-01-01T00:00:00.000000Z", 1)
    again = Draft("StepStarted", "a", 1, None, "2026-01-01T00:00:09.000000Z", 2)
    first = registry.prepare(made)
    registry.remember([first])  # It was offered, with an unknown outcome.
    assert registry.prepare(again).event_id == first.event_id
    assert registry.prepare(Draft("StepStarted", "b", 1, None, made.emitted_at, 1)).event_id != first.event_id
    assert registry.prepare(Draft("StepStarted", "a", 2, None, made.emitted_at, 1)).event_id != first.event_id


async def test_every_event_of_a_run_has_a_unique_id(store: str, tmp_path: Path) -> None:
    go = tmp_path / "go"
    async with engine(store) as operations:
        run_id = await operations.start(
            operations.load({"plan": "p", "steps": [{"id": "a", "python": wait_for_file_inputs(go)}]})
        )
        await wait_for_event(operations, run_id, "StepStarted", "a")
        go.touch()
        await wait_for_end(operations, run_id)
        records = await operations.log.read(run_id)
    assert len({record.event_id for record in records}) == len(records)
    assert all(record.event_id[14] == "4" for record in records)


async def test_run_completes_when_the_clock_is_set_back(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with engine(store) as operations:
        clock = operations.log.clock
        now = clock.now
        run_id = await operations.start(
            operations.load({"plan": "p", "steps": [{"id": "w", "wait": "0.3s"}, {"id": "a", "noop": {}}]})
        )
        await wait_for_event(operations, run_id, "StepDelayed", "w")
        shift = -1_000_000
        monkeypatch.setattr(clock, "now", lambda: now() + shift)
        snapshot = await wait_for_end(operations, run_id)
        records = await operations.log.read(run_id)
        again = await run_plan(
            operations,
            {
                "plan": "q",
                "steps": [{"id": "a", "retry": {"maxAttempts": 2, "initial": "10ms"}, "python": python_inputs("1")}],
            },
        )
    assert snapshot.status == again.status == "COMPLETED"
    times = [record.persisted_at for record in records]
    assert times == sorted(times)
    assert step_of(snapshot, "w").status == "SUCCESS"


async def test_waiters_get_the_error_of_a_failed_driver(
    store: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """An internal error raises an alert and ends every wait; other runs continue."""
    async with engine(store) as operations:
        real = Decider.decide

        def broken(self: Decider, *args: Any, **more: Any) -> None:
            if self.run.plan_id == "broken" and self.state.summary.completed_steps:
                raise AssertionError("a fault of ours")
            real(self, *args, **more)

        monkeypatch.setattr(Decider, "decide", broken)
        run_id = await operations.start(
            operations.load(
                {"plan": "broken", "steps": [{"id": "a", "python": python_inputs("1")}, {"id": "b", "noop": {}}]}
            )
        )
        with pytest.raises(AssertionError, match="a fault of ours"):
            await operations.wait(run_id, 10)
        assert len(await wait_for_alerts(operations, run_id, "DRIVER_FAILED")) == 1
        assert (await run_plan(operations, {"plan": "q", "steps": [{"id": "a", "noop": {}}]})).status == "COMPLETED"
        monkeypatch.setattr(Decider, "decide", real)

        async def is_released() -> bool:
            return (await operations.log.find_run(run_id)).owner is None

        await until(is_released, "the release of the run")
        row = await operations.log.find_run(run_id)
        undriven = await undriven_runs(operations.log, [row])
        assert undriven[run_id]["substatus"] == "embedded/DRIVER_FAILED"
        await operations.resume(run_id)
        assert (await wait_for_end(operations, run_id)).status == "COMPLETED"
