"""Artifacts: what the steps of a run made, and what may be deleted."""

from __future__ import annotations

import asyncio
from pathlib import Path

import click
import msgspec

from runwright.contract.errors import ErrorCode, RunwrightError
from runwright.control.artifacts import artifact_store
from runwright.control.settings import settings_table
from runwright.control.views import artifacts_of
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
    async with session.open() as log:
        found = await artifacts_of(log, (await log.resolve(run)).identity.run_id)
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
@click.option("--run", default="@last", show_default=True, help="The run that made it; a server asks for it.")
async def _get(session: Session, uri: str, output: str, run: str) -> int:
    """Write an artifact to a file, checked against its hash."""
    if session.server is not None:
        size = await _get_remote(session, run, uri, Path(output))
    else:
        size = await asyncio.to_thread(_store(session).get, uri, Path(output))
    if session.as_json:
        session.print_json({"path": output, "sizeBytes": size})
    else:
        click.echo(f"{output}: {size:,} bytes")
    return DONE


async def _get_remote(session: Session, run: str, uri: str, output: Path) -> int:
    async with session.remote() as remote:
        run_id = (await remote.log.resolve(run)).identity.run_id
        found = [ref for _, ref in await artifacts_of(remote.log, run_id) if ref.uri == uri and ref.sha256]
        if not found:
            raise RunwrightError(ErrorCode.REFERENCE_NOT_AVAILABLE, f"Run {run_id} made no artifact {uri}.")
        body = await remote.fetch_artifact(run_id, found[0].sha256 or "")
    output.write_bytes(body)
    return len(body)


@command("prune")
async def _prune(session: Session) -> int:
    """Delete the artifacts whose time is over, by the retention in runwright.toml when they were made."""
    if session.server is not None:
        raise RunwrightError(ErrorCode.INVALID_ARGUMENT, "Prune where the artifacts lie: on the server's machine.")
    gone = await asyncio.to_thread(_store(session).prune)
    if session.as_json:
        session.print_json({"deleted": [str(key) for key in gone]})
    else:
        click.echo(f"{len(gone):,} deleted")
    return DONE


for _command in (_list, _get, _prune):
    artifacts_command.add_command(_command)
