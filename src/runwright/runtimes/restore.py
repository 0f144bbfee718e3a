"""Recovery is nothing special: read the log, fold, decide."""

from __future__ import annotations

import asyncio

from runwright.contract.events import RunIdentity
from runwright.core.decide import Decider
from runwright.core.evolve import evolve
from runwright.core.net import Net
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
        decider.values.fetched = before.values.fetched
    return decider, state.summary.last_event_seq
