"""The RUN argument of commands: a run id, the start of one, or @last. `RunLog.resolve_run` looks it up."""

from __future__ import annotations

from runwright.log.protocols import LogReader


async def resolve_run_id(log: LogReader, run: str) -> str:
    """Return the id of the run that RUN names; raises RUN_NOT_FOUND if there is none or more than one."""
    return (await log.resolve_run(run)).identity.run_id
