"""Launching steps: inputs are filled in, the tool is handed to the executor, and its end becomes a fact."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from runwright.contract.errors import STORE_CODES_TO_WAIT_FOR, ErrorCode, RunwrightError
from runwright.contract.paths import parse_path
from runwright.contract.refs import ArtifactRef, ErrorInfo
from runwright.contract.resultref import digest_in
from runwright.contract.timestamps import from_micros
from runwright.contract.transitions import ENDED, RunStatus
from runwright.core.handing import scheduled
from runwright.core.looping import items_of
from runwright.core.node import Node
from runwright.core.values import Missing
from runwright.core.workings import checkpoint_owner
from runwright.plans.known import SUB_PLAN
from runwright.plans.secrets import SecretPlace, secret_places, with_secrets
from runwright.results.artifacts import ArtifactStore
from runwright.results.encoding import check_checkpoint, encode_result
from runwright.tools.base import RAISED, Lane, StepContext, StepError, Tool
from runwright.tools.plan import SECRETS
from runwright.tools.secrets import Mask, SecretContext

from .dispatch import RemoteExecution
from .executor import Outcome, Work
from .facts import Asked, CheckpointAsked, StepEnded, WaitBegan, is_under_way
from .resolving import resolve
from .tasks import StepOrder
from .work import Execution

if TYPE_CHECKING:
    from .driver import RunDriver

logger = logging.getLogger("runwright.engine")

STORE_PAUSE = 0.5  # seconds until a store that does not answer is asked again
STOP_GRACE = 5.0  # seconds between being asked to stop and being stopped


class _Running:
    """An attempt at work in this process."""

    __slots__ = ("artifacts", "attempt", "began", "execution", "lane", "mask", "node", "overdue", "path")

    def __init__(self, path: str, attempt: int, node: Node, lane: Lane, began: float) -> None:
        self.path = path
        self.attempt = attempt
        self.node = node
        self.lane = lane
        self.began = began
        self.execution: Execution | None = None
        self.overdue: ErrorInfo | None = None  # it took longer than it may
        self.mask: Mask | None = None  # where it was given secrets
        self.artifacts: list[ArtifactRef] = []


class _SecretsNeeded(Exception):
    def __init__(self, names: list[str]) -> None:
        super().__init__(names)
        self.names = names


class Launcher:
    """The steps of one run that are at work in this process."""

    def __init__(self, driver: RunDriver) -> None:
        self._driver = driver
        self._engine = driver.engine
        self._running: dict[str, _Running] = {}
        self._waiting: list[tuple[str, int]] = []  # for values that have to be fetched
        self.missing: dict[str, dict[str, Any]] = {}  # those values
        self._asking: dict[str, int] = {}  # attempts that wait for secrets
        self._secrets: dict[tuple[str, int], Mapping[str, str]] = {}  # those that came, until they are used
        self._telling = 0  # ends that are known, and wait for their output to be kept
        self._stopping = self._abandoned = False
        self._offered: dict[str, int] = {}  # attempts that workers may take
        self._held = False  # they may not, for now

    @property
    def idle(self) -> bool:
        return not self._running and not self._waiting and not self._asking and not self._telling

    @property
    def count_here(self) -> int:
        """Steps at work in this process, not at workers."""
        return sum(not isinstance(running.execution, RemoteExecution) for running in self._running.values())

    def take_up(self, cut_short: Sequence[tuple[str, int]]) -> None:
        """Steps that were under way in a process that is gone begin anew."""
        for path, attempt in cut_short:
            self.launch(path, attempt)

    async def stop_sub_runs(self, cut_short: Sequence[tuple[str, int]]) -> None:
        """The run ends, and so do those that are steps of it. They go first: after its end nothing leads to them."""
        for path, attempt in cut_short:
            node, _ = self._node(path)
            if node is not None and node.step.kind == SUB_PLAN and self._engine.sub_runs is not None:
                await self._engine.sub_runs.stop(self._driver.run, path, attempt)

    def _node(self, path: str) -> tuple[Node | None, tuple[int, ...]]:
        """The step that a path belongs to, and which iterations of it."""
        net = self._driver.net
        node = net.node(path)
        if node is None and (place := parse_path(path)) is not None:
            if net.routes is not None and place.task is not None:
                return net.routes.stations[place.step].nodes.get(place.task), place.indexes
            return net.node(place.step), place.indexes
        return node, ()

    def launch(self, path: str, attempt: int) -> None:
        node, indexes = self._node(path)
        if node is None or self._abandoned or not is_under_way(self._driver.decider, path, attempt):
            return
        if path in self._running or (node.step.foreach is not None and not indexes):
            return  # a task begins with its first attempt; a loop has nothing to do itself
        try:
            more = self._loop_scope(node, indexes) if indexes and node.step.foreach is not None else {}
            more["step"] = {"id": path, "attempt": attempt}
            if node.queue is not None:
                self._leave_to_worker(node, path, attempt, more)
                return
            tool, inputs, secrets = self._prepare(node, path, attempt, more)
            lane = tool.lane(inputs, node.step)
            if lane is Lane.RUN and secrets:
                raise RunwrightError(ErrorCode.INVALID_STEP_SCHEMA, SECRETS)
            if lane is Lane.ASK:
                self._ask(node, path, attempt, tool, inputs)
                return
            if lane is Lane.TIMER:
                self._wait(node, path, attempt, self._engine.due_at(tool, inputs))
                return
        except _SecretsNeeded as needed:
            self._asking[path] = attempt
            if (allowed := self._driver.decider.time_for(node, path)) is not None:
                late = partial(self._asked_too_long, path, attempt, allowed[1])
                self._engine.alarms.set(self._engine.clock.monotonic() + allowed[0], late)
            self._engine.do(self._get_secrets(path, attempt, needed.names))
            return
        except Missing as missing:
            self._waiting.append((path, attempt))
            self.missing |= missing.refs
            return
        except (RunwrightError, StepError) as error:
            self._fail(path, attempt, error)
            return
        except Exception as error:  # a tool from elsewhere may fail in ways of its own: that is its step's business
            self._fail(path, attempt, StepError(RAISED, f"{type(error).__name__}: {error}"))
            return
        running = _Running(path, attempt, node, lane, self._engine.clock.monotonic())
        running.mask = Mask(secrets.values()) if secrets else None
        self._running[path] = running
        context = self._context(running, secrets)
        work = Work(tool, lane, inputs, node.step, context, partial(self._came_late, running))
        running.execution = self._start(work, partial(self._ended, running))
        self._watch_time(running)

    # Workers

    @property
    def has_offers(self) -> bool:
        return bool(self._offered)

    def is_on_offer(self, path: str, attempt: int) -> bool:
        return self._offered.get(path) == attempt

    def is_at_work(self, path: str, attempt: int) -> bool:
        return is_under_way(self._driver.decider, path, attempt)

    def sync_offers(self) -> None:
        """Offer what is scheduled, and nothing else; hold it back while the run is paused."""
        dispatch, decider = self._engine.dispatch, self._driver.decider
        if dispatch is None or self._abandoned or not self._driver.net.has_queues:
            return
        run_id = self._driver.run.run_id
        if decider.status in ENDED:
            dispatch.run_ended(run_id)
            return
        wanted = {} if decider.stop is not None else scheduled(decider)
        is_paused = decider.status is RunStatus.PAUSED
        for path, attempt in list(self._offered.items()):
            if wanted.get(path) != attempt:
                del self._offered[path]
                if not is_under_way(decider, path, attempt):
                    dispatch.withdraw(run_id, path, attempt)
        for path, attempt in wanted.items():
            if path not in self._offered or (self._held and not is_paused):
                node, _ = self._node(path)
                if node is not None and node.queue is not None:
                    self._offered[path] = attempt
                    dispatch.offer(self._driver, path, attempt, node.queue)
        if is_paused and not self._held and wanted:
            dispatch.hold(run_id)
        self._held = is_paused

    def _leave_to_worker(self, node: Node, path: str, attempt: int, more: dict[str, Any]) -> None:
        dispatch, decider, run = self._engine.dispatch, self._driver.decider, self._driver.run
        assert dispatch is not None
        assert node.queue is not None
        inputs = decider.inputs(node, path, more)
        order = StepOrder(
            run_id=run.run_id,
            tenant_id=run.tenant_id,
            environment_id=run.environment_id,
            path=path,
            attempt=attempt,
            engine_attempt=decider.engine_attempt,
            step=node.step,
            inputs=inputs,
            secrets=self._places(node, path, inputs),
            source=self._driver.source,
        )
        running = _Running(path, attempt, node, Lane.PROCESS, self._engine.clock.monotonic())
        self._running[path] = running
        running.execution = dispatch.start(self._driver, node.queue, order, partial(self._ended, running))
        self._watch_time(running)

    def _start(self, work: Work, done: Callable[[Outcome], None]) -> Execution:
        if work.lane is not Lane.RUN:
            return self._engine.executor.start(work, done)
        assert self._engine.sub_runs is not None
        return self._engine.sub_runs.start(work, self._driver.run, done)

    def _ask(self, node: Node, path: str, attempt: int, tool: Tool, inputs: Any) -> None:
        timeout = node.step.timeout
        expires = None if timeout is None else from_micros(self._engine.clock.now() + int(timeout * 1e6))
        question: Callable[[Any, str | None], tuple[str, msgspec.Struct]] = getattr(tool, "question")  # noqa: B009
        self._driver.tell(Asked(path, attempt, *question(inputs, expires)))

    def _wait(self, node: Node, path: str, attempt: int, due: int) -> None:
        timeout = node.step.timeout
        limit = due if timeout is None else self._engine.clock.now() + int(timeout * 1e6)
        self._driver.tell(WaitBegan(path, attempt, min(due, limit), late=limit < due))

    def _loop_scope(self, node: Node, indexes: tuple[int, ...]) -> dict[str, Any]:
        assert node.step.foreach is not None
        decider = self._driver.decider
        loop = decider.work.loops[node.step.step_id]
        return {node.step.foreach.item_name: items_of(decider, loop)[indexes[0]], "index": indexes[0]}

    def _prepare(
        self, node: Node, path: str, attempt: int, more: dict[str, Any]
    ) -> tuple[Tool, Any, Mapping[str, str]]:
        """The step's tool, its inputs with all values in place, and the secrets it named."""
        tool = self._engine.tools.get(node.step.kind)
        if tool is None:
            raise RunwrightError(
                ErrorCode.INVALID_STEP_SCHEMA,
                f"This installation has no tool {node.step.kind!r}. Install it, and retry.",
            )
        filled = self._driver.decider.inputs(node, path, more)
        places = self._places(node, path, filled)
        named = list(dict.fromkeys([*node.step.secret_refs, *(place.name for place in places)]))
        secrets: Mapping[str, str] = {}
        if named:
            if (path, attempt) not in self._secrets:
                raise _SecretsNeeded(named)
            secrets = self._secrets.pop((path, attempt))
            filled = with_secrets(filled, places, secrets)
        try:
            return tool, msgspec.convert(filled, tool.inputs), secrets
        except msgspec.ValidationError as error:
            detail = str(error) if not named else "a secret is not what the step takes there"
            raise RunwrightError(ErrorCode.INVALID_STEP_SCHEMA, f"With its values filled in: {detail}.") from None

    def _places(self, node: Node, path: str, filled: Any) -> list[SecretPlace]:
        """Where secrets belong in a step's inputs."""
        decider = self._driver.decider
        if not node.secrets and node.step.step_id not in decider.work.overrides:
            return []
        return list(secret_places(decider.written(node), filled, decider.handed_on(path)))

    async def _get_secrets(self, path: str, attempt: int, names: list[str]) -> None:
        """Ask for secrets, which may take a while, then launch the step that needs them."""
        run = self._driver.run
        context = SecretContext(run.tenant_id, run.environment_id)
        try:
            values = await asyncio.to_thread(self._engine.secrets.resolve, names, context)
        except RunwrightError as error:
            trouble: RunwrightError | StepError = error
        except Exception as error:
            trouble = StepError("SECRET_NOT_AVAILABLE", f"The provider of secrets failed: {type(error).__name__}.")
        else:
            if self._has_asked(path, attempt):
                self._secrets[path, attempt] = values
                self.launch(path, attempt)
            return
        if self._has_asked(path, attempt):
            self._fail(path, attempt, trouble)

    def _has_asked(self, path: str, attempt: int) -> bool:
        """Whether this attempt still waits for its secrets; it is asked once."""
        if self._asking.get(path) != attempt:
            return False
        del self._asking[path]
        return True

    def _asked_too_long(self, path: str, attempt: int, error: ErrorInfo) -> None:
        if self._has_asked(path, attempt):
            self._driver.tell(StepEnded(path, attempt, 0.0, None, error))

    def restored(self, path: str) -> Any:
        """What a step or task last handed to `checkpoint`."""
        checkpoints = self._driver.decider.work.checkpoints
        if not checkpoints:
            return None
        node, indexes = self._node(path)
        owner = path if "/" in path or node is None else checkpoint_owner(node.step.step_id, indexes)
        saved = checkpoints.get(owner)
        return None if saved is None else msgspec.json.decode(saved)

    def _context(self, running: _Running, secrets: Mapping[str, str]) -> StepContext:
        decider, run_id = self._driver.decider, self._driver.run.run_id
        path, attempt = running.path, running.attempt
        mask = None if running.mask is None else running.mask.data
        output = self._engine.step_logs.writer(run_id, path, attempt, mask)
        store = self._engine.artifacts
        return StepContext(
            run_id=run_id,
            step_id=path,
            attempt=attempt,
            engine_attempt=decider.engine_attempt,
            restored=self.restored(path),
            write=output.write,
            end_output=output.close,
            save=partial(self._save, path, attempt, running.mask),
            secrets={name: secrets[name] for name in running.node.step.secret_refs},
            artifacts=None if store is None else _Shelf(store, self._driver.run.tenant_id, running.artifacts),
            iteration=decider.iteration(path) if running.lane is Lane.RUN else None,
            workload=decider.work.params if running.lane is Lane.RUN else None,
            resolve=self._resolve if self._driver.net.routes is not None else None,
        )

    def _resolve(self, ref: Any) -> Any:
        """Called by a task, wherever it runs: the result that a reference names."""
        engine = self._engine
        work = resolve(engine.log, engine.results, ref, self._driver.run.tenant_id)
        return asyncio.run_coroutine_threadsafe(work, engine.loop).result()

    def _save(self, path: str, attempt: int, mask: Mask | None, state: Any) -> None:
        """Called by the step, wherever it runs: wait until the checkpoint is durable."""
        body = encode_result(state) if mask is None else mask.json(encode_result(state))
        check_checkpoint(body)
        answer: Future[None] = Future()

        def settle(error: Exception | None) -> None:
            if error is None:
                answer.set_result(None)
            else:
                answer.set_exception(error)

        self._engine.call(self._driver.tell, CheckpointAsked(path, attempt, body, settle))
        answer.result()

    # Ends

    def _fail(self, path: str, attempt: int, error: RunwrightError | StepError) -> None:
        message = error.detail if isinstance(error, RunwrightError) else error.message
        gone = error.code == ErrorCode.REFERENCE_NOT_AVAILABLE
        if gone:
            self._driver.decider.values.lost.clear()  # it may be there when the step is tried again
        info = ErrorInfo(error.code, message, retryable=gone, category="system" if gone else "plan")
        if self._engine.dispatch is not None:
            self._engine.dispatch.never_mind(self._driver.run.run_id, path, attempt)
        self._driver.tell(StepEnded(path, attempt, 0.0, None, info))

    def _ended(self, running: _Running, outcome: Outcome) -> None:
        running.execution = None  # each knows the other, and neither is needed any more
        if self._running.get(running.path) is running:
            del self._running[running.path]
        self._engine.rooms.is_free(running.node.step.step_class)
        if self._abandoned:
            return
        outcome = outcome.masked(running.mask)
        error, result = outcome.error, outcome.result
        if running.overdue is not None:
            error, result = running.overdue, None  # also where it did not heed that and ended well
        if self._stopping and error is not None:
            self._driver.poke()  # it was stopped; how it ended is decided with the run's end
            return
        took = (self._engine.clock.monotonic() - running.began) * 1000
        artifacts = (*running.artifacts, *outcome.artifacts)
        ended = StepEnded(running.path, running.attempt, round(took, 3), result, error, artifacts)
        # Its output first: whoever follows the run stops reading there.
        self._telling += 1
        self._engine.step_logs.settle(partial(self._tell, ended))

    def _tell(self, ended: StepEnded) -> None:
        self._telling -= 1
        self._driver.tell(ended)

    def _came_late(self, running: _Running, outcome: Outcome) -> None:
        """It went on after it was given up. Where that is because the run is another's now, people should know."""
        if not self._abandoned or (outcome.error is not None and outcome.error.category == "cancelled"):
            return
        said = outcome.masked(running.mask)
        self._engine.late(self._driver, running.path, running.attempt, said.result, said.error)

    def _watch_time(self, running: _Running) -> None:
        allowed = self._driver.decider.time_for(running.node, running.path)
        if allowed is not None:
            seconds, error = allowed
            self._engine.alarms.set(running.began + seconds, partial(self._time_is_up, running, error))

    def _time_is_up(self, running: _Running, error: ErrorInfo) -> None:
        if self._running.get(running.path) is running and running.execution is not None:
            running.overdue = error
            running.execution.cancel(STOP_GRACE)

    # Stopping

    def stop(self, *, by_force: bool) -> None:
        """Stop everything that runs."""
        self._stopping = True
        self._waiting.clear()
        self._asking.clear()
        for running in list(self._running.values()):
            if running.execution is None:
                continue
            if by_force:
                running.execution.kill()
                if running.lane is not Lane.RUN:  # that is told to stop in its own log, which comes first
                    self._running.pop(running.path, None)
            elif running.node.step.cancellable:
                running.execution.cancel(STOP_GRACE)
            else:
                late = self._engine.clock.monotonic() + self._engine.cancel_deadline
                self._engine.alarms.set(late, partial(self._stop_at_last, running))

    def _stop_at_last(self, running: _Running) -> None:
        if self._running.get(running.path) is running and running.execution is not None:
            running.execution.cancel(STOP_GRACE)

    def close(self) -> None:
        """Launch nothing."""
        self._abandoned = True

    def abandon(self) -> None:
        """The run is not ours any more: what still runs here must not count, and is stopped."""
        self._abandoned = True
        for running in list(self._running.values()):
            if running.execution is not None:
                running.execution.let_go()
        self._running.clear()

    # Values that were put aside

    async def fetch(self) -> None:
        """Get the values that decisions and launches wait for. A store that does not answer is asked again for what is
        decided; a task whose input it has is told, and its policy may have it tried again."""
        decider, run_id = self._driver.decider, self._driver.run.run_id
        missing, self.missing = {**decider.missing, **self.missing}, {}
        is_away = False
        for name, ref in missing.items():
            try:
                body = await self._engine.results.get(self._driver.run, ref)
                decider.values.at_hand.add(digest_in(ref), msgspec.json.decode(body), len(body))
            except RunwrightError as error:
                if name in decider.missing and (error.facts.get("passing") or error.code in STORE_CODES_TO_WAIT_FOR):
                    logger.warning("Run %s waits for a value: %s", run_id, error, extra=self._driver.about)
                    is_away = True
                else:
                    decider.values.lost[name] = error
        if is_away:
            await self._engine.clock.sleep(STORE_PAUSE)
        waiting, self._waiting = self._waiting, []
        for path, attempt in waiting:
            self.launch(path, attempt)


class _Shelf:
    """The store for artifacts, as one step sees it: what it keeps is noted."""

    def __init__(self, store: ArtifactStore, tenant_id: str, kept: list[ArtifactRef]) -> None:
        self._store = store
        self._tenant_id = tenant_id
        self._kept = kept

    def keep(self, source: Path | bytes, kind: str) -> ArtifactRef:
        ref = self._store.of(self._tenant_id).put(source, kind)
        self._kept.append(ref)
        return ref

    def fetch(self, ref: ArtifactRef | str, target: Path) -> int:
        return self._store.of(self._tenant_id).get(ref, target)
