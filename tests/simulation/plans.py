"""Random plans, and the invariants of their runs."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import runwright as rw
from runwright.contract.plan import ExecutionPlan, Foreach, OnFailure, Order, PlanMetadata, Retry, Step
from simulation.world import Process, World

ENDED = ("COMPLETED", "FAILED", "CANCELLED")


def random_plan(dice: random.Random) -> ExecutionPlan:
    order = dice.choice((Order.GRAPH, Order.GRAPH, Order.SEQUENTIAL))
    steps: list[Step] = []
    for number in range(dice.randint(1, 9)):
        earlier = [step.step_id for step in steps]
        needs = dice.sample(earlier, min(len(earlier), dice.choice((0, 1, 1, 2)))) if order is Order.GRAPH else []
        kind = dice.choice(("noop", "noop", "noop", "noop", "wait", "approval", "event"))
        inputs: dict[str, Any] = {}
        if kind == "wait":
            inputs = {"duration": dice.choice((0, 0.3, 5.0))}
        elif kind == "approval":
            inputs = {"prompt": "Go on?"}
        elif kind == "event":
            inputs, kind = {"event": dice.choice(("one", "two"))}, "wait"
        foreach = None
        if kind == "noop" and dice.random() < 0.3:
            foreach = Foreach(list(range(dice.randint(0, 6))), "item", dice.choice((1, 2, 16)))
        steps.append(
            Step(
                step_id=f"s{number}",
                kind=kind,
                inputs=inputs,
                depends_on=tuple(needs),
                when=dice.choice((None, None, None, True, False)),
                foreach=foreach,
                retry=Retry(max_attempts=dice.choice((1, 2, 3)), initial=dice.choice((0.0, 0.2, 4.0))),
                timeout=dice.choice((None, None, 1.0)),
                cancellable=dice.random() < 0.8,
                needs_approval=kind == "noop" and dice.random() < 0.1,
            )
        )
    return ExecutionPlan(
        metadata=PlanMetadata(plan_id="random"),
        order=order,
        on_failure=dice.choice(tuple(OnFailure)),
        timeout=dice.choice((None, None, None, 20.0)),
        steps=tuple(steps),
    )


async def check_ended_run(world: World, plan: ExecutionPlan, run_id: str) -> None:
    """Check the invariants of an ended run."""
    log = world.log
    snapshot = await log.snapshot(run_id)
    records = await log.read(run_id)
    lines = [f"{r.run_seq} {r.event_type} {r.step_id or ''} {r.logical_attempt_id}" for r in records]
    events = "\n".join(lines)
    assert snapshot.status in ENDED, events
    assert not snapshot.inconsistent, events
    statuses = {step.step_id: step.status for step in snapshot.steps}
    assert set(statuses) == {step.step_id for step in plan.steps}, events
    assert not {"RUNNING", "PENDING"} & set(statuses.values()), events
    assert world.problems == [], f"{world.problems}\n{events}"
    assert [finding async for finding in log.verify(run_id)] == []
    if snapshot.status == "COMPLETED":
        assert set(statuses.values()) <= {"SUCCESS", "SKIPPED"}, events
    if snapshot.status == "FAILED":
        assert snapshot.root_cause is not None, events
    check_signals(records, events)
    check_order(plan, records, events)
    check_approvals(plan, records, events)
    check_workers(world, plan, records, events)
    assert (await log.find_run(run_id)).summary.waiting_approvals == 0, events


def check_approvals(plan: ExecutionPlan, records: list[rw.RunEventRecord], events: str) -> None:
    """Check that a step that needs an approval completes only after it was granted."""
    granted: set[tuple[str | None, int]] = set()
    for record in records:
        step = next((step for step in plan.steps if step.step_id == record.step_id), None)
        if record.event_type == "ApprovalGranted":
            granted.add((record.step_id, record.logical_attempt_id))
        if step is None:
            continue
        if record.event_type == "StepCompleted" and step.kind == "approval":
            assert (record.step_id, record.logical_attempt_id) in granted, events
        if record.event_type == "StepCompleted" and step.needs_approval:
            assert record.step_id in {path for path, _ in granted}, events


def check_workers(world: World, plan: ExecutionPlan, records: list[rw.RunEventRecord], events: str) -> None:
    """Check that the log has only results whose storage was acknowledged to a worker."""
    if world.fleet is None:
        return
    worker_steps = {step.step_id for step in plan.steps if step.kind == "noop"}
    for record in records:
        path = (record.step_id or "").split("[")[0].split("@")[0]
        if record.event_type in ("StepCompleted", "LoopIterationDone") and path in worker_steps:
            result = (record.payload or {}).get("result")
            assert not isinstance(result, str) or result in world.fleet.acknowledged, f"{result}\n{events}"


def check_signals(records: list[rw.RunEventRecord], events: str) -> None:
    accepted = {r.step_id for r in records if r.event_type == "SignalAccepted"}
    processed = {r.step_id for r in records if r.event_type == "SignalProcessed"}
    assert processed <= accepted, events
    ended_at = next(r.run_seq for r in records if r.event_type in ("RunCompleted", "RunFailed", "RunCancelled"))
    for record in records:
        if record.event_type != "SignalAccepted" or record.run_seq > ended_at:
            continue
        payload = record.payload or {}
        if payload["signalType"] == "PAUSE":
            after = [r for r in records if r.run_seq > record.run_seq]
            done = next(
                (r.run_seq for r in after if r.event_type == "SignalProcessed" and r.step_id == record.step_id), None
            )
            between = [r for r in after if done is not None and r.run_seq < done]
            denied = {r.step_id for r in between if r.event_type == "ApprovalDenied"}  # denied steps start only to fail
            assert not [r for r in between if r.event_type == "StepStarted" and r.step_id not in denied], events


def check_order(plan: ExecutionPlan, records: list[rw.RunEventRecord], events: str) -> None:
    """Check that a step starts only after its dependencies have ended."""
    ended: set[str] = set()
    for record in records:
        if record.event_type == "StepStarted" and record.logical_attempt_id == 1:
            step = next(step for step in plan.steps if step.step_id == record.step_id)
            assert set(step.depends_on) <= ended, events
        if record.event_type in ("StepCompleted", "StepSkipped") and record.step_id is not None:
            ended.add(record.step_id)


async def start_until_stored(world: World, plan: object, run_id: str) -> Process:
    """Start a run, again with the same id if the process dies, and return the process that succeeded."""
    while True:
        process = await world.process()
        task = asyncio.ensure_future(process.operations.start(plan, run_id=run_id))  # type: ignore[arg-type]
        while process.alive and not task.done():
            await world.clock.sleep(0.1)
        if process.alive and task.done():
            task.result()
            return process
        task.cancel()
