"""A step that ends when its time has come, or an event. Nothing runs meanwhile: the driver keeps the time."""

from __future__ import annotations

from typing import Any

import msgspec

from runwright.contract import payloads
from runwright.contract.plan import Step
from runwright.contract.timestamps import is_utc, to_micros
from runwright.plans.durations import NoDuration, read_duration

from .base import Lane, StepContext, StepError, is_open


class WaitInputs(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    duration: str | float | None = None
    until: str | None = None
    event: str | None = None
    key: str | None = None


class WaitTool:
    kind = "wait"
    stays_here = True  # no worker is needed for it
    inputs = WaitInputs
    main_input = "duration"

    def check(self, inputs: dict[str, Any], step: Step) -> str | None:
        duration, until = inputs.get("duration"), inputs.get("until")
        if inputs.get("event") is not None:
            if duration is not None or until is not None:
                return "A wait for an event has no `duration`; set the step's `timeout`."
            return "An event cannot be waited for in a foreach." if step.foreach is not None else None
        if inputs.get("key") is not None:
            return "`key` belongs to an `event`."
        if (duration is None) == (until is None):
            return "Say how long to wait or until when: exactly one of `duration` and `until`."
        if duration is not None:
            return None if is_open(duration) else _duration_trouble(duration)
        return None if is_open(until) else _until_trouble(until)

    def lane(self, inputs: WaitInputs, step: Step) -> Lane:  # noqa: ARG002
        return Lane.TIMER if inputs.event is None else Lane.ASK

    def question(self, inputs: WaitInputs, expires_at: str | None) -> tuple[str, msgspec.Struct]:
        """The event that says what is waited for."""
        return "StepDelayed", payloads.StepDelayed(expires_at, "event", event=inputs.event, key=inputs.key)

    def run(self, inputs: WaitInputs, context: StepContext) -> None:
        """Nothing is left to do once the time has come."""

    def due_at(self, inputs: WaitInputs, now_micros: int) -> int:
        """When a wait that begins now is over, in microseconds since 1970."""
        return due_at(inputs, now_micros)


def due_at(inputs: WaitInputs, now_micros: int) -> int:
    """When a wait that begins now is over, in microseconds since 1970. A time that has passed is over at once."""
    if (inputs.duration is None) == (inputs.until is None):
        raise _bad("Say how long to wait or until when: exactly one of `duration` and `until`.")
    if inputs.until is not None:
        trouble = _until_trouble(inputs.until)
        if trouble:
            raise _bad(trouble)
        return max(now_micros, to_micros(inputs.until))
    trouble = _duration_trouble(inputs.duration)
    if trouble:
        raise _bad(trouble)
    return now_micros + round(read_duration(inputs.duration) * 1_000_000)


def _duration_trouble(duration: Any) -> str | None:
    try:
        read_duration(duration)
    except NoDuration as error:
        return f"{duration!r}: {error}"
    return None


def _until_trouble(until: Any) -> str | None:
    if isinstance(until, str) and is_utc(until):
        return None
    return f"{until!r} is no time in UTC. Write one such as 2026-01-31T08:00:00Z."


def _bad(detail: str) -> StepError:
    return StepError("INVALID_INPUT", detail, retryable=False)
