"""The app for tests: the real engine on a memory store, with a script instead of tools and virtual time."""

from __future__ import annotations

import asyncio
import random
import tempfile
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import msgspec

from runwright.auth.roles import Actor
from runwright.contract import payloads
from runwright.contract.errors import ErrorCode, RunwrightError
from runwright.contract.events import RunEventRecord, RunIdentity
from runwright.contract.paths import parse_path
from runwright.contract.plan import ExecutionPlan
from runwright.contract.snapshot import RunSnapshot
from runwright.contract.timestamps import to_micros
from runwright.control.operations import Operations
from runwright.control.plan_loader import AnyPlan
from runwright.control.signal_rules import SignalDecision
from runwright.control.subruns import SubRuns
from runwright.core.fold.payload_reader import read_payload
from runwright.flows.plan_function import PlanFunction
from runwright.log.memory import MemoryStore
from runwright.log.run_log import RunLog
from runwright.plans.durations import parse_duration
from runwright.plans.registry import SUB_PLAN, find_registered, hash_from_ref
from runwright.plans.store import PlanStore
from runwright.runtimes.embedded.engine import Engine
from runwright.runtimes.executor.executor import Outcome, Work
from runwright.runtimes.executor.work import run_tool
from runwright.runtimes.mock import MockExecutor
from runwright.runtimes.protocols import Execution, NamedChildRuns
from runwright.runtimes.services import RunServices
from runwright.runtimes.settings import EngineSettings
from runwright.storage.output.files import StepLogs
from runwright.storage.result_stores import in_memory_tiers
from runwright.storage.values import LogValueBackend
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
        """Run until the run has ended, or `timeout` of virtual time has passed; return its snapshot."""
        seconds = None if timeout is None else parse_duration(timeout)
        return self._app.play(self._app.operations.wait(self.run_id, seconds))

    def snapshot(self) -> RunSnapshot:
        return self._app.play(self._app.operations.log.snapshot(self.run_id))

    def result(self, step_id: str | None = None) -> Any:
        operations = self._app.operations
        reading = operations.run_result(self.run_id) if step_id is None else operations.result(self.run_id, step_id)
        value = self._app.play(reading)
        return self._plan.typed(step_id, value) if isinstance(self._plan, PlanFunction) else value

    def signal(
        self, signal_type: str, payload: dict[str, Any] | None = None, reason: str | None = None
    ) -> SignalDecision:
        return self._app.play(self._app.operations.signal(self.run_id, signal_type, payload, reason=reason))

    def events(self) -> list[RunEventRecord]:
        return self._app.play(self._app.operations.log.read(self.run_id))

    @property
    def took(self) -> float:
        """Virtual time between the first and the last event, in seconds."""
        events = self.events()
        return (to_micros(events[-1].emitted_at) - to_micros(events[0].emitted_at)) / 1e6

    def history(self) -> list[str]:
        """Return a line per event, without ids and times."""
        return lines_of(self.events())

    def assert_history(self, expected: str | Path | Sequence[str]) -> None:
        """Raise AssertionError unless the history equals these lines, or the lines of a file (see `history`)."""
        compare(self.history(), expected)

    def assert_happened(self, *lines: str) -> None:
        """Raise AssertionError unless the history contains these lines in this order. Others may be in between."""
        history = iter(self.history())
        for line in lines:
            if line not in history:
                actual = "\n  ".join(self.history())
                raise AssertionError(f"{line!r} not found in the history, or not in this order:\n  {actual}")


class PlayApp:
    """An engine for tests: `with testing.open({"extract": [1, 2, 3]}) as app:`."""

    def __init__(self, steps: Script | None = None, *, real: bool = False) -> None:
        self._script: Script = steps or {}
        self._real = real
        self.loop = VirtualLoop()
        self._folder = tempfile.TemporaryDirectory()
        self._rejection: str | None = None  # Reason for which a scripted answer was rejected.
        self._background: set[asyncio.Task[Any]] = set()
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
        params = {**(params or {}), **more}
        params = plan.params(params) if isinstance(plan, PlanFunction) else params
        self._check_script(plan)
        loaded = self.operations.load(plan)
        return PlayedRun(self, self.play(self.operations.start(loaded, params=params, run_id=run_id)), plan)

    def play(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the virtual loop. Raises AssertionError if nothing can happen any more."""
        task = self.loop.create_task(coroutine)
        self.loop.stalled = False
        try:
            return self.loop.run_until_complete(task)
        except RuntimeError:
            if not self.loop.stalled:
                raise
            task.cancel()
            raise self._stalled_error() from None

    def _check_script(self, plan: AnyPlan) -> None:
        """Raise STEP_NOT_FOUND if the script names a step that the plan does not have."""
        steps = _step_ids(self.operations.load(plan))
        for path in self._script:
            if _owner(path) not in steps:
                raise RunwrightError(ErrorCode.STEP_NOT_FOUND, f"Step {path!r} of the script not found in the plan.")

    # The engine

    async def _open(self) -> Operations:
        clock, ids = VirtualClock(self.loop), SeededIds(random.Random(7))  # noqa: S311 - not for secrets
        store = MemoryStore(clock=clock)
        self._log = RunLog(store, ids=ids)
        self._executor = MockExecutor(self._execute_step)
        await self._log.open()
        services = RunServices(
            self._log,
            self._executor,
            all_tools(),
            PlanStore(self._log),
            LogValueBackend(store),
            StepLogs(Path(self._folder.name), now=clock.now),
            EngineSettings(alone=True),
            provider="mock",
            tiers=in_memory_tiers(clock.now),
        )
        self._engine = Engine(services, "test")
        await self._engine.open()
        self._background.add(asyncio.create_task(self._answer_requests()))
        operations = Operations(self._log, self._engine, Actor("tester", ("Admin",), "test"))
        self._engine.services.sub_runs = _ScriptedSubRuns(operations, self._script, self._executor)
        return operations

    async def _close(self) -> None:
        for task in self._background:
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)
        await self._engine.close()
        await self._log.close()

    def _execute_step(self, work: Work) -> tuple[Outcome, float]:
        path, attempt = work.context.step_id, work.context.attempt
        is_scripted = path in self._script or work.step.step_id in self._script
        if self._real and not is_scripted:
            return _execute(work), 0.0
        return outcome_of(scripted(self._script, path, work.step.step_id, attempt), work)

    # Answers of the script

    async def _answer_requests(self) -> None:
        """Send the scripted answers to approvals and event waits as their events appear."""
        cursor: str | None = None
        while True:
            page = await self._log.read_all(cursor)
            cursor = page.cursor
            for record in page.records:
                entry = self._scripted_answer(record)
                if entry is not None:
                    task = asyncio.create_task(self._send_answer(record, entry))
                    self._background.add(task)
                    task.add_done_callback(self._background.discard)
            if not page.records:
                await self._log.wait_for_events()

    def _scripted_answer(self, record: RunEventRecord) -> Answer | None:
        if record.event_type not in ("ApprovalRequested", "StepDelayed") or record.step_id is None:
            return None
        entry = scripted(self._script, record.step_id, record.step_id, record.logical_attempt_id)
        return entry if isinstance(entry, Approves | Denies | Sends) else None

    async def _send_answer(self, record: RunEventRecord, entry: Answer) -> None:
        await asyncio.sleep(parse_duration(entry.after))
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
            self._rejection = decision.reason

    def _stalled_error(self) -> AssertionError:
        if self._rejection is not None:
            return AssertionError(f"A scripted answer was rejected: {self._rejection}")
        return AssertionError(
            "The run waits forever for an approval, an event or a signal. "
            "Script it (testing.Approves, testing.Sends), or send it with run.signal(...)."
        )


class _ScriptedSubRuns(SubRuns):
    """Sub-runs on the same engine, unless the script has the outcome of their step."""

    def __init__(self, operations: Operations, script: Script, executor: MockExecutor) -> None:
        super().__init__(operations)
        self._script = script
        self._executor = executor

    def start(
        self, work: Work, parent: RunIdentity, named: NamedChildRuns, done: Callable[[Outcome], None]
    ) -> Execution:
        if work.context.step_id in self._script or work.step.step_id in self._script:
            return self._executor.start(work, done)
        return super().start(work, parent, named, done)


def _owner(path: str) -> str:
    """Return the step of a script's path, or the task of a playbook step."""
    entity = parse_path(path)
    if entity is None:
        return path
    return entity.step if entity.task is None else f"{entity.step}/{entity.task}"


def _step_ids(plan: ExecutionPlan) -> set[str]:
    """Return the steps of a plan, the tasks of its pipelines, and those of its sub-plans."""
    found = {step.step_id for step in plan.steps}
    for step in plan.steps:
        if step.route is not None:
            found |= {f"{step.step_id}/{task.label}" for task in step.route.tasks}
        sub_plan = find_registered(hash_from_ref(str(step.inputs.get("ref")))) if step.kind == SUB_PLAN else None
        if sub_plan is not None:
            found |= _step_ids(sub_plan.plan)
    return found


def _execute(work: Work) -> Outcome:
    """Execute a step synchronously."""
    outcome = run_tool(work)
    if isinstance(outcome, Outcome):
        return outcome
    close = getattr(outcome, "close", None)
    if close is not None:
        close()
    return outcome_of(Fails("NOT_PLAYED", "Coroutines cannot be executed in a test. Script the step."), work)[0]


def open(steps: Script | None = None, *, real: bool = False) -> PlayApp:  # noqa: A001 - `testing.open()` reads best
    """Open an app for tests. `steps` scripts outcomes; other steps return null, or with `real` are executed."""
    return PlayApp(steps, real=real)


def replay(history: str | Path, plan: AnyPlan) -> None:
    """Run a plan with the step results of a recorded run. Raises AssertionError if the history differs.

    `history` is a file written by `runwright export RUN`. A test that replays it fails when a change of the plan would
    have changed that run.
    """
    records = [_record(line) for line in Path(history).read_text().splitlines() if line.strip()]
    queued = next((record for record in records if record.event_type == "RunQueued"), None)
    params: dict[str, Any] = {} if queued is None else (queued.payload or {}).get("params") or {}
    with open(_script_of(records)) as app:
        run = app.start(plan, params=params)
        run.wait()
        played, recorded = run.history(), lines_of(records)
        compare([line for line in played if _is_compared(line)], [line for line in recorded if _is_compared(line)])


def _record(line: str) -> RunEventRecord:
    return msgspec.json.decode(line, type=RunEventRecord)


def _is_compared(line: str) -> bool:
    """Return False for signals and checkpoints, which a replay does not reproduce."""
    return not line.startswith(("Signal", "CheckpointWritten"))


def _script_of(records: Sequence[RunEventRecord]) -> Mapping[str, Any]:
    """Return the outcomes of each step, by attempt."""
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
