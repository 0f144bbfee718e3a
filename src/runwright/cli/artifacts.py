"""Artifacts: what the steps of a run made, and what may be deleted."""

from __future__ import annotations

import asyncio
from pathlib import Path

import click
import msgspec

from runwright.contract.refs import ArtifactRef
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
    """List the artifacts of a run, also of one that failed or still runs."""
    found: list[tuple[str, ArtifactRef]] = []
    async with session.open() as log:
        async for record in log.events((await log.resolve(run)).identity.run_id):
            if record.step_id is not None and "artifactRefs" in (record.payload or {}):
                refs = msgspec.convert((record.payload or {})["artifactRefs"], list[ArtifactRef])
                found += [(record.step_id, ref) for ref in refs]
    if session.as_json:
        session.print_json([{"stepId": step_id, **msgspec.to_builtins(ref)} for step_id, ref in found])
        return DONE
    rows = [
        [
            step_id,
            ref.kind,
            "" if ref.size_bytes is None else f"{ref.size_bytes:,}",
            (ref.expires_at or "")[:10],
            ref.uri,
        ]
        for step_id, ref in found
    ]
    table(["step", "kind", "bytes", "expires", "uri"], rows)
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
