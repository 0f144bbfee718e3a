"""`runwright artifacts`: list, download and prune artifacts."""

from __future__ import annotations

import asyncio
from pathlib import Path

import click
import msgspec

from runwright.cli.run_argument import resolve_run_id
from runwright.cli.session import EXIT_OK, Session, command
from runwright.cli.terminal.formatting import print_table
from runwright.config.artifact_store import artifact_store
from runwright.config.settings import settings_table
from runwright.contract.errors import ErrorCode, RunwrightError
from runwright.control.run_views import artifacts_of
from runwright.log.system_clock import SystemClock
from runwright.storage.artifacts import ArtifactStore


@click.group("artifacts")
def artifacts_command() -> None:
    """List, download and prune artifacts."""


def _store(session: Session) -> ArtifactStore:
    return artifact_store(settings_table("artifacts"), session.state_folder, SystemClock().now)


@command("list")
@click.argument("run")
async def _list(session: Session, run: str) -> int:
    """List the artifacts of a run, whether it completed, failed or is running."""
    async with session.open() as log:
        artifacts = await artifacts_of(log, await resolve_run_id(log, run))
    if session.as_json:
        session.print_json([{"stepId": step_id, **msgspec.to_builtins(ref)} for step_id, ref in artifacts])
        return EXIT_OK
    rows = [
        [
            step_id,
            ref.kind,
            "" if ref.size_bytes is None else f"{ref.size_bytes:,}",
            (ref.expires_at or "")[:10],
            ref.uri,
        ]
        for step_id, ref in artifacts
    ]
    print_table(["step", "kind", "bytes", "expires", "uri"], rows)
    return EXIT_OK


@command("get")
@click.argument("uri")
@click.option("-o", "--output", required=True, metavar="FILE", help="Output file.")
@click.option("--run", default="@last", show_default=True, help="Run that created the artifact (with --server).")
async def _get(session: Session, uri: str, output: str, run: str) -> int:
    """Download an artifact to a file and verify its hash."""
    if session.server is not None:
        size = await _get_remote(session, run, uri, Path(output))
    else:
        size = await asyncio.to_thread(_store(session).get, uri, Path(output))
    if session.as_json:
        session.print_json({"path": output, "sizeBytes": size})
    else:
        click.echo(f"{output}: {size:,} bytes")
    return EXIT_OK


async def _get_remote(session: Session, run: str, uri: str, output: Path) -> int:
    async with session.remote() as remote:
        run_id = await resolve_run_id(remote.log, run)
        found = [ref for _, ref in await artifacts_of(remote.log, run_id) if ref.uri == uri and ref.sha256]
        if not found:
            raise RunwrightError(ErrorCode.REFERENCE_NOT_AVAILABLE, f"Artifact {uri} not found in run {run_id}.")
        body = await remote.fetch_artifact(run_id, found[0].sha256 or "")
    output.write_bytes(body)
    return len(body)


@command("prune")
async def _prune(session: Session) -> int:
    """Delete expired artifacts. An artifact expires by the retention of runwright.toml when it was created."""
    if session.server is not None:
        detail = "Artifacts can only be pruned on the server's machine, with --store."
        raise RunwrightError(ErrorCode.INVALID_ARGUMENT, detail)
    deleted = await asyncio.to_thread(_store(session).prune)
    if session.as_json:
        session.print_json({"deleted": [str(key) for key in deleted]})
    else:
        click.echo(f"{len(deleted):,} deleted")
    return EXIT_OK


for _command in (_list, _get, _prune):
    artifacts_command.add_command(_command)
