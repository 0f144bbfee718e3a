"""Artifacts: what the steps of a run made, and what may be deleted."""

from __future__ import annotations

import asyncio
from pathlib import Path

import click

from runwright.control.artifacts import artifact_store
from runwright.control.settings import settings_table
from runwright.log.clock import SystemClock
from runwright.results.artifacts import ArtifactStore

from .render import table
from .session import DONE, Session, command


@click.group("artifacts")
def artifacts_command() -> None:
    """Look at what the steps of a run made, fetch it, and delete what has expired."""


def _store(session: Session) -> ArtifactStore:
    return artifact_store(settings_table("artifacts"), session.state_folder, SystemClock().now)


@command("list")
@click.argument("run")
async def _list(session: Session, run: str) -> int:
    """List the artifacts of a run."""
    async with session.open() as log:
        snapshot = await log.snapshot((await log.resolve(run)).identity.run_id)
    if session.as_json:
        session.print_json(snapshot.artifacts)
        return DONE
    rows = [
        [ref.kind, "" if ref.size_bytes is None else f"{ref.size_bytes:,}", (ref.expires_at or "")[:10], ref.uri]
        for ref in snapshot.artifacts
    ]
    table(["kind", "bytes", "expires", "uri"], rows)
    return DONE


@command("get")
@click.argument("uri")
@click.option("-o", "--output", required=True, metavar="FILE", help="Where to write it.")
async def _get(session: Session, uri: str, output: str) -> int:
    """Write an artifact to a file, checked against its hash."""
    size = await asyncio.to_thread(_store(session).get, uri, Path(output))
    if session.as_json:
        session.print_json({"path": output, "sizeBytes": size})
    else:
        click.echo(f"{output}: {size:,} bytes")
    return DONE


@command("prune")
async def _prune(session: Session) -> int:
    """Delete the artifacts whose time is over, by the retention in runwright.toml when they were made."""
    gone = await asyncio.to_thread(_store(session).prune)
    if session.as_json:
        session.print_json({"deleted": [str(key) for key in gone]})
    else:
        click.echo(f"{len(gone):,} deleted")
    return DONE


for _command in (_list, _get, _prune):
    artifacts_command.add_command(_command)
