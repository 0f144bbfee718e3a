"""The wait step: ends at a time, or on an external event. Nothing runs meanwhile; the driver owns the timer."""

from __future__ import annotations

from typing import Any

import msgspec

from runwright.contract import payloads
from runwright.contract.plan import Step
from runwright.contract.timestamps import is_utc, to_micros
from runwright.plans.durations import InvalidDuration, parse_duration
from runwright.plans.secret_refs import secret_names

from .base import INPUTS_ARE_LOGGED, Lane, StepContext, invalid_input, is_unresolved

_ONE_OF = "Set exactly one of `duration` and `until`."


class WaitInputs(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    duration: str | float | None = None
    until: str | None = None
    event: str | None = None
    key: str | None = None


class WaitTool:
    kind = "wait"
    stays_here = True  # completed by the engine, never sent to a worker
    inputs = WaitInputs
    main_input = "duration"

    def check(self, inputs: dict[str, Any], step: Step) -> str | None:
        if step.secret_refs or any(secret_names(inputs)):
            return INPUTS_ARE_LOGGED
        duration, until = inputs.get("duration"), inputs.get("until")
        if inputs.get("event") is not None:
            if duration is not None or until is not None:
                return "`event` cannot be combined with `duration` or `until`; set the step's `timeout`."
            return "A foreach step cannot wait for an event." if step.foreach is not None else None
        if inputs.get("key") is not None:
            return "`key` requires `event`."
        if (duration is None) == (until is None):
            return _ONE_OF
        if duration is not None:
            return None if is_unresolved(duration) else _duration_problem(duration)
        return None if is_unresolved(until) else _until_problem(until)

    def lane(self, inputs: WaitInputs, step: Step) -> Lane:  # noqa: ARG002
        return Lane.TIMER if inputs.event is None else Lane.ASK

    def question(self, inputs: WaitInputs, expires_at: str | None) -> tuple[str, msgspec.Struct]:
        """Return the event that records what the step waits for."""
        return "StepDelayed", payloads.StepDelayed(expires_at, "event", event=inputs.event, key=inputs.key)

    def run(self, inputs: WaitInputs, context: StepContext) -> None:
        """Do nothing: the step is complete when it is due."""

    def due_at(self, inputs: WaitInputs, now_micros: int) -> int:
        """Return when a wait that starts now is over, in microseconds since 1970."""
        return due_at(inputs, now_micros)


def due_at(inputs: WaitInputs, now_micros: int) -> int:
    """Return when a wait that starts now is over, in microseconds since 1970. A time in the past is over at once."""
    if (inputs.duration is None) == (inputs.until is None):
        raise invalid_input(_ONE_OF)
    if inputs.until is not None:
        problem = _until_problem(inputs.until)
        if problem:
            raise invalid_input(problem)
        return max(now_micros, to_micros(inputs.until))
    problem = _duration_problem(inputs.duration)
    if problem:
        raise invalid_input(problem)
    return now_micros + round(parse_duration(inputs.duration) * 1_000_000)


def _duration_problem(duration: Any) -> str | None:
    try:
        parse_duration(duration)
    except InvalidDuration as error:
        return f"{duration!r}: {error}"
    return None


def _until_problem(until: Any) -> str | None:
    if isinstance(until, str) and is_utc(until):
        return None
    return f"Invalid UTC time {until!r}. Use a time such as 2026-01-31T08:00:00Z."
