"""`runwright key`: show the idempotency key of an event."""

from __future__ import annotations

import click

from runwright.cli.session import EXIT_OK, Session, command
from runwright.contract.errors import ErrorCode, RunwrightError
from runwright.contract.keys import idempotency_key, preimage


@command("key")
@click.option("--run-id", required=True, help="runId")
@click.option("--step-id", help="stepId; omit it for events about the whole run.")
@click.option("--attempt", required=True, type=click.IntRange(1), help="logicalAttemptId")
@click.option("--type", "event_type", required=True, help="eventType")
@click.option("--plan-id", required=True, help="planId")
@click.option("--plan-version", required=True, help="planVersion")
async def key_command(
    session: Session, run_id: str, step_id: str | None, attempt: int, event_type: str, plan_id: str, plan_version: str
) -> int:
    """Show the idempotency key of an event and its preimage: the key is the SHA-256 of the preimage."""
    parts = (run_id, step_id, attempt, event_type, plan_id, plan_version)
    for name, part in zip(("run-id", "step-id", "attempt", "type", "plan-id", "plan-version"), parts, strict=True):
        if isinstance(part, str) and (not part or "|" in part):
            raise RunwrightError(ErrorCode.INVALID_ARGUMENT, f"--{name} must not be empty and must not contain '|'.")
    document = {"preimage": preimage(*parts), "key": idempotency_key(*parts)}
    if session.as_json:
        session.print_json(document)
    else:
        click.echo(f"{document['preimage']}\n{document['key']}")
    return EXIT_OK
