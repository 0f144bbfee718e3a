"""The app for tests: the real engine on a store in memory, with a script instead of tools and time that jumps."""

from __future__ import annotations

import asyncio
import random
import tempfile
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import msgspec

from runwright.contract import payloads
from runwright.contract.errors import ErrorCode, RunwrightError
from runwright.contract.events import RunEventRecord, RunIdentity
from runwright.contract.paths import parse_path
from runwright.contract.plan import ExecutionPlan
from runwright.contract.snapshot import RunSnapshot
from runwright.contract.timestamps import to_micros
from runwright.control.access import Actor
from runwright.control.operations import AnyPlan, Operations
from runwright.control.signals import SignalDecision
from runwright.control.subruns import SubRuns
from runwright.core.reading import read_payload
from runwright.flows.plans import PlanFunction
from runwright.log.memory import MemoryLog
from runwright.plans.durations import read_duration
from runwright.plans.known import SUB_PLAN, hash_in, known
from runwright.plans.store import PlanStore
from runwright.results.steplogs import StepLogs
from runwright.results.tiers import in_memory
from runwright.results.values import ValuesWithLog
from runwright.runtimes.engine import Engine
from runwright.runtimes.executor import Outcome, Work
from runwright.runtimes.executor_work import carry_out
from runwright.runtimes.mock import MockExecutor
from runwright.runtimes.settings import EngineSettings
from runwright.runtimes.work import Execution
from runwright.tools.registry import all_tools

from .clock import SeededIds, VirtualClock, VirtualLoop
from .history import compare, lines_of
from .script import Answer, Approves, Denies, Fails, Result, Script, Sends, outcome_of, scripted

T = TypeVar("T")


class PlayedRun:
    """A run in a test."""

    def __init__(self, app: PlayApp, run_id: str, plan: AnyPlan) -> None:
        self._app = app
        self._plan = plan
        self.run_id = run_id

    def wait(self, timeout: float | str | None = None) -> RunSnapshot:
        """Play on until the run has ended, or so much of its own time is over; the run as it then is."""
        seconds = None if timeout is None else read_duration(timeout)
        return self._app.play(self._app.operations.wait(self.run_id, seconds))

    def snapshot(self) -> RunSnapshot:
        return self._app.play(self._app.operations.log.snapshot(self.run_id))

    def result(self, step_id: str | None = None) -> Any:
        operations = self._app.operations
        work = operations.run_result(self.run_id) if step_id is None else operations.result(self.run_id, step_id)
        value = self._app.play(work)
        return self._plan.typed(step_id, value) if isinstance(self._plan, PlanFunction) else value

    def signal(
        self, signal_type: str, payload: dict[str, Any] | None = None, reason: str | None = None
    ) -> SignalDecision:
        return self._app.play(self._app.operations.signal(self.run_id, signal_type, payload, reason=reason))

    def events(self) -> list[RunEventRecord]:
        return self._app.play(self._app.operations.log.read(self.run_id))

    @property
    def took(self) -> float:
        """Seconds of the run's own time between its first and its last event."""
        events = self.events()
        return (to_micros(events[-1].emitted_at) - to_micros(events[0].emitted_at)) / 1e6

    def history(self) -> list[str]:
        """What happened, a line an event, without ids and times."""
        return lines_of(self.events())

    def assert_history(self, expected: str | Path | Sequence[str]) -> None:
        """Fail unless this is what happened: lines, or a file of lines (see `history`)."""
        compare(self.history(), expected)

    def assert_happened(self, *lines: str) -> None:
        """Fail unless these lines are in the history, in this order, with others in between."""
        history = iter(self.history())
        for line in lines:
            if line not in history:
                told = "\n  ".join(self.history())
                raise AssertionError(f"{line!r} did not happen, or not in this order:\n  {told}")


class PlayApp:
    """`with testing.open({"extract": [1, 2, 3]}) as app:`"""

    def __init__(self, steps: Script | None = None, *, real: bool = False) -> None:
        self._script: Script = steps or {}
        self._real = real
        self.loop = VirtualLoop()
        self._folder = tempfile.TemporaryDirectory()
        self._refused: str | None = None  # why an answer of the script was
        self._errands: set[asyncio.Task[Any]] = set()
        self.operations = self.play(self._open())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _at: TracebackType | None
    ) -> None:
        self.play(self._close())
        self.loop.close()
        self._folder.cleanup()

    def start(
        self, plan: AnyPlan, /, *, params: dict[str, Any] | None = None, run_id: str | None = None, **more: Any
    ) -> PlayedRun:
        """Start a run of a plan: a function with @rw.plan, a file, or a dict."""
        given = {**(params or {}), **more}
        given = plan.params(given) if isinstance(plan, PlanFunction) else given
        self._check(plan)
        loaded = self.operations.load(plan)
        return PlayedRun(self, self.play(self.operations.start(loaded, params=given, run_id=run_id)), plan)

    def play(self, work: Coroutine[Any, Any, T]) -> T:
        task = self.loop.create_task(work)
        self.loop.stalled = False
        try:
            return self.loop.run_until_complete(task)
        except RuntimeError:
            if not self.loop.stalled:
                raise
            task.cancel()
            raise self._nobody_acts() from None

    def _check(self, plan: AnyPlan) -> None:
        """A script for a step that the plan does not have is a mistake."""
        steps = _step_ids(self.operations.load(plan))
        for path in self._script:
            if _owner(path) not in steps:
                raise RunwrightError(ErrorCode.STEP_NOT_FOUND, f"The script has {path!r}; the plan has no such step.")

    # The engine

    async def _open(self) -> Operations:
        clock, ids = VirtualClock(self.loop), SeededIds(random.Random(7))  # noqa: S311 - not for secrets
        self._log = MemoryLog(clock=clock, ids=ids)
        self._executor = MockExecutor(self._play_step)
        await self._log.open()
        self._engine = Engine(
            self._log,
            self._executor,
            all_tools(),
            PlanStore(self._log),
            ValuesWithLog(self._log),
            StepLogs(Path(self._folder.name), now=clock.now),
            "test",
            EngineSettings(alone=True),
            provider="mock",
            tiers=in_memory(clock.now),
        )
        await self._engine.open()
        self._errands.add(asyncio.create_task(self._answer()))
        operations = Operations(self._log, self._engine, Actor("tester", ("Admin",), "test"))
        self._engine.sub_runs = _PlayedSubRuns(operations, self._script, self._executor)
        return operations

    async def _close(self) -> None:
        for task in self._errands:
            task.cancel()
        await asyncio.gather(*self._errands, return_exceptions=True)
        await self._engine.close()
        await self._log.close()

    def _play_step(self, work: Work) -> tuple[Outcome, float]:
        path, attempt = work.context.step_id, work.context.attempt
        known = path in self._script or work.step.step_id in self._script
        if self._real and not known:
            return _carried_out(work), 0.0
        return outcome_of(scripted(self._script, path, work.step.step_id, attempt), work)

    # Those who answer

    async def _answer(self) -> None:
        """Answer what steps ask, as the script says."""
        cursor: str | None = None
        while True:
            page = await self._log.read_all(cursor)
            cursor = page.cursor
            for record in page.records:
                entry = self._answer_to(record)
                if entry is not None:
                    task = asyncio.create_task(self._give(record, entry))
                    self._errands.add(task)
                    task.add_done_callback(self._errands.discard)
            if not page.records:
                await self._log.wait_for_news()

    def _answer_to(self, record: RunEventRecord) -> Answer | None:
        if record.event_type not in ("ApprovalRequested", "StepDelayed") or record.step_id is None:
            return None
        entry = scripted(self._script, record.step_id, record.step_id, record.logical_attempt_id)
        return entry if isinstance(entry, Approves | Denies | Sends) else None

    async def _give(self, record: RunEventRecord, entry: Answer) -> None:
        await asyncio.sleep(read_duration(entry.after))
        if isinstance(entry, Sends):
            delayed = read_payload(payloads.StepDelayed, record)
            content = {"name": delayed.event, "payload": entry.payload, **({"key": delayed.key} if delayed.key else {})}
            await self.operations.signal(record.run_id, "EVENT", content)
            return
        actor = Operations(self._log, self._engine, Actor(entry.by, ("Admin",), "test"))
        if isinstance(entry, Denies):
            await actor.signal(record.run_id, "DENY", {"stepId": record.step_id}, reason=entry.reason)
            return
        answer = {} if entry.answer is None else {"answer": entry.answer}
        decision = await actor.signal(record.run_id, "APPROVE", {"stepId": record.step_id, **answer})
        if decision.decision != "ACCEPTED":
            self._refused = decision.reason

    def _nobody_acts(self) -> AssertionError:
        if self._refused is not None:
            return AssertionError(f"An answer of the script was refused: {self._refused}")
        return AssertionError(
            "The run waits for something that nobody does: an approval, an event, or a signal. "
            "Script it (testing.Approves, testing.Sends), or send it with run.signal(...)."
        )


class _PlayedSubRuns(SubRuns):
    """Runs of other plans are played too, unless the script says what their step gives."""

    def __init__(self, operations: Operations, script: Script, executor: MockExecutor) -> None:
        super().__init__(operations)
        self._script = script
        self._executor = executor

    def start(self, work: Work, parent: RunIdentity, done: Callable[[Outcome], None]) -> Execution:
        if work.context.step_id in self._script or work.step.step_id in self._script:
            return self._executor.start(work, done)
        return super().start(work, parent, done)


def _owner(path: str) -> str:
    """The step that a path of a script is about, or the task of a playbook's step."""
    place = parse_path(path)
    if place is None:
        return path
    return place.step if place.task is None else f"{place.step}/{place.task}"


def _step_ids(plan: ExecutionPlan) -> set[str]:
    """The steps of a plan, the tasks of its pipelines, and the same of plans that steps of it are runs of."""
    found = {step.step_id for step in plan.steps}
    for step in plan.steps:
        if step.route is not None:
            found |= {f"{step.step_id}/{task.label}" for task in step.route.tasks}
        read = known(hash_in(str(step.inputs.get("ref")))) if step.kind == SUB_PLAN else None
        if read is not None:
            found |= _step_ids(read.plan)
    return found


def _carried_out(work: Work) -> Outcome:
    """Do what the step does, here and now."""
    outcome = carry_out(work)
    if isinstance(outcome, Outcome):
        return outcome
    close = getattr(outcome, "close", None)
    if close is not None:
        close()
    return outcome_of(Fails("NOT_PLAYED", "Coroutines are not carried out in a test. Script the step."), work)[0]


def open(steps: Script | None = None, *, real: bool = False) -> PlayApp:  # noqa: A001 - `testing.open()` reads best
    """The app for tests. `steps` says what each step gives; others give null, or with `real` are carried out."""
    return PlayApp(steps, real=real)


def replay(history: str | Path, plan: AnyPlan) -> None:
    """Play a plan with what a recorded run's steps gave, and fail unless the same happens again.

    `history` is what `runwright export RUN` writes. Keep some in a test, and it tells when a change of the plan would
    have changed a run.
    """
    records = [_record(line) for line in Path(history).read_text().splitlines() if line.strip()]
    queued = next((record for record in records if record.event_type == "RunQueued"), None)
    params: dict[str, Any] = {} if queued is None else (queued.payload or {}).get("params") or {}
    with open(_script_of(records)) as app:
        run = app.start(plan, params=params)
        run.wait()
        played, recorded = run.history(), lines_of(records)
        compare([line for line in played if _told(line)], [line for line in recorded if _told(line)])


def _record(line: str) -> RunEventRecord:
    return msgspec.json.decode(line, type=RunEventRecord)


def _told(line: str) -> bool:
    return not line.startswith(("Signal", "CheckpointWritten"))


def _script_of(records: Sequence[RunEventRecord]) -> Mapping[str, Any]:
    """What each step gave, attempt by attempt."""
    script: dict[str, list[Any]] = {}
    for record in records:
        payload, path = record.payload or {}, record.step_id or ""
        if record.event_type in ("StepFailed", "LoopIterationFailed"):
            error: dict[str, Any] = payload.get("error") or {}
            retryable = error.get("retryable") is not False
            entry: Any = Fails(error.get("code") or "", error.get("message") or "", retryable)
        elif record.event_type in ("StepCompleted", "LoopIterationDone"):
            entry = Result(payload.get("result"))
        elif record.event_type == "ApprovalGranted":
            entry = Approves(payload.get("answer"), by=payload.get("by") or "tester")
        elif record.event_type == "ApprovalDenied" and payload.get("by"):
            entry = Denies(payload.get("reason"), by=payload["by"])
        else:
            continue
        entries = script.setdefault(path, [])
        if isinstance(entry, Approves | Denies) or not entries or not isinstance(entries[-1], Approves | Denies):
            entries.append(entry)
    return script
