"""The attempts of one run that workers may claim, and those that workers execute."""

from __future__ import annotations

from collections.abc import Callable

from runwright.contract.transitions import ENDED, RunStatus
from runwright.runtimes.executor.work import Outcome
from runwright.runtimes.run_session import RunSession
from runwright.runtimes.step_runner import RemoteStep

from .dispatcher import Dispatcher, RemoteExecution
from .task_queue import StepAssignment


class WorkerOffers:
    def __init__(self, session: RunSession, dispatcher: Dispatcher | None) -> None:
        self._session = session
        self._dispatcher = dispatcher
        self._offered: dict[str, int] = {}  # attempts that workers may claim
        self._is_held = False  # but not while the run is paused

    @property
    def is_empty(self) -> bool:
        return not self._offered

    def is_offered(self, path: str, attempt: int) -> bool:
        return self._offered.get(path) == attempt

    def sync(self) -> None:
        """Offer the attempts that are queued according to the log, and no others; hold them while the run is paused."""
        dispatcher, decider = self._dispatcher, self._session.decider
        if dispatcher is None:
            return
        run_id = self._session.run.run_id
        if decider.status in ENDED:
            dispatcher.run_ended(run_id)
            return
        queued = {} if decider.stop is not None else decider.scheduler.queued_for_workers()
        is_paused = decider.status is RunStatus.PAUSED
        for path, attempt in list(self._offered.items()):
            if queued.get(path) != attempt:
                del self._offered[path]
                if not decider.scheduler.is_running(path, attempt):
                    dispatcher.withdraw(run_id, path, attempt)
        for path, attempt in queued.items():
            if path not in self._offered or (self._is_held and not is_paused):
                address = self._session.graph.find(path)
                if address is not None and address.node.queue is not None:
                    self._offered[path] = attempt
                    dispatcher.offer(self._session.run, path, attempt, address.node.queue)
        if is_paused and not self._is_held and queued:
            dispatcher.hold(run_id)
        self._is_held = is_paused

    def start(self, step: RemoteStep, done: Callable[[Outcome], None]) -> RemoteExecution:
        """Dispatch an attempt whose start is in the log."""
        session, run = self._session, self._session.run
        assert self._dispatcher is not None
        assert step.node.queue is not None
        assignment = StepAssignment(
            run_id=run.run_id,
            tenant_id=run.tenant_id,
            project_id=run.project_id,
            environment_id=run.environment_id,
            path=step.path,
            attempt=step.attempt,
            engine_attempt=session.decider.engine_attempt,
            step=step.node.step,
            inputs=step.inputs,
            secrets=step.secrets,
            source=session.source,
        )
        return self._dispatcher.start(run, step.node.queue, assignment, done)

    def cancel_claim(self, path: str, attempt: int) -> None:
        if self._dispatcher is not None:
            self._dispatcher.cancel_claim(self._session.run.run_id, path, attempt)
