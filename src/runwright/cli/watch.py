"""`runwright watch`: the live picture of any run, whoever drives it. It only looks."""

from __future__ import annotations

import click

from .accompany import Company, step_logs_of
from .session import Session, command


@command("watch")
@click.argument("run")
async def watch_command(session: Session, run: str) -> int:
    """Watch a run until it ends. Exits as `run` does: 0 if it completed, 1 if not."""
    async with session.open() as log:
        row = await log.resolve(run)
        return await Company(session, log, step_logs_of(session), row.identity.run_id).stay()
