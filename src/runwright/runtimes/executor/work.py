"""Work and Outcome: a step to execute, and how it ended. Calls tools and maps their values and exceptions."""

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
from runwright.storage.json_encoding import encode_result
from runwright.tools.base import STEP_RAISED, Lane, StepContext, StepError, StepNotStarted, Tool, enter_step
from runwright.tools.secret_mask import Mask

_log = logging.getLogger(__name__)

_PACKAGE_FOLDER = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))) + os.sep


class Work(msgspec.Struct, frozen=True):
    """A step that is ready to be executed."""

    tool: Tool
    lane: Lane
    inputs: Any
    """An instance of `tool.inputs`, with expressions evaluated."""
    step: Step
    context: StepContext
    on_late_outcome: Callable[[Outcome], None] | None = None
    """Called with the outcome if the step ends after it was abandoned."""

    def may_start(self) -> bool:
        """Asked immediately before the tool is called, in any thread. If not, the outcome is NOT_STARTED."""
        return self.context.check_lease()


class Outcome(msgspec.Struct, frozen=True):
    """How an execution ended: with a result or with an error."""

    result: bytes | None = None
    """JSON, if the step completed."""
    error: ErrorInfo | None = None
    artifacts: tuple[ArtifactRef, ...] = ()
    """Artifacts that the step returned; those stored with `keep` are recorded elsewhere."""
    abandoned: bool = False
    """It did not stop when requested, and its result is no longer awaited."""

    def masked(self, mask: Mask | None) -> Outcome:
        """Return a copy without the secrets that were passed to the step."""
        if mask is None:
            return self
        result = None if self.result is None else mask.mask_json(self.result)
        error = None if self.error is None else mask.mask_error(self.error)
        return msgspec.structs.replace(self, result=result, error=error)


CANCELLED = Outcome(error=ErrorInfo("CANCELLED", "The step was cancelled.", retryable=False, category="cancelled"))
ABANDONED = Outcome(
    error=ErrorInfo(
        "CANCELLED",
        "The step was cancelled and did not stop. It was abandoned, and its result will be ignored.",
        retryable=False,
        category="cancelled",
    ),
    abandoned=True,
)


NOT_STARTED = Outcome()
"""The tool was not called, because the step may belong to another process. Compared by identity."""


def run_tool(work: Work) -> Outcome | Awaitable[Any]:
    """Call the tool in the current thread. If it returns an awaitable, return that: it is awaited on a loop."""
    enter_step(work.context)
    try:
        value = work.tool.run(work.inputs, work.context)
        if is_awaitable(value):
            return value
        return end_output(work, outcome_of_value(value))
    except BaseException as error:  # also SystemExit: a step may end itself, but not this process
        return end_output(work, outcome_of_error(error, work.context))


async def run_tool_on_loop(work: Work, awaitable: Awaitable[Any] | None = None) -> Outcome:
    """Call the tool on a loop, or await the awaitable that `run_tool` returned in a thread."""
    enter_step(work.context)
    try:
        value = work.tool.run(work.inputs, work.context) if awaitable is None else awaitable
        if is_awaitable(value):
            value = await value
        return end_output(work, outcome_of_value(value))
    except BaseException as error:
        return end_output(work, outcome_of_error(error, work.context))


def outcome_of_value(value: Any) -> Outcome:
    """Map the value that a tool returned to an outcome."""
    if not isinstance(value, StepOutput):
        return Outcome(encode_result(value))
    artifacts = tuple(value.artifact_refs)
    if value.status == "SUCCESS":
        return Outcome(encode_result(value.result), artifacts=artifacts)
    return Outcome(
        error=value.error or ErrorInfo("STEP_FAILED", "The step returned a failure.", True, "user"), artifacts=artifacts
    )


def end_output(work: Work, outcome: Outcome) -> Outcome:
    """Write the rest of the step's output. Precedes every outcome: clients that follow a run read up to its end."""
    try:
        work.context.end_output()
    except Exception as error:
        _log.warning("Flushing the output of step %r failed: %r", work.context.step_id, error)
    return outcome


def is_awaitable(value: Any) -> bool:
    return hasattr(cast("type[Any]", type(value)), "__await__")


def outcome_of_error(error: BaseException, context: StepContext) -> Outcome:
    """Map an exception of a tool to an outcome. Its traceback goes to the step's log."""
    if context.is_cancelled and _is_cancellation(error):
        return CANCELLED
    if isinstance(error, StepNotStarted):
        return NOT_STARTED
    try:
        if isinstance(error, StepError):
            if error.code == STEP_RAISED and error.__cause__ is not None:
                context.write("err", short_traceback(error.__cause__, context).encode(errors="replace"))
            return _outcome_of_step_error(error, context)
        if isinstance(error, RunwrightError):
            return _outcome_of_runwright_error(error, context)
        context.write("err", short_traceback(error, context).encode(errors="replace"))
        return Outcome(error=ErrorInfo(STEP_RAISED, describe(error, context), retryable=True, category="user"))
    except BaseException:  # out of memory, or an exception whose `__str__` raises
        return Outcome(error=ErrorInfo(STEP_RAISED, type(error).__name__, retryable=True, category="user"))


def _is_cancellation(error: BaseException) -> bool:
    """Return whether this is a CancelledError. Does not import asyncio, which an isolated step may never need."""
    asyncio = sys.modules.get("asyncio")
    return asyncio is not None and isinstance(error, asyncio.CancelledError)


def describe(error: BaseException, context: StepContext) -> str:
    text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return storable(text, context)


def storable(text: Any, context: StepContext) -> str:
    """Return text that the log accepts: without secrets, bounded, without NUL characters and surrogates."""
    masked = context.mask_text(str(text))[: context.max_text]
    return masked.encode(errors="replace").decode().replace("\0", "\\0")


def short_traceback(error: BaseException, context: StepContext) -> str:
    """Format a traceback without the frames of this package and without secrets; shortened to its end."""
    lines = traceback.format_exception(type(error), error, _user_frames(error.__traceback__))
    text = context.mask_text("".join(lines))
    return text if len(text) <= context.max_text else f"...{text[-context.max_text :]}"


def _user_frames(frames: TracebackType | None) -> TracebackType | None:
    first = frames
    while first is not None and first.tb_frame.f_code.co_filename.startswith(_PACKAGE_FOLDER):
        first = first.tb_next
    return first or frames


def _outcome_of_step_error(error: StepError, context: StepContext) -> Outcome:
    info = ErrorInfo(
        storable(error.code, context)[:100],
        storable(error.message, context),
        retryable=bool(error.retryable),
        category=storable(error.category, context)[:100],
    )
    try:
        facts = msgspec.json.decode(encode_result(error.facts))
    except RunwrightError:
        facts = None  # they are not JSON-serializable
    return Outcome(error=msgspec.structs.replace(info, facts=facts or None))


def _outcome_of_runwright_error(error: RunwrightError, context: StepContext) -> Outcome:
    retryable = error.code in STORE_CODES or error.code == ErrorCode.REFERENCE_NOT_AVAILABLE
    return Outcome(error=ErrorInfo(error.code, storable(error.detail, context), retryable=retryable, category="system"))
