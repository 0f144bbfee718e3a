"""A playbook run by one process and one that is recovered before every decision have the same log."""

from __future__ import annotations

import os
import random
from hashlib import sha256
from typing import Any

import msgspec
import pytest

import runwright as rw
from runwright.contract import payloads
from runwright.contract.plan import ExecutionPlan, Step, StepClass
from runwright.contract.refs import ErrorInfo
from runwright.contract.result_ref import ref_digest
from runwright.contract.transitions import ENDED, RunStatus
from runwright.core.decider import Decider
from runwright.core.fold.evolve import transition
from runwright.core.fold.execution_state import ExecutionState
from runwright.core.fold.run_state import RunState
from runwright.core.graph.plan_graph import PlanGraph
from runwright.core.scheduling.context import Capacity
from runwright.core.scheduling.scheduler import AttemptEnd, Scheduler
from runwright.plans.loader import plan_from_dict
from runwright.tools.registry import all_tools
from simulation.playbooks import random_playbook
from support.playbooks import noop, playbook

SEEDS = {"quick": 50, "full": 250, "soak": 10_000}[os.environ.get("RUNWRIGHT_PROFILE", "quick")]
CHUNK = 50
BEGIN = 1_780_000_000_000_000
TURNS = 80


class DecidedRun:
    """The decider of a run, with the log and the stored values that outlive it."""

    def __init__(self, plan: ExecutionPlan, queues: frozenset[str]) -> None:
        def queue_of(step: Step) -> str | None:
            return "elsewhere" if step.step_id in queues else None

        self.graph = PlanGraph(plan, queue_of)
        self.run = rw.new_run("run-1", "p", "1")
        self.log: list[Any] = []
        self.stored_values: dict[str, Any] = {}  # large values, by hash
        self.now = BEGIN
        self.decider = Decider(self.graph, self._state(), self.run)
        self.decider.set_time(self.now)
        self.decider.emit("RunQueued", payload=payloads.RunQueued(params=dict(plan.params)))
        self.decider.emit("RunStarted", payload=payloads.RunStarted(started_at=None))

    def _state(self) -> RunState:
        return RunState(detailed=True, execution=ExecutionState(mentioned_steps=self.graph.mentioned_steps))

    def recover(self) -> None:
        """Replace the decider by one that is folded from the log."""
        state = self._state()
        for draft in self.log:
            assert transition(state, draft) is None
        self.decider = Decider(self.graph, state, self.run)

    @property
    def scheduler(self) -> Scheduler:
        return self.decider.scheduler

    def decide(self) -> list[Any]:
        decider, first_new = self.decider, len(self.log)
        decider.set_time(self.now)
        while True:
            decider.decide(Capacity(dict.fromkeys(StepClass, 1000)))
            drafts, blobs = decider.drain_drafts()
            for body in blobs.values():
                self.stored_values[sha256(body).hexdigest()] = body
            self.log += drafts
            if not decider.missing_values:
                break
            for digest in map(ref_digest, decider.missing_values.values()):
                decider.values.cache.add(
                    digest, msgspec.json.decode(self.stored_values[digest]), len(self.stored_values[digest])
                )
        lines = [
            (draft.step_id or "", draft.event_type, draft.logical_attempt_id, draft.raw_payload)
            for draft in self.log[first_new:]
        ]
        return sorted(lines, key=lambda line: line[0])

    def end(self, path: str, attempt: int, result: bytes | None, error: ErrorInfo | None) -> None:
        self.decider.set_time(self.now)
        self.scheduler.on_attempt_ended(AttemptEnd(path, attempt, 1.0, result, error))

    def signal(self, kind: str, number: int) -> None:
        signal_id = f"00000000-0000-4000-8000-{number:012}"
        decided = payloads.SignalDecided(signal_id=signal_id, signal_type=kind, payload={})
        self.decider.set_time(self.now)
        self.decider.emit("SignalAccepted", f"signal/{signal_id}", 1, decided)


def compare_runs(seed: int) -> None:
    dice = random.Random(seed)
    plan = random_playbook(random.Random(seed))
    tasks = [f"{step.step_id}/{task.label}" for step in plan.steps if step.route for task in step.route.tasks]
    queues = frozenset(name for name in tasks if dice.random() < 0.3) if dice.random() < 0.5 else frozenset[str]()
    steady, recovering = DecidedRun(plan, queues), DecidedRun(plan, queues)
    assert steady.decide() == recovering.decide()
    for turn in range(TURNS):
        if steady.decider.status in ENDED:
            break
        recovering.recover()
        if steady.decider.status is RunStatus.PAUSED:
            steady.recover()  # the order of steps held by a pause is not fixed
        steady.now = recovering.now = steady.now + dice.choice((0, 1_000, 500_000, 5_000_000))
        running, offers = steady.scheduler.running_attempts(), sorted(steady.scheduler.queued_for_workers().items())
        roll = dice.random()
        if roll < 0.05:
            kind = dice.choice(("PAUSE", "RESUME"))
            for decided_run in (steady, recovering):
                decided_run.signal(kind, turn)
        elif roll < 0.1:
            pass
        elif offers and (not running or roll < 0.4):
            path, attempt = dice.choice(offers)
            for decided_run in (steady, recovering):
                decided_run.decider.set_time(decided_run.now)
                assert decided_run.scheduler.claim(path, attempt, "w")
        elif running:
            chosen = dice.choice(running)
            has_failed = dice.random() < 0.25
            error = ErrorInfo("BOOM", "It failed.", retryable=True) if has_failed else None
            body = None if has_failed else msgspec.json.encode({"x": turn})
            for decided_run in (steady, recovering):
                decided_run.end(chosen.path, chosen.attempt, body, error)
        assert steady.decide() == recovering.decide(), turn
        wake = steady.decider.next_wake()
        assert wake is None or wake > steady.now
        if steady.decider.status is RunStatus.RUNNING:
            assert steady.scheduler.queued_for_workers() == recovering.scheduler.queued_for_workers(), turn


def test_cancelled_run_does_not_wake_for_a_past_deadline() -> None:
    """The tasks that no worker claimed expire with their step; while a claimed one is stopped, nothing expires."""
    spec = {"policy": {"lifecycle": {"timeout_s": 10}}}
    loop = {"in": [1, 2, 3], "iterator": "x", "spec": {"mode": "parallel", "max_in_flight": 3}}
    plan = plan_from_dict(playbook({"step": "work", "spec": spec, "loop": loop, "tool": noop()}), all_tools()).plan
    run = DecidedRun(plan, frozenset({"work/work"}))
    run.decide()
    path, attempt = next(iter(run.scheduler.queued_for_workers().items()))
    assert run.scheduler.claim(path, attempt, "w")
    run.now += 8_000_000
    run.signal("CANCEL", 1)
    run.decide()
    run.now += 3_000_000
    run.decide()
    assert run.decider.stop is not None
    assert run.decider.next_wake() is None


@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_recovered_playbook_makes_the_same_decisions(first: int) -> None:
    for seed in range(first, first + CHUNK):
        try:
            compare_runs(seed)
        except BaseException as error:
            raise AssertionError(f"seed {seed} fails; replay it with compare_runs({seed})") from error
