"""Recovery is nothing special: read the log, fold, decide."""

from __future__ import annotations

import asyncio

from runwright.contract.events import RunIdentity
from runwright.contract.paths import EntityPath
from runwright.contract.transitions import StepStatus
from runwright.core.decide import Decider
from runwright.core.evolve import evolve
from runwright.core.net import Net
from runwright.core.pipeline import tasks_under_way
from runwright.core.state import RunState
from runwright.core.workings import Workings
from runwright.log.base import RunLog

PAGE = 1000


async def fold_run(log: RunLog, run_id: str, wanted: frozenset[str] | None) -> RunState:
    """The run's state with all that a driver needs."""
    state = RunState(detailed=True, workings=Workings(wanted=wanted))
    after = 0
    while records := await log.read(run_id, after, PAGE):
        for record in records:
            evolve(state, record)
        if len(records) < PAGE:
            break
        after = records[-1].run_seq
        await asyncio.sleep(0)  # a long history must not keep the lease from being renewed
    return state


async def restore(
    log: RunLog, run: RunIdentity, net: Net, engine_attempt: int, drain_timeout: float, before: Decider | None = None
) -> tuple[Decider, int]:
    """A decider on what the log says now. What an earlier one had fetched is kept."""
    state = await fold_run(log, run.run_id, net.wanted)
    decider = Decider(net, state, run, engine_attempt, drain_timeout)
    if before is not None:
        decider.values.at_hand = before.values.at_hand
    return decider, state.summary.last_event_seq


def under_way(decider: Decider) -> list[tuple[str, int]]:
    """What was being worked on according to the log, with its attempt. Waits are not work."""
    if decider.router is not None:
        return tasks_under_way(decider)
    found: list[tuple[str, int]] = []
    for step_id, cell in decider.state.steps.items():
        node = decider.net.node(step_id)
        if cell.status is not StepStatus.RUNNING or node is None:
            continue
        loop = decider.work.loops.get(step_id)
        if node.step.foreach is None:
            found.append((step_id, cell.attempt))
        elif loop is not None:
            for index in loop.running:
                path = str(EntityPath(step_id, attempt=loop.attempt, indexes=(index,)))
                found.append((path, loop.attempts.get(index, 1)))
    waiting = decider.work.due_at.keys() | decider.work.awaits.keys()
    return [(path, attempt) for path, attempt in found if path not in waiting]
