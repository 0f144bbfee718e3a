"""Steering a run: pause, resume, cancel, retry, skip, and any other signal."""

from __future__ import annotations

from typing import Any

import click
import msgspec

from runwright.contract.errors import ErrorCode, RunwrightError
from runwright.contract.transitions import ENDED, RunStatus
from runwright.control.interface import RunOperations
from runwright.control.signals import SignalDecision

from .accompany import engine
from .hints import Commands
from .render import plain, status
from .session import DONE, REFUSED, Session, command, show_error

_reason = click.option("--reason", metavar="TEXT", help="Why; kept with the decision.")
_run = click.argument("run")
_step = click.argument("step")


@command("pause")
@_run
@_reason
async def pause_command(session: Session, run: str, reason: str | None) -> int:
    """Start nothing new in a run; what runs may end."""
    return await send_signal(session, run, "PAUSE", {}, reason)


@command("resume")
@_run
@_reason
async def resume_command(session: Session, run: str, reason: str | None) -> int:
    """Go on with a paused run."""
    return await send_signal(session, run, "RESUME", {}, reason)


@command("cancel")
@_run
@_reason
async def cancel_command(session: Session, run: str, reason: str | None) -> int:
    """Stop a run for good: what runs is asked to stop, the rest is skipped."""
    return await send_signal(session, run, "CANCEL", {}, reason)


@command("retry")
@_run
@_step
@click.option("--force", is_flag=True, help="Also a step that succeeded or was skipped.")
@_reason
async def retry_command(session: Session, run: str, step: str, force: bool, reason: str | None) -> int:
    """Try a failed step again."""
    return await send_signal(session, run, "RETRY_STEP", {"stepId": step, **({"force": True} if force else {})}, reason)


@command("skip")
@_run
@_step
@_reason
async def skip_command(session: Session, run: str, step: str, reason: str | None) -> int:
    """Do without a step; those that need it go on."""
    return await send_signal(session, run, "SKIP_STEP", {"stepId": step}, reason)


@command("signal")
@_run
@click.argument("signal_type", metavar="TYPE")
@click.option("--payload", metavar="JSON", default="{}", help="What the signal carries, as a JSON object.")
@_reason
@click.option("--signal-id", metavar="UUID", help="Your own id for it: sent again, it is decided once.")
async def signal_command(
    session: Session, run: str, signal_type: str, payload: str, reason: str | None, signal_id: str | None
) -> int:
    """Send a run any signal: PAUSE, RESUME, CANCEL, RETRY_STEP, SKIP_STEP, RETRY_RUN, UPDATE_PARAMS, ...

    UPDATE_PARAMS {"params": {...}}, INJECT_OVERRIDE {"stepId", "override"} and EMERGENCY_STOP {"reason"} are for
    administrators, which the local user is; the first two need a --reason.
    """
    try:
        content = msgspec.json.decode(payload)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise RunwrightError(ErrorCode.SIGNAL_INVALID_PAYLOAD, f"--payload is not JSON: {error}.") from None
    if not isinstance(content, dict):
        raise RunwrightError(ErrorCode.SIGNAL_INVALID_PAYLOAD, "--payload must be a JSON object, such as {}.")
    kind = signal_type.upper()
    if kind == "EMERGENCY_STOP" and reason is not None:
        content.setdefault("reason", reason)  # pyright: ignore[reportUnknownMemberType] - where that signal has it
    return await send_signal(session, run, kind, content, reason, signal_id)  # pyright: ignore[reportUnknownArgumentType]


@command("confirm")
@_run
@click.argument("signal_id", metavar="SIGNAL")
@click.option("--deny", is_flag=True, help="Do not agree: the signal is refused.")
@_reason
async def confirm_command(session: Session, run: str, signal_id: str, deny: bool, reason: str | None) -> int:
    """Agree, as a second person, to a signal that waits for one; `events` shows which does."""
    async with engine(session) as operations:
        run_id = (await operations.log.resolve(run)).identity.run_id
        decision = await operations.confirm(run_id, signal_id, agree=not deny, reason=reason)
        return await _show(session, operations, run_id, decision, meant=deny)


async def send_signal(
    session: Session,
    run: str,
    signal_type: str,
    payload: dict[str, Any],
    reason: str | None,
    signal_id: str | None = None,
) -> int:
    async with engine(session) as operations:
        run_id = (await operations.log.resolve(run)).identity.run_id
        decision = await operations.signal(run_id, signal_type, payload, reason=reason, signal_id=signal_id)
        return await _show(session, operations, run_id, decision)


async def _show(
    session: Session, operations: RunOperations, run_id: str, decision: SignalDecision, *, meant: bool = False
) -> int:
    """Print a decision. `meant`: whoever asked wanted it refused."""
    refused = decision.code is not None and not (meant and decision.decision == "REJECTED")
    if session.as_json:
        session.print_json(decision)
    elif refused:
        show_error(RunwrightError(ErrorCode(decision.code or ""), decision.reason or ""), as_json=False)
    elif decision.decision == "REJECTED":
        click.echo(f"{click.style('REJECTED', bold=True)} {decision.signal_type}: {plain(decision.reason or '')}")
    elif decision.decision == "REVISION_REQUIRED":
        word = click.style("REVISION_REQUIRED", fg="yellow", bold=True)
        confirm = Commands(session, run_id).confirm(decision.signal_id)
        click.echo(f"{word} {decision.signal_type}: a second person has to agree:  {confirm}")
    else:
        await _tell(session, operations, run_id, decision)
    return REFUSED if refused else DONE


_EFFECTS = {
    "PAUSED": "nothing new starts",
    "ALREADY_PAUSED": "it was paused before",
    "NOT_RUNNING": "it is not running",
    "RESUMED": "steps start again",
    "NOT_PAUSED": "it was not paused",
    "CANCELLED": "the run has ended",
    "RETRYING": "the step is tried again",
    "SKIPPED": "the step is skipped; those that need it go on",
    "UPDATED": "from the next step on",
    "OVERRIDDEN": "the step will run with these inputs",
    "RUN_TERMINAL": "the run had ended by then",
    "STEP_NOT_TERMINAL": "the step was running by then; nothing was done",
    "STEP_TERMINAL": "the step had ended by then; nothing was done",
    "APPROVED": "the step goes on",
    "DENIED": "the step has failed",
    "NOTHING_TO_APPROVE": "no step waited for an answer by then",
    "DELIVERED": "the step that waited for it goes on",
    "NOT_SUPPORTED": "this runtime does not know the signal",
}


async def _tell(session: Session, operations: RunOperations, run_id: str, decision: SignalDecision) -> None:
    """The decision and what came of it, in a line or two."""
    row = await operations.log.find_run(run_id)
    result, commands = decision.engine_result, Commands(session, run_id)
    head = f"{click.style('ACCEPTED', fg='green', bold=True)} {decision.signal_type}"
    if decision.new_run_id is not None:
        click.echo(f"{head}: run {plain(decision.new_run_id)} was made from this one.")
        click.echo(f"It is due; go on with: {Commands(session, decision.new_run_id).go_on}")
        return
    if result is None and decision.signal_type == "CANCEL":
        effect = "running steps are being stopped"
    elif result is None and decision.signal_type == "EVENT":
        effect = "no step waits for it yet; it is kept until one does"
    elif result is None:
        effect = "the process that drives the run has not acted on it yet"
    else:
        effect = _EFFECTS.get(result, result)
    click.echo(plain_line(head, effect, str(row.status), row.to_json()["message"]))
    if row.status is RunStatus.PAUSED and row.owner is None:
        click.echo(f"Nobody drives this run now. Resume it with: {commands.resume}  and go on with: {commands.recover}")
    elif row.status not in ENDED and row.owner is None:
        click.echo(f"Nobody drives this run now. Go on with: {commands.go_on}  (or {commands.recover})")


def plain_line(head: str, effect: str, run_status: str, message: str | None) -> str:
    more = f" {plain(message)}" if message else ""
    return f"{head}: {plain(effect)}. The run is {status(run_status)}.{more}"
