"""Recovery: rebuild the state of a run from its events. A recovered run is then driven like any other."""

from __future__ import annotations

import asyncio

from runwright.contract.events import RunIdentity
from runwright.core.decider import Decider
from runwright.core.fold.evolve import evolve
from runwright.core.fold.execution_state import ExecutionState
from runwright.core.fold.run_state import RunState
from runwright.core.graph.plan_graph import PlanGraph
from runwright.log.run_log import RunLog

PAGE_SIZE = 1000


async def fold_run(log: RunLog, run_id: str, wanted: frozenset[str] | None) -> RunState:
    """Fold the events of a run into a state with everything a driver needs.

    Only the results of the steps in `wanted` are retained; of all steps if it is None.
    """
    state = RunState(detailed=True, execution=ExecutionState(mentioned_steps=wanted))
    after = 0
    while records := await log.read(run_id, after, PAGE_SIZE):
        for record in records:
            evolve(state, record)
        if len(records) < PAGE_SIZE:
            break
        after = records[-1].run_seq
        await asyncio.sleep(0)  # A long history must not prevent the renewal of the lease.
    return state


async def restore_decider(
    log: RunLog, run: RunIdentity, graph: PlanGraph, drain_timeout: float, previous: Decider | None = None
) -> tuple[Decider, int]:
    """Create a decider from the events in the log, and return it with the sequence number of the last event.

    It has the engine attempt of the previous decider, and reuses the values that it has fetched. Without a previous
    decider it has the engine attempt of the last event.
    """
    state = await fold_run(log, run.run_id, graph.mentioned_steps)
    decider = Decider(graph, state, run, 1, drain_timeout)
    if previous is None:
        decider.engine_attempt = max(1, decider.execution.engine_attempt)
    else:
        decider.engine_attempt = previous.engine_attempt
        decider.values.cache = previous.values.cache
        decider.scheduler.due_times.restore_shifts(previous.scheduler.due_times.shifts)
    return decider, state.summary.last_event_seq


def begin_engine_attempt(decider: Decider) -> None:
    """Raise the engine attempt: interrupted steps are executed again, and their events must show it."""
    decider.engine_attempt = max(1, decider.execution.engine_attempt + 1)
