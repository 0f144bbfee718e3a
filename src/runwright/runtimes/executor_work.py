"""A piece of work, what became of it, and how an error becomes a fact."""

from __future__ import annotations

import logging
import os
import sys
import traceback
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any, cast

import msgspec

from runwright.contract.errors import STORE_CODES, ErrorCode, RunwrightError
from runwright.contract.plan import Step
from runwright.contract.refs import ArtifactRef, ErrorInfo, StepOutput
from runwright.results.encoding import encode_result
from runwright.tools.base import RAISED, Lane, StepContext, StepError, Tool, enter_step
from runwright.tools.secrets import Mask

_log = logging.getLogger(__name__)

LONGEST_MESSAGE = 2000
LONGEST_TRACEBACK = 2000

_OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep


class Work(msgspec.Struct, frozen=True):
    tool: Tool
    lane: Lane
    inputs: Any
    """An instance of `tool.inputs`, with expressions filled in."""
    step: Step
    context: StepContext
    late: Callable[[Outcome], None] | None = None
    """Hears how it ended, should that be after it was given up."""


class Outcome(msgspec.Struct, frozen=True):
    result: bytes | None = None
    """JSON, where the step completed."""
    error: ErrorInfo | None = None
    artifacts: tuple[ArtifactRef, ...] = ()
    """Those that the step gave back itself; what it handed to `keep` is noted elsewhere."""
    abandoned: bool = False
    """It did not stop, and nobody waits for it any more."""

    def masked(self, mask: Mask | None) -> Outcome:
        """The same without the secrets that were given to the step."""
        if mask is None:
            return self
        result = None if self.result is None else mask.json(self.result)
        error = None if self.error is None else mask.error(self.error)
        return msgspec.structs.replace(self, result=result, error=error)


CANCELLED = Outcome(
    error=ErrorInfo("CANCELLED", "The step stopped when it was asked to.", retryable=False, category="cancelled")
)
ABANDONED = Outcome(
    error=ErrorInfo(
        "CANCELLED",
        "The step was asked to stop and did not. It was left to itself, and what it gives back is dropped.",
        retryable=False,
        category="cancelled",
    ),
    abandoned=True,
)


async def run_isolated(work: Work) -> Outcome:
    """Have a process of its own do it. Cancelled, that process is stopped."""
    from .executor_process import converse

    try:
        return _ended(work, await converse(work))
    except BaseException as error:
        return _ended(work, failure(error, work.context))


def carry_out(work: Work) -> Outcome | Awaitable[Any]:
    """Call the tool, in a thread of its own. An awaitable is given back for a loop to go on with."""
    enter_step(work.context)
    try:
        value = work.tool.run(work.inputs, work.context)
        if is_awaitable(value):
            return value
        return _ended(work, given(value))
    except BaseException as error:  # also SystemExit: a step may end itself, but not us
        return _ended(work, failure(error, work.context))


async def carry_on(work: Work, awaitable: Awaitable[Any] | None = None) -> Outcome:
    """Call the tool on a loop, or go on with what it gave back in a thread."""
    enter_step(work.context)
    try:
        value = work.tool.run(work.inputs, work.context) if awaitable is None else awaitable
        if is_awaitable(value):
            value = await value
        return _ended(work, given(value))
    except BaseException as error:
        return _ended(work, failure(error, work.context))


def given(value: Any) -> Outcome:
    """How a step ended that gave this back."""
    if not isinstance(value, StepOutput):
        return Outcome(encode_result(value))
    artifacts = tuple(value.artifact_refs)
    if value.status == "SUCCESS":
        return Outcome(encode_result(value.result), artifacts=artifacts)
    return Outcome(
        error=value.error or ErrorInfo("STEP_FAILED", "The step said so.", True, "user"), artifacts=artifacts
    )


def _ended(work: Work, outcome: Outcome) -> Outcome:
    """All its output is written before anybody hears that it ended: who follows a run reads to that point."""
    try:
        work.context.end_output()
    except Exception as error:
        _log.warning("The output of step %r could not be ended: %r.", work.context.step_id, error)
    return outcome


def is_awaitable(value: Any) -> bool:
    return hasattr(cast("type[Any]", type(value)), "__await__")


def failure(error: BaseException, context: StepContext) -> Outcome:
    """What an exception says about a step. Its traceback goes to the step's log."""
    if context.is_cancelled and _is_cancellation(error):
        return CANCELLED
    try:
        if isinstance(error, StepError):
            if error.code == RAISED and error.__cause__ is not None:
                context.write("err", short_traceback(error.__cause__).encode(errors="replace"))
            return _said_by_step(error)
        if isinstance(error, RunwrightError):
            return _said_by_us(error)
        context.write("err", short_traceback(error).encode(errors="replace"))
        return Outcome(error=ErrorInfo(RAISED, describe(error), retryable=True, category="user"))
    except BaseException:  # out of memory, or an exception that raises when it is looked at
        return Outcome(error=ErrorInfo(RAISED, type(error).__name__, retryable=True, category="user"))


def _is_cancellation(error: BaseException) -> bool:
    """Asked without importing asyncio, which an isolated step may never need."""
    asyncio = sys.modules.get("asyncio")
    return asyncio is not None and isinstance(error, asyncio.CancelledError)


def describe(error: BaseException) -> str:
    text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return storable(text)


def storable(text: Any) -> str:
    """Text that the log takes, whatever a user made it of."""
    return str(text)[:LONGEST_MESSAGE].encode(errors="replace").decode().replace("\0", "\\0")


def short_traceback(error: BaseException) -> str:
    """The traceback without our own frames, and no longer than people read."""
    lines = traceback.format_exception(type(error), error, _their_frames(error.__traceback__))
    text = "".join(lines)
    return text if len(text) <= LONGEST_TRACEBACK else f"...{text[-LONGEST_TRACEBACK:]}"


def _their_frames(frames: TracebackType | None) -> TracebackType | None:
    first = frames
    while first is not None and first.tb_frame.f_code.co_filename.startswith(_OURS):
        first = first.tb_next
    return first or frames


def _said_by_step(error: StepError) -> Outcome:
    info = ErrorInfo(
        storable(error.code)[:100],
        storable(error.message),
        retryable=bool(error.retryable),
        category=storable(error.category)[:100],
    )
    try:
        facts = msgspec.json.decode(encode_result(error.facts))
    except RunwrightError:
        facts = None  # they cannot be stored
    return Outcome(error=msgspec.structs.replace(info, facts=facts or None))


def _said_by_us(error: RunwrightError) -> Outcome:
    retryable = error.code in STORE_CODES or error.code == ErrorCode.REFERENCE_NOT_AVAILABLE
    return Outcome(error=ErrorInfo(error.code, storable(error.detail), retryable=retryable, category="system"))
