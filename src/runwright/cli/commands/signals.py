"""Signals to a run: pause, resume, cancel, retry, skip, any other signal, and the confirmation by a second person."""

from __future__ import annotations

from typing import Any

import click
import msgspec

from runwright.cli.hints import CommandHints
from runwright.cli.run_argument import resolve_run_id
from runwright.cli.session import EXIT_OK, EXIT_REFUSED, Session, command, show_error
from runwright.cli.signal_sender import open_signal_sender
from runwright.cli.terminal.formatting import printable, styled_status
from runwright.contract.errors import ErrorCode, RunwrightError
from runwright.contract.transitions import ENDED, RunStatus
from runwright.control.signal_rules import SignalDecision
from runwright.log.protocols import LogReader

reason_option = click.option("--reason", metavar="TEXT", help="Reason, recorded with the decision.")
_run = click.argument("run")
_step = click.argument("step")


@command("pause")
@_run
@reason_option
async def pause_command(session: Session, run: str, reason: str | None) -> int:
    """Pause a run: running steps finish, no new steps start."""
    return await send_signal(session, run, "PAUSE", {}, reason)


@command("resume")
@_run
@reason_option
async def resume_command(session: Session, run: str, reason: str | None) -> int:
    """Resume a paused run."""
    return await send_signal(session, run, "RESUME", {}, reason)


@command("cancel")
@_run
@reason_option
async def cancel_command(session: Session, run: str, reason: str | None) -> int:
    """Cancel a run: running steps are stopped, pending steps are skipped."""
    return await send_signal(session, run, "CANCEL", {}, reason)


@command("retry")
@_run
@_step
@click.option("--force", is_flag=True, help="Also retry a step that succeeded or was skipped.")
@reason_option
async def retry_command(session: Session, run: str, step: str, force: bool, reason: str | None) -> int:
    """Retry a failed step."""
    return await send_signal(session, run, "RETRY_STEP", {"stepId": step, **({"force": True} if force else {})}, reason)


@command("skip")
@_run
@_step
@reason_option
async def skip_command(session: Session, run: str, step: str, reason: str | None) -> int:
    """Skip a pending or failed step; steps that depend on it continue."""
    return await send_signal(session, run, "SKIP_STEP", {"stepId": step}, reason)


@command("signal")
@_run
@click.argument("signal_type", metavar="TYPE")
@click.option("--payload", metavar="JSON", default="{}", help="Signal payload (JSON object).")
@reason_option
@click.option("--signal-id", metavar="UUID", help="Signal id; a signal that is sent again is decided once.")
async def signal_command(
    session: Session, run: str, signal_type: str, payload: str, reason: str | None, signal_id: str | None
) -> int:
    """Send any signal to a run: PAUSE, RESUME, CANCEL, RETRY_STEP, SKIP_STEP, RETRY_RUN, UPDATE_PARAMS, ...

    UPDATE_PARAMS {"params": {...}}, INJECT_OVERRIDE {"stepId", "override"} and EMERGENCY_STOP {"reason"} require the
    role of an administrator, which the local user has; the first two also require --reason.
    """
    try:
        content = msgspec.json.decode(payload)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise RunwrightError(ErrorCode.SIGNAL_INVALID_PAYLOAD, f"--payload must be JSON: {error}.") from None
    if not isinstance(content, dict):
        raise RunwrightError(ErrorCode.SIGNAL_INVALID_PAYLOAD, "--payload must be a JSON object, such as {}.")
    kind = signal_type.upper()
    if kind == "EMERGENCY_STOP" and reason is not None:
        # The payload of this signal has a required field `reason`.
        content.setdefault("reason", reason)  # pyright: ignore[reportUnknownMemberType]
    return await send_signal(session, run, kind, content, reason, signal_id)  # pyright: ignore[reportUnknownArgumentType]


@command("confirm")
@_run
@click.argument("signal_id", metavar="SIGNAL")
@click.option("--deny", is_flag=True, help="Reject the signal instead of confirming it.")
@reason_option
async def confirm_command(session: Session, run: str, signal_id: str, deny: bool, reason: str | None) -> int:
    """Confirm a signal that requires a second person. `runwright events` shows its id."""
    async with open_signal_sender(session) as sender:
        run_id = await resolve_run_id(sender.log, run)
        decision = await sender.confirm(run_id, signal_id, agree=not deny, reason=reason)
        return await _show_decision(session, sender.log, run_id, decision, expects_rejection=deny)


async def send_signal(
    session: Session,
    run: str,
    signal_type: str,
    payload: dict[str, Any],
    reason: str | None,
    signal_id: str | None = None,
) -> int:
    async with open_signal_sender(session) as sender:
        run_id = await resolve_run_id(sender.log, run)
        decision = await sender.signal(run_id, signal_type, payload, reason=reason, signal_id=signal_id)
        return await _show_decision(session, sender.log, run_id, decision)


async def _show_decision(
    session: Session,
    log: LogReader,
    run_id: str,
    decision: SignalDecision,
    *,
    expects_rejection: bool = False,
) -> int:
    """Print a decision; return the exit code. A rejection is a success if the caller asked for it (--deny)."""
    is_refused = decision.code is not None and not (expects_rejection and decision.decision == "REJECTED")
    if session.as_json:
        session.print_json(decision)
    elif is_refused:
        show_error(RunwrightError(ErrorCode(decision.code or ""), decision.reason or ""), as_json=False)
    elif decision.decision == "REJECTED":
        click.echo(f"{click.style('REJECTED', bold=True)} {decision.signal_type}: {printable(decision.reason or '')}")
    elif decision.decision == "REVISION_REQUIRED":
        label = click.style("REVISION_REQUIRED", fg="yellow", bold=True)
        confirm = CommandHints(session, run_id).confirm(decision.signal_id)
        click.echo(f"{label} {decision.signal_type}: a second person must confirm it with: {confirm}")
    else:
        await _show_effect(session, log, run_id, decision)
    return EXIT_REFUSED if is_refused else EXIT_OK


_EFFECTS = {
    "PAUSED": "no new steps start",
    "ALREADY_PAUSED": "it was already paused",
    "NOT_RUNNING": "it is not running",
    "RESUMED": "new steps start",
    "NOT_PAUSED": "it was not paused",
    "CANCELLED": "the run has ended",
    "RETRYING": "the step is retried",
    "SKIPPED": "the step is skipped; steps that depend on it continue",
    "UPDATED": "effective from the next step on",
    "OVERRIDDEN": "the step will run with these inputs",
    "RUN_TERMINAL": "the run had already ended",
    "STEP_NOT_TERMINAL": "no effect: the step was already running",
    "STEP_TERMINAL": "no effect: the step had already ended",
    "APPROVED": "the step continues",
    "DENIED": "the step has failed",
    "NOTHING_TO_APPROVE": "no step was waiting for approval",
    "DELIVERED": "the waiting step continues",
    "NOT_SUPPORTED": "this runtime does not support the signal",
}


async def _show_effect(session: Session, log: LogReader, run_id: str, decision: SignalDecision) -> None:
    """Print the effect of an accepted signal, and how to continue a run that no process drives."""
    row = await log.find_run(run_id)
    commands = CommandHints(session, run_id)
    head = f"{click.style('ACCEPTED', fg='green', bold=True)} {decision.signal_type}"
    if decision.new_run_id is not None:
        click.echo(f"{head}: created run {printable(decision.new_run_id)} from this run.")
        click.echo(f"Continue with: {CommandHints(session, decision.new_run_id).continue_run}")
        return
    message = row.to_json()["message"]
    suffix = f" {printable(message)}" if message else ""
    click.echo(f"{head}: {printable(_effect(decision))}. The run is {styled_status(str(row.status))}.{suffix}")
    if row.status is RunStatus.PAUSED and row.owner is None:
        click.echo(
            f"No process is driving this run. Resume it with: {commands.resume}  then continue with: {commands.recover}"
        )
    elif row.status not in ENDED and row.owner is None:
        click.echo(f"No process is driving this run. Continue with: {commands.continue_run}  (or {commands.recover})")


def _effect(decision: SignalDecision) -> str:
    result = decision.engine_result
    if result is not None:
        return _EFFECTS.get(result, result)
    if decision.signal_type == "CANCEL":
        return "running steps are being stopped"
    if decision.signal_type == "EVENT":
        return "no step waits for it yet; it is stored until one does"
    return "the process that drives the run has not processed it yet"
