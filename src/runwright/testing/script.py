"""Scripted outcomes of steps, which are used instead of executing them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import msgspec

from runwright.contract.refs import ErrorInfo
from runwright.plans.durations import parse_duration
from runwright.runtimes.executor.executor import Outcome, Work
from runwright.storage.json_encoding import encode_result

Duration = str | float


class Result(msgspec.Struct, frozen=True):
    """The step succeeds with this result, after this time."""

    value: Any = None
    took: Duration = 0.0


class Fails(msgspec.Struct, frozen=True):
    """The attempt fails."""

    code: str = "SCRIPTED"
    message: str = "Scripted failure."
    retryable: bool = True
    took: Duration = 0.0


class Approves(msgspec.Struct, frozen=True):
    """The step's approval is granted."""

    answer: dict[str, Any] | None = None
    after: Duration = 0.0
    by: str = "tester"


class Denies(msgspec.Struct, frozen=True):
    """The step's approval is denied."""

    reason: str | None = None
    after: Duration = 0.0
    by: str = "tester"


class Sends(msgspec.Struct, frozen=True):
    """The external event that the step waits for is delivered."""

    payload: Any = None
    after: Duration = 0.0


Answer = Approves | Denies | Sends
Script = Mapping[str, Any]
"""Outcomes by step or iteration (`load[2]`): a result, one of the classes above, a function of the step's inputs, or a
list of these, one for each attempt; the last one also applies to later attempts."""


def scripted(script: Script, path: str, step_id: str, attempt: int) -> Any:
    """Return the script's entry for an attempt; None, which means a null result, if there is none."""
    entry = script[path] if path in script else script.get(step_id)
    if isinstance(entry, list):
        entries = cast("list[Any]", entry)
        return entries[min(attempt, len(entries)) - 1] if entries else None
    return entry


def outcome_of(entry: Any, work: Work) -> tuple[Outcome, float]:
    """Return the outcome of an attempt, and its duration in seconds."""
    if callable(entry):
        try:
            entry = entry(**_arguments(work.inputs))
        except Exception as error:
            entry = Fails("STEP_RAISED", f"{type(error).__name__}: {error}")
    if isinstance(entry, Fails):
        error = ErrorInfo(entry.code, entry.message, entry.retryable, "user")
        return Outcome(error=error), parse_duration(entry.took)
    if isinstance(entry, Result):
        return Outcome(encode_result(entry.value)), parse_duration(entry.took)
    return Outcome(encode_result(entry)), 0.0


def _arguments(inputs: Any) -> dict[str, Any]:
    """Return the arguments of a Python step; for other kinds of step, all inputs."""
    fields: dict[str, Any] = msgspec.structs.asdict(inputs)
    arguments: Any = fields.get("args")
    return cast("dict[str, Any]", arguments) if isinstance(arguments, dict) else fields
