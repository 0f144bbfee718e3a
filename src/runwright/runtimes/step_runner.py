"""StepRunner: executes the attempts of one run. Prepares inputs and secrets, starts tools, reports ends as facts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import msgspec

from runwright.contract.errors import ErrorCode, RunwrightError
from runwright.contract.refs import ArtifactRef, ErrorInfo
from runwright.contract.timestamps import from_micros
from runwright.core.fold.execution_state import checkpoint_owner
from runwright.core.graph.node import Node
from runwright.core.graph.plan_graph import NodeAddress
from runwright.core.scheduling.loops import loop_items
from runwright.core.scheduling.scheduler import Timeout
from runwright.core.scheduling.stored_values import MissingValues
from runwright.plans.secret_refs import SecretPlace, find_secret_places, insert_secrets
from runwright.runtimes.executor.executor import Outcome, Work
from runwright.runtimes.executor.work import NOT_STARTED
from runwright.storage.artifacts import ArtifactStore
from runwright.storage.json_encoding import check_checkpoint, encode_result
from runwright.storage.output.writer import LogWriter
from runwright.tools.base import (
    INPUTS_ARE_LOGGED,
    STEP_RAISED,
    ApprovalTool,
    Lane,
    StepContext,
    StepError,
    TimerTool,
    Tool,
)
from runwright.tools.secret_mask import Mask

from .alerts import late_result, output_dropped
from .child_runs import ChildRunsOfStep
from .commands import Execute
from .facts import CheckpointRequested, Fact, InputRequested, StepEnded, WaitStarted
from .protocols import Execution
from .result_loader import load_result
from .run_session import RunSession
from .secret_resolver import SecretResolver, SecretsNeeded
from .value_fetcher import fetch_values

LOGGED_LANES = frozenset({Lane.RUN, Lane.ASK, Lane.TIMER})
"""Lanes whose inputs become part of an event."""


class RunningStep:
    """An attempt that is executed by this process, or by a worker for it."""

    __slots__ = (
        "artifacts",
        "attempt",
        "execution",
        "is_remote",
        "lane",
        "mask",
        "node",
        "output",
        "path",
        "started",
        "timed_out",
    )

    def __init__(self, path: str, attempt: int, node: Node, lane: Lane, started: float) -> None:
        self.path = path
        self.attempt = attempt
        self.node = node
        self.lane = lane
        self.started = started  # by the monotonic clock
        self.execution: Execution | None = None
        self.is_remote = False  # a worker executes it
        self.timed_out: ErrorInfo | None = None
        self.mask: Mask | None = None  # set if it received secrets
        self.artifacts: list[ArtifactRef] = []
        self.output: LogWriter | None = None


class RemoteStep(NamedTuple):
    """An attempt for a worker."""

    node: Node
    path: str
    attempt: int
    inputs: Any
    secrets: list[SecretPlace]


class WorkerDispatch(Protocol):
    """Dispatches the attempts of a run to workers."""

    def start(self, step: RemoteStep, done: Callable[[Outcome], None]) -> Execution: ...

    def cancel_claim(self, path: str, attempt: int) -> None:
        """The attempt ended before it could be dispatched to the worker that claimed it."""
        ...


class PreparedStep(NamedTuple):
    tool: Tool
    inputs: Any  # an instance of `tool.inputs`
    secrets: Mapping[str, str]


class StepRunner:
    def __init__(
        self,
        session: RunSession,
        report: Callable[[Fact], None],
        wake: Callable[[], None],
        on_slot_free: Callable[[Node], None],
        dispatch: WorkerDispatch | None = None,
    ) -> None:
        self._session = session
        self._services = session.services
        self._report = report
        self._wake = wake
        self._on_slot_free = on_slot_free
        self._dispatch = dispatch
        self._running: dict[str, RunningStep] = {}
        self._waiting: list[Execute] = []  # for values that must be fetched
        self._deferred: list[Execute] = []  # to the next decision: this one has cost as much as it may
        self.missing: dict[str, dict[str, Any]] = {}  # those values
        self._secrets = SecretResolver(session.services, session.run)
        self._unreported = 0  # attempts that ended, and whose output is being stored
        self._is_stopping = self._is_closed = False

    @property
    def is_idle(self) -> bool:
        waiting = self._waiting or self._deferred or self._secrets.pending
        return not (self._running or waiting or self._unreported)

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    @property
    def count_local(self) -> int:
        """Attempts that this process executes itself."""
        return sum(not running.is_remote for running in self._running.values())

    async def stop_sub_runs(self, interrupted: Sequence[Execute]) -> None:
        """Stop the sub-runs of a run that ends. They end first: after its end nothing refers to them."""
        for each in interrupted:
            child = self._session.decider.execution.child_run(each.path, each.attempt)
            if child is not None and self._services.sub_runs is not None:
                await self._services.sub_runs.stop(self._session.run, child)

    # Launching

    def launch(self, command: Execute) -> None:
        """Execute an attempt, unless it is executed already or has ended."""
        address = self._session.graph.find(command.path)
        if address is None or self._is_closed or not self._is_running(command):
            return
        is_loop = address.node.step.foreach is not None and not address.indexes
        if command.path in self._running or is_loop:
            return  # a task starts with its first attempt; a loop itself has nothing to execute
        if self._session.decider.is_deferred:
            self._deferred.append(command)
            self._wake()
            return
        try:
            self._launch(command, address)
        except SecretsNeeded as needed:
            self._resolve_secrets(command, address.node, needed.names)
        except MissingValues as missing:
            self._waiting.append(command)
            self.missing |= missing.refs
        except (RunwrightError, StepError) as error:
            self._fail(command.path, command.attempt, error)
        except Exception as error:  # a tool may raise anything; that fails its step
            self._fail(command.path, command.attempt, StepError(STEP_RAISED, f"{type(error).__name__}: {error}"))

    def launch_deferred(self) -> None:
        """Launch what the last decision left; as much as this one may cost."""
        deferred, self._deferred = self._deferred, []
        for command in deferred:
            self.launch(command)

    def _launch(self, command: Execute, address: NodeAddress) -> None:
        path, attempt, node = command.path, command.attempt, address.node
        variables = self._loop_variables(address)
        variables["step"] = {"id": path, "attempt": attempt}
        if node.queue is not None:
            self._launch_remote(command, node, variables)
            return
        prepared = self._prepare(node, path, attempt, variables)
        lane = prepared.tool.lane(prepared.inputs, node.step)
        if lane in LOGGED_LANES and prepared.secrets:  # an override may name one that the plan does not
            raise RunwrightError(ErrorCode.INVALID_STEP_SCHEMA, INPUTS_ARE_LOGGED)
        if lane is Lane.ASK:
            self._request_input(command, node, prepared)
        elif lane is Lane.TIMER:
            self._start_wait(command, node, prepared)
        else:
            self._execute(RunningStep(path, attempt, node, lane, self._services.clock.monotonic()), prepared)

    def _execute(self, running: RunningStep, prepared: PreparedStep) -> None:
        running.mask = Mask(prepared.secrets.values()) if prepared.secrets else None
        self._running[running.path] = running
        context = self._context(running, prepared.secrets)
        on_late = partial(self._on_late_outcome, running)
        work = Work(prepared.tool, running.lane, prepared.inputs, running.node.step, context, on_late)
        done = partial(self._on_ended, running)
        if running.lane is Lane.RUN:
            assert self._services.sub_runs is not None
            named = ChildRunsOfStep(self._session, self._report, running.path)
            running.execution = self._services.sub_runs.start(work, self._session.run, named, done)
        else:
            running.execution = self._services.executor.start(work, done)
        self._watch_timeout(running)

    def _launch_remote(self, command: Execute, node: Node, variables: dict[str, Any]) -> None:
        assert self._dispatch is not None
        path, attempt = command.path, command.attempt
        inputs = self._session.decider.scheduler.inputs_of(node, path, variables)
        running = RunningStep(path, attempt, node, Lane.PROCESS, self._services.clock.monotonic())
        running.is_remote = True
        self._running[path] = running
        step = RemoteStep(node, path, attempt, inputs, self._secret_places(node, path, inputs))
        running.execution = self._dispatch.start(step, partial(self._on_ended, running))
        self._watch_timeout(running)

    def _is_running(self, command: Execute) -> bool:
        return self._session.decider.scheduler.is_running(command.path, command.attempt)

    def _loop_variables(self, address: NodeAddress) -> dict[str, Any]:
        foreach = address.node.step.foreach
        if foreach is None or not address.indexes:
            return {}
        decider, index = self._session.decider, address.indexes[0]
        loop = decider.execution.loops[address.node.step.step_id]
        return {foreach.item_name: loop_items(decider.values, loop)[index], "index": index}

    def _request_input(self, command: Execute, node: Node, prepared: PreparedStep) -> None:
        timeout = node.step.timeout
        expires = None if timeout is None else from_micros(self._services.clock.now() + int(timeout * 1e6))
        assert isinstance(prepared.tool, ApprovalTool)
        event_type, question = prepared.tool.question(prepared.inputs, expires)
        self._report(InputRequested(command.path, command.attempt, event_type, question))

    def _start_wait(self, command: Execute, node: Node, prepared: PreparedStep) -> None:
        now, timeout = self._services.clock.now(), node.step.timeout
        assert isinstance(prepared.tool, TimerTool)
        due = prepared.tool.due_at(prepared.inputs, now)
        limit = due if timeout is None else now + int(timeout * 1e6)
        reason = "until" if prepared.tool.due_at(prepared.inputs, now - 1) == due else "wait"
        self._report(WaitStarted(command.path, command.attempt, min(due, limit), "timeout" if limit < due else reason))

    # Inputs and secrets

    def _prepare(self, node: Node, path: str, attempt: int, variables: dict[str, Any]) -> PreparedStep:
        """The tool of a step, its inputs with expressions evaluated and secrets inserted, and the secrets it named."""
        tool = self._services.tools.get(node.step.kind)
        if tool is None:
            message = f"Tool {node.step.kind!r} is not installed here. Install it, and retry."
            raise RunwrightError(ErrorCode.INVALID_STEP_SCHEMA, message)
        inputs = self._session.decider.scheduler.inputs_of(node, path, variables)
        places = self._secret_places(node, path, inputs)
        names = list(dict.fromkeys([*node.step.secret_refs, *(place.name for place in places)]))
        secrets: Mapping[str, str] = {}
        if names:
            secrets = self._secrets.get(path, attempt, names)
            inputs = insert_secrets(inputs, places, secrets)
        try:
            return PreparedStep(tool, msgspec.convert(inputs, tool.inputs), secrets)
        except msgspec.ValidationError as error:
            detail = str(error) if not names else "a secret does not have the type that the step needs there"
            message = f"Invalid inputs after evaluating expressions: {detail}."
            raise RunwrightError(ErrorCode.INVALID_STEP_SCHEMA, message) from None

    def _secret_places(self, node: Node, path: str, inputs: Any) -> list[SecretPlace]:
        """Where secrets belong in the inputs of a step."""
        decider = self._session.decider
        if not node.secrets and node.step.step_id not in decider.execution.overrides:
            return []
        inherited = decider.scheduler.inherited_secret_names(path)
        return list(find_secret_places(decider.raw_inputs(node), inputs, inherited))

    def _resolve_secrets(self, command: Execute, node: Node, names: list[str]) -> None:
        self._secrets.resolve(
            command.path,
            command.attempt,
            names,
            self._session.decider.scheduler.timeout_of(node, command.path),
            on_resolved=lambda path, attempt: self.launch(Execute(path, attempt)),
            on_failed=self._fail,
            on_timeout=self._on_secrets_timeout,
        )

    def _on_secrets_timeout(self, path: str, attempt: int, timeout: Timeout) -> None:
        self._report(StepEnded(path, attempt, 0.0, None, timeout.error))

    # The context of a step

    def last_checkpoint(self, path: str) -> Any:
        """The last checkpoint of a step or task."""
        checkpoints = self._session.decider.execution.checkpoints
        if not checkpoints:
            return None
        address = self._session.graph.find(path)
        owner = path
        if address is not None and not address.node.is_task:
            owner = checkpoint_owner(address.node.step.step_id, address.indexes)
        saved = checkpoints.get(owner)
        return None if saved is None else msgspec.json.decode(saved)

    def _context(self, running: RunningStep, secrets: Mapping[str, str]) -> StepContext:
        session, decider, services = self._session, self._session.decider, self._services
        path, attempt, is_run = running.path, running.attempt, running.lane is Lane.RUN
        mask = running.mask
        output = running.output = services.step_logs.writer(session.run.run_id, path, attempt, mask)
        store = services.artifacts
        artifacts = None if store is None else TenantArtifacts(store, session.run.tenant_id, running.artifacts)
        return StepContext(
            run_id=session.run.run_id,
            step_id=path,
            attempt=attempt,
            engine_attempt=decider.engine_attempt,
            restored=self.last_checkpoint(path),
            write=output.write,
            end_output=output.close,
            save=partial(self._save_checkpoint, path, attempt, running.mask),
            secrets={name: secrets[name] for name in running.node.step.secret_refs},
            artifacts=artifacts,
            iteration=decider.scheduler.iteration_of(path) if is_run else None,
            workload=decider.execution.params if is_run else None,
            resolve=self._resolve_result if running.node.is_task else None,
            mask_text=None if mask is None else mask.mask_text,
            working_directory=session.working_directory,
            lease_remaining=session.lease.remaining,
        )

    def _resolve_result(self, ref: Any) -> Any:
        """Called by a task in its own thread: the result that a reference names."""
        services = self._services
        work = load_result(services.log, services.results, ref, self._session.run.tenant_id)
        return asyncio.run_coroutine_threadsafe(work, services.loop).result()

    def _save_checkpoint(self, path: str, attempt: int, mask: Mask | None, state: Any) -> None:
        """Called by a step in its own thread: return once the checkpoint is durable."""
        body = encode_result(state) if mask is None else mask.mask_json(encode_result(state))
        check_checkpoint(body)
        saved: Future[None] = Future()

        def on_done(error: Exception | None) -> None:
            if error is None:
                saved.set_result(None)
            else:
                saved.set_exception(error)

        self._services.call_threadsafe(self._report, CheckpointRequested(path, attempt, body, on_done))
        saved.result()

    # Ends

    def _fail(self, path: str, attempt: int, error: RunwrightError | StepError) -> None:
        """The attempt could not be launched."""
        message = error.detail if isinstance(error, RunwrightError) else error.message
        is_unavailable = error.code == ErrorCode.REFERENCE_NOT_AVAILABLE
        if is_unavailable:
            self._session.decider.values.unavailable.clear()  # it may be available at the next attempt
        category = "system" if is_unavailable else "plan"
        info = ErrorInfo(error.code, message, retryable=is_unavailable, category=category)
        if self._dispatch is not None:
            self._dispatch.cancel_claim(path, attempt)
        self._report(StepEnded(path, attempt, 0.0, None, info))

    def _on_ended(self, running: RunningStep, outcome: Outcome) -> None:
        running.execution = None  # the two refer to each other, and neither is needed any more
        if self._running.get(running.path) is running:
            del self._running[running.path]
        self._on_slot_free(running.node)
        if self._is_closed:
            return
        if outcome is NOT_STARTED:
            self._services.spawn(self._launch_again(Execute(running.path, running.attempt)))
            return
        outcome = outcome.masked(running.mask)
        error, result = outcome.error, outcome.result
        if running.timed_out is not None:
            error, result = running.timed_out, None  # also if it ignored the cancel and completed
        if self._is_stopping and error is not None:
            self._wake()  # it was stopped; its end is decided with that of the run
            return
        duration_ms = round((self._services.clock.monotonic() - running.started) * 1000, 3)
        artifacts = (*running.artifacts, *outcome.artifacts)
        ended = StepEnded(running.path, running.attempt, duration_ms, result, error, artifacts)
        # The output is stored first: a follower of the run stops reading at the end of the step.
        self._unreported += 1
        self._services.step_logs.when_stored(partial(self._report_end, ended, running.output))

    async def _launch_again(self, command: Execute) -> None:
        """The lease had expired when the step was to start. If the run is still owned when it is valid, start it."""
        try:
            await self._session.lease.wait(self._session.fence)
        except RunwrightError:
            return  # the run belongs to the next lease, or to another process
        self.launch(command)

    def _report_end(self, ended: StepEnded, output: LogWriter | None) -> None:
        self._unreported -= 1
        if output is not None and output.dropped:
            self._services.alert(output_dropped(self._session.run.run_id, ended.path, ended.attempt, output))
        self._report(ended)

    def _on_late_outcome(self, running: RunningStep, outcome: Outcome) -> None:
        """An abandoned execution ended. If the run has moved to another process, operators should know."""
        if not self._is_closed or (outcome.error is not None and outcome.error.category == "cancelled"):
            return
        masked = outcome.masked(running.mask)
        self.report_late_result(running.path, running.attempt, masked.result, masked.error)

    def report_late_result(self, path: str, attempt: int, result: bytes | None, error: ErrorInfo | None) -> None:
        self._services.late_results += 1
        run_id, engine_attempt = self._session.run.run_id, self._session.decider.engine_attempt
        self._services.alert(late_result(run_id, path, attempt, engine_attempt, result, error))

    def _watch_timeout(self, running: RunningStep) -> None:
        timeout = self._session.decider.scheduler.timeout_of(running.node, running.path)
        if timeout is not None:
            expire = partial(self._on_timeout, running, timeout.error)
            self._services.monotonic_timers.set(running.started + timeout.seconds, expire)

    def _on_timeout(self, running: RunningStep, error: ErrorInfo) -> None:
        if self._running.get(running.path) is running and running.execution is not None:
            running.timed_out = error
            running.execution.cancel(self._services.settings.stop_grace)

    # Stopping

    def stop(self, *, by_force: bool) -> None:
        """Stop everything that is executed."""
        self._is_stopping = True
        self._waiting.clear()
        self._deferred.clear()
        self._secrets.cancel()
        settings = self._services.settings
        for running in list(self._running.values()):
            if running.execution is None:
                continue
            if by_force:
                running.execution.kill()
                if running.lane is not Lane.RUN:  # a sub-run is stopped through its own log, and ends first
                    self._running.pop(running.path, None)
            elif running.node.step.cancellable:
                running.execution.cancel(settings.stop_grace)
            else:
                self._services.call_later(settings.cancel_deadline, partial(self._cancel, running))

    def _cancel(self, running: RunningStep) -> None:
        if self._running.get(running.path) is running and running.execution is not None:
            running.execution.cancel(self._services.settings.stop_grace)

    def close(self) -> None:
        """Launch nothing more."""
        self._is_closed = True

    def abandon(self) -> None:
        """The run is not ours any more: what is executed here is stopped, and its end does not count."""
        self._is_closed = True
        for running in list(self._running.values()):
            if running.execution is not None:
                running.execution.detach()
        self._running.clear()

    async def fetch(self) -> None:
        """Fetch the values that decisions and launches wait for, then launch the latter."""
        wanted, self.missing = self.missing, {}
        await fetch_values(self._session, wanted)
        waiting, self._waiting = self._waiting, []
        for command in waiting:
            self.launch(command)


class TenantArtifacts:
    """The artifact store as one step sees it. Records what the step stores."""

    def __init__(self, store: ArtifactStore, tenant_id: str, stored: list[ArtifactRef]) -> None:
        self._store = store
        self._tenant_id = tenant_id
        self._stored = stored

    def store(self, source: Path | bytes, kind: str) -> ArtifactRef:
        ref = self._store.for_tenant(self._tenant_id).put(source, kind)
        self._stored.append(ref)
        return ref

    def fetch(self, ref: ArtifactRef | str, target: Path) -> int:
        return self._store.for_tenant(self._tenant_id).get(ref, target)
