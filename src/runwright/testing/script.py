"""What the steps of a played run give back, instead of being carried out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import msgspec

from runwright.contract.refs import ErrorInfo
from runwright.plans.durations import read_duration
from runwright.results.encoding import encode_result
from runwright.runtimes.executor import Outcome, Work

Duration = str | float


class Result(msgspec.Struct, frozen=True):
    """A step's result, and how long the step took."""

    value: Any = None
    took: Duration = 0.0


class Fails(msgspec.Struct, frozen=True):
    """The attempt fails."""

    code: str = "SCRIPTED"
    message: str = "The script says so."
    retryable: bool = True
    took: Duration = 0.0


class Approves(msgspec.Struct, frozen=True):
    """Somebody says yes to what the step asks."""

    answer: dict[str, Any] | None = None
    after: Duration = 0.0
    by: str = "tester"


class Denies(msgspec.Struct, frozen=True):
    """Somebody says no."""

    reason: str | None = None
    after: Duration = 0.0
    by: str = "tester"


class Sends(msgspec.Struct, frozen=True):
    """Somebody sends the event that the step waits for."""

    payload: Any = None
    after: Duration = 0.0


Answer = Approves | Denies | Sends
Script = Mapping[str, Any]
"""By step, or by iteration (`load[2]`): a result, one of the above, a function of the step's inputs, or a list of
these, one for each attempt; the last holds for all that follow."""


def scripted(script: Script, path: str, step_id: str, attempt: int) -> Any:
    """What the script says of an attempt; `None`, that is a result of null, where it says nothing."""
    entry = script[path] if path in script else script.get(step_id)
    if isinstance(entry, list):
        entries = cast("list[Any]", entry)
        return entries[min(attempt, len(entries)) - 1] if entries else None
    return entry


def outcome_of(entry: Any, work: Work) -> tuple[Outcome, float]:
    """How an attempt ends, and after how many seconds."""
    if callable(entry):
        try:
            entry = entry(**_arguments(work.inputs))
        except Exception as error:
            entry = Fails("STEP_RAISED", f"{type(error).__name__}: {error}")
    if isinstance(entry, Fails):
        error = ErrorInfo(entry.code, entry.message, entry.retryable, "user")
        return Outcome(error=error), read_duration(entry.took)
    if isinstance(entry, Result):
        return Outcome(encode_result(entry.value)), read_duration(entry.took)
    return Outcome(encode_result(entry)), 0.0


def _arguments(inputs: Any) -> dict[str, Any]:
    """A Python step's arguments; of another kind, all its inputs."""
    given: dict[str, Any] = msgspec.structs.asdict(inputs)
    arguments: Any = given.get("args")
    return cast("dict[str, Any]", arguments) if isinstance(arguments, dict) else given
