"""Answering what a run asks: approvals, and events that it waits for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click
import msgspec

from runwright.contract.errors import ErrorCode, RunwrightError
from runwright.contract.payloads import Approval
from runwright.contract.plan import ParamType

from .accompany import engine
from .session import Session, command
from .steer import send_signal

_reason = click.option("--reason", metavar="TEXT", help="Why; kept with the answer.")


@command("approve")
@click.argument("run")
@click.argument("step", required=False)
@click.option("--field", "given", multiple=True, metavar="K=V", help="A field that the approval asks for.")
@_reason
async def approve_command(
    session: Session, run: str, step: str | None, given: tuple[str, ...], reason: str | None
) -> int:
    """Say yes to a step that asks. STEP may be left out where only one does."""
    payload: dict[str, Any] = {} if step is None else {"stepId": step}
    if given:
        async with engine(session) as operations:
            run_id = (await operations.log.resolve(run)).identity.run_id
            payload["answer"] = _answer(given, _fields(await operations.questions(run_id), step))
    return await send_signal(session, run, "APPROVE", payload, reason)


@command("deny")
@click.argument("run")
@click.argument("step", required=False)
@_reason
async def deny_command(session: Session, run: str, step: str | None, reason: str | None) -> int:
    """Say no to a step that asks; the step fails."""
    return await send_signal(session, run, "DENY", {} if step is None else {"stepId": step}, reason)


@command("send")
@click.argument("run")
@click.argument("event")
@click.option("--payload", metavar="JSON", help="What the event carries; the waiting step's result has it.")
@click.option("--key", metavar="TEXT", help="Only for a step that waits for this key.")
async def send_command(session: Session, run: str, event: str, payload: str | None, key: str | None) -> int:
    """Send a run an event that a step waits for, now or later."""
    content: dict[str, Any] = {"name": event}
    if key is not None:
        content["key"] = key
    if payload is not None:
        try:
            content["payload"] = msgspec.json.decode(payload)
        except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
            raise RunwrightError(ErrorCode.SIGNAL_INVALID_PAYLOAD, f"--payload is not JSON: {error}.") from None
    return await send_signal(session, run, "EVENT", content, None)


def _fields(questions: dict[str, Approval], step: str | None) -> dict[str, Any]:
    question = questions.get(step) if step is not None else next(iter(questions.values()), None)
    return {} if question is None else question.fields or {}


def _answer(given: Sequence[str], fields: dict[str, Any]) -> dict[str, Any]:
    answer: dict[str, Any] = {}
    for pair in given:
        name, equals, text = pair.partition("=")
        if not equals or not name:
            raise RunwrightError(ErrorCode.INVALID_ARGUMENT, f"--field {pair!r}: write it as name=value.")
        answer[name] = _value(text, fields.get(name, {}).get("type"))
    return answer


def _value(text: str, kind: str | None) -> Any:
    """Text, unless the field is something else; what does not fit is refused with the answer."""
    if kind in (None, ParamType.STRING):
        return text
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return text
