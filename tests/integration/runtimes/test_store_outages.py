"""The store fails, lies or is slow while a run is going on. The run waits, and goes on where its log says it is."""

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
from runwright.core.decider import Decider
from runwright.core.scheduling.drafts import draft
from runwright.log.builders import new_event
from runwright.log.factory import open_log
from runwright.log.system_clock import SystemIds
from runwright.runtimes.event_ids import EventIdRegistry
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


class Troubled:
    """A log between the engine and the real one. `trouble` is asked before each call, `after` when it has been done."""

    def __init__(self, log: rw.RunLog) -> None:
        self.real = log
        self.trouble: Callable[[str, tuple[Any, ...]], None] = lambda *_: None
        self.after: Callable[[str, tuple[Any, ...]], Any] = lambda *_: None

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.real, name)
        if not asyncio.iscoroutinefunction(found):
            return found

        async def call(*args: Any, **more: Any) -> Any:
            self.trouble(name, args)
            result = await found(*args, **more)
            waiting = self.after(name, args)
            if waiting is not None:
                await waiting
            return result

        return call


WRITES = ("append", "append_prepared", "create_run")


def not_written(*_: Any) -> None:
    raise rw.RunwrightError(rw.ErrorCode.STORE_UNAVAILABLE, "It was not written.", outcome="withdrawn")


def who_knows(*_: Any) -> None:
    raise rw.RunwrightError(rw.ErrorCode.STORE_UNAVAILABLE, "Nobody knows.", outcome="unknown")


@pytest.fixture
def store(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/runs.db"


@asynccontextmanager
async def troubled(
    store: str, monkeypatch: pytest.MonkeyPatch, **settings: Any
) -> AsyncGenerator[tuple[Operations, Troubled]]:
    logs: list[Troubled] = []

    @asynccontextmanager
    async def opened(url: str) -> AsyncGenerator[Any]:
        async with open_log(url) as log:
            logs.append(Troubled(log))
            yield logs[-1]

    monkeypatch.setattr("runwright.control.bootstrap.open_log", opened)
    async with engine(store, **settings) as operations:
        yield operations, logs[-1]


def holds(args: tuple[Any, ...], event_type: str) -> bool:
    """Whether these arguments of an append hold such an event."""
    return any(
        getattr(getattr(made, "stored", made), "event_type", None) == event_type
        for part in args
        if isinstance(part, list)
        for made in part
    )


def plan(file: Path, **step: Any) -> dict[str, Any]:
    note = {"call": "support.engine_steps:note", "args": {"file": str(file)}}
    return {"plan": "p", "steps": [{"id": name, "python": note, **step} for name in "abc"]}


async def test_a_short_outage_is_waited_for(store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tries = 0

    def sometimes(name: str, args: tuple[Any, ...]) -> None:
        nonlocal tries
        if name in WRITES:
            tries += 1
            if tries % 3:
                not_written()

    async with troubled(store, monkeypatch) as (operations, log):
        log.trouble = sometimes
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
                who_knows()

    async with troubled(store, monkeypatch) as (operations, log):
        log.after = lose_answers
        snapshot = await run_plan(operations, plan(tmp_path / "notes"))
        lines = await event_lines(operations, snapshot.run_id)
    assert snapshot.status == "COMPLETED"
    assert lost > 4
    assert len(lines) == len(set(lines)) == 9
    assert len((tmp_path / "notes").read_text().splitlines()) == 3


async def test_an_end_that_does_not_get_in_within_the_write_budget_fails_the_attempt(
    store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Decision 12: it is retryable, offered until the store is back, and nothing dependent starts meanwhile."""
    refused = 0

    def no_completions(name: str, args: tuple[Any, ...]) -> None:
        nonlocal refused
        if name in WRITES and holds(args, "StepCompleted") and not (tmp_path / "back").exists():
            refused += 1
            not_written()

    async with troubled(store, monkeypatch) as (operations, log):
        operations.services.write_budget = 0.3
        log.trouble = no_completions
        run_id = await operations.start(
            operations.load(plan(tmp_path / "notes", retry={"maxAttempts": 2, "initial": "0.2s", "jitter": False}))
        )
        failed = await wait_for_event(operations, run_id, "StepFailed", "a")
        (tmp_path / "back").touch()
        snapshot = await wait_for_end(operations, run_id)
        lines = await event_lines(operations, run_id)
    assert snapshot.status == "COMPLETED"
    assert refused > 1
    error = (failed.payload or {})["error"]
    assert (error["code"], error["retryable"]) == ("STORE_WRITE_BUDGET_EXCEEDED", True)
    assert lines[2:7] == [
        "StepStarted a",
        "StepFailed a STORE_WRITE_BUDGET_EXCEEDED",
        "StepRetryScheduled a",
        "StepStarted a #2",
        "StepCompleted a #2",
    ]


async def test_an_end_that_may_have_got_in_is_never_followed_by_its_opposite(
    store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Decision 12: what was handed to the store is settled only by offering the same key again."""

    def lose_then_fail(name: str, args: tuple[Any, ...]) -> None:
        if name in WRITES and holds(args, "StepCompleted"):
            who_knows()

    async with troubled(store, monkeypatch) as (operations, log):
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
async def test_a_store_that_was_away_altogether_comes_back_and_all_runs_go_on(
    store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: float
) -> None:
    """Shorter than the lease, and longer: then it is lost, and what nobody else has taken is taken up again."""
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
    async with troubled(store, monkeypatch, lease_ttl=2.0, park_after=0.0) as (operations, log):
        operations.services.write_budget = 0.3
        found = [await operations.start(operations.load(document)) for document in documents]
        await wait_for_event(operations, found[0], "StepStarted", "a")
        log.trouble = not_written
        await asyncio.sleep(seconds)
        log.trouble = lambda *_: None
        go.touch()
        snapshots = [await wait_for_end(operations, run_id) for run_id in found]
    assert [snapshot.status for snapshot in snapshots] == ["COMPLETED"] * 4


async def test_a_signal_between_two_slices_of_a_large_append_loses_no_step(
    store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More events than fit into one append, and somebody writes in between: what was started has been started."""
    notes = tmp_path / "notes"
    steps: list[dict[str, Any]] = [
        {"id": f"go{n}", "python": {"call": "support.engine_steps:note", "args": {"file": str(notes)}}}
        for n in range(50)
    ]
    steps += [{"id": f"no{n}", "when": False, "noop": {}} for n in range(2500)]
    slices = 0

    async with troubled(store, monkeypatch) as (operations, log):

        def signal_in_between(name: str, args: tuple[Any, ...]) -> Any:
            nonlocal slices
            if name not in WRITES or slices > 2 or not holds(args, "StepSkipped"):
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


async def test_a_value_that_cannot_be_put_aside_yet_is_waited_for(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with engine(store) as operations:
        real, left = operations.engine.services.results.put, 2

        async def put(*arguments: Any) -> None:
            nonlocal left
            if left:
                left -= 1
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


async def test_a_step_log_that_cannot_be_written_does_not_stop_the_step(store: str, tmp_path: Path) -> None:
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


async def test_whoever_starts_a_run_is_told_when_the_lease_ends_meanwhile(
    store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not cancelled, as if they had asked for that; and the same id again is the same run."""
    document = {"plan": "p", "steps": [{"id": "a", "noop": {}}]}
    async with troubled(store, monkeypatch, lease_ttl=0.5) as (operations, log):
        log.trouble = lambda name, _: who_knows() if name in (*WRITES, "renew_lease") else None
        with pytest.raises(rw.RunwrightError) as caught:
            await operations.start(operations.load(document), run_id="r")
        assert caught.value.code in ("STORE_UNAVAILABLE", "LEASE_LOST")
        log.trouble = lambda *_: None
        await operations.start(operations.load(document), run_id="r")
        assert (await operations.wait("r", 10)).status == "COMPLETED"


async def test_a_run_goes_on_after_its_lease_was_only_in_doubt(store: str, tmp_path: Path) -> None:
    """A process that was kept busy for too long does not know whether it still owns its runs; nobody else took them."""
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


# The producer's own guard, and the registry of event ids


class Nonsense:
    """A fact that cannot be: a step that completes twice, or never began."""

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
    """Of that step nothing more is said; the rest of the run goes on, and an operator can end it."""
    go, other = tmp_path / "go", tmp_path / "other"
    steps = [
        {"id": "a", "python": wait_for_file_inputs(go), "dependsOn": []},
        {"id": "b", "python": wait_for_file_inputs(other), "dependsOn": []},
        {"id": "c", "noop": {}, "dependsOn": ["b"]},
    ]
    async with engine(store) as operations:
        run_id = await operations.start(operations.load({"plan": "p", "steps": steps}))
        await wait_for_event(operations, run_id, "StepStarted", "b")
        operations.engine._drivers[run_id].report(Nonsense("a"))
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


class NonsenseOfTheRun(Nonsense):
    def apply(self, decider: Decider) -> None:
        decider.emit("RunResumed", None, 7)


async def test_a_run_of_which_nothing_can_be_said_is_left_for_a_person(store: str, tmp_path: Path) -> None:
    go = tmp_path / "go"
    document = {"plan": "p", "steps": [{"id": "a", "python": wait_for_file_inputs(go)}, {"id": "b", "noop": {}}]}
    async with engine(store) as operations:
        run_id = await operations.start(operations.load(document), run_id="run-1")
        await wait_for_event(operations, run_id, "StepStarted", "a")
        before = await event_lines(operations, run_id)
        operations.engine._drivers[run_id].report(NonsenseOfTheRun("a"))
        await wait_for_alerts(operations, run_id, "INVALID_TRANSITION")

        async def is_free() -> bool:
            return (await operations.log.find_run(run_id)).owner is None

        await until(is_free)
        assert await event_lines(operations, run_id) == before
        assert (await run_plan(operations, {"plan": "q", "steps": [{"id": "a", "noop": {}}]})).status == "COMPLETED"
        go.touch()
        await operations.start(operations.load(document), run_id="run-1")  # whoever takes it up goes on
        snapshot = await wait_for_end(operations, run_id)
        assert [finding async for finding in operations.log.verify(run_id)] == []
    assert snapshot.status == "COMPLETED"
    assert not snapshot.inconsistent


def test_an_event_keeps_its_id_until_it_is_in_the_log() -> None:
    run = rw.new_run("run-1", "p", "1")
    registry = EventIdRegistry(SystemIds(), run, "embedded")
    made = draft("StepStarted", "2026-01-01T00:00:00.000000Z", 1, "a")
    again = draft("StepStarted", "2026-01-01T00:00:09.000000Z", 2, "a")
    first = registry.prepare(made)
    registry.remember([first])  # it was offered, and nobody knows yet whether it got in
    assert registry.prepare(again).event_id == first.event_id
    assert registry.prepare(draft("StepStarted", made.emitted_at, 1, "b")).event_id != first.event_id
    assert registry.prepare(draft("StepStarted", made.emitted_at, 1, "a", 2)).event_id != first.event_id


async def test_every_event_of_a_run_has_an_id_of_its_own(store: str, tmp_path: Path) -> None:
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


async def test_a_clock_that_is_set_back_harms_nobody(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
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


async def test_waiters_are_told_when_a_driver_breaks(
    store: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A fault of ours: an alert says so, nobody waits for ever, and other runs go on."""
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
        assert len(await wait_for_alerts(operations, run_id, "ENGINE_FAILED")) == 1
        assert (await run_plan(operations, {"plan": "q", "steps": [{"id": "a", "noop": {}}]})).status == "COMPLETED"
        monkeypatch.setattr(Decider, "decide", real)

        async def free() -> bool:
            return (await operations.log.find_run(run_id)).owner is None

        await until(free, "the release of the run")
        await operations.resume(run_id)
        assert (await wait_for_end(operations, run_id)).status == "COMPLETED"
