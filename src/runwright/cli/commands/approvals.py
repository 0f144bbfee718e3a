"""`approve`, `deny` and `send`: input for a step that waits for an approval or an external event."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click
import msgspec

from runwright.cli.run_argument import resolve_run_id
from runwright.cli.session import Session, command
from runwright.cli.signal_sender import open_signal_sender
from runwright.contract.errors import ErrorCode, RunwrightError
from runwright.contract.payloads import Approval
from runwright.contract.plan import ParamType

from .signals import reason_option, send_signal


@command("approve")
@click.argument("run")
@click.argument("step", required=False)
@click.option("--field", "fields", multiple=True, metavar="K=V", help="Set a field of the approval. May be repeated.")
@reason_option
async def approve_command(
    session: Session, run: str, step: str | None, fields: tuple[str, ...], reason: str | None
) -> int:
    """Approve a step that is waiting for approval. STEP may be omitted if only one step is waiting."""
    payload: dict[str, Any] = {} if step is None else {"stepId": step}
    if fields:
        async with open_signal_sender(session) as sender:
            run_id = await resolve_run_id(sender.log, run)
            declared = _declared_fields(await sender.questions(run_id), step)
            payload["answer"] = _parse_fields(fields, declared)
    return await send_signal(session, run, "APPROVE", payload, reason)


@command("deny")
@click.argument("run")
@click.argument("step", required=False)
@reason_option
async def deny_command(session: Session, run: str, step: str | None, reason: str | None) -> int:
    """Deny a step that is waiting for approval; the step fails."""
    return await send_signal(session, run, "DENY", {} if step is None else {"stepId": step}, reason)


@command("send")
@click.argument("run")
@click.argument("event")
@click.option("--payload", metavar="JSON", help="Event payload; part of the waiting step's result.")
@click.option("--key", metavar="TEXT", help="Deliver only to a step that waits for this key.")
async def send_command(session: Session, run: str, event: str, payload: str | None, key: str | None) -> int:
    """Deliver an external event to a waiting step. Without one, it is stored until a step waits for it."""
    content: dict[str, Any] = {"name": event}
    if key is not None:
        content["key"] = key
    if payload is not None:
        try:
            content["payload"] = msgspec.json.decode(payload)
        except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
            raise RunwrightError(ErrorCode.SIGNAL_INVALID_PAYLOAD, f"--payload must be JSON: {error}.") from None
    return await send_signal(session, run, "EVENT", content, None)


def _declared_fields(approvals: dict[str, Approval], step: str | None) -> dict[str, Any]:
    approval = approvals.get(step) if step is not None else next(iter(approvals.values()), None)
    return {} if approval is None else approval.fields or {}


def _parse_fields(pairs: Sequence[str], declared: dict[str, Any]) -> dict[str, Any]:
    answer: dict[str, Any] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals or not name:
            raise RunwrightError(ErrorCode.INVALID_ARGUMENT, f"Invalid --field {pair!r}. Expected name=value.")
        answer[name] = _parse_value(text, declared.get(name, {}).get("type"))
    return answer


def _parse_value(text: str, kind: str | None) -> Any:
    """Parse JSON unless the field is a string. Values of the wrong type are refused with the signal."""
    if kind in (None, ParamType.STRING):
        return text
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return text
