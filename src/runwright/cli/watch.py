"""`runwright watch`: the live picture of any run, whoever drives it. It only looks."""

from __future__ import annotations

import click

from .accompany import Company, onlooker
from .session import Session, command


@command("watch")
@click.argument("run")
async def watch_command(session: Session, run: str) -> int:
    """Watch a run until it ends. Exits as `run` does: 0 if it completed, 1 if not."""
    async with onlooker(session) as (log, output):
        row = await log.resolve(run)
        return await Company(session, log, output, row.identity.run_id).stay()
