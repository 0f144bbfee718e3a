"""The Tool protocol: one kind of step. A tool knows nothing of runs, logs or plans."""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from enum import StrEnum
from hashlib import sha256
from pathlib import Path
from typing import Any, Protocol, Self, runtime_checkable

import msgspec

from runwright.contract.errors import ErrorCode, RunwrightError
from runwright.contract.plan import Step
from runwright.contract.refs import ArtifactRef


class Lane(StrEnum):
    """Where a tool's code runs."""

    INLINE = "inline"  # immediately, in the driver: for tools that take no time
    TIMER = "timer"  # no code runs: the driver completes the step when it is due
    ASK = "ask"  # no code runs: the driver completes the step on a decision or an external event
    RUN = "run"  # the step is a child run; the driver completes the step when that run ends
    TOOL_LOOP = "tool loop"  # a coroutine of ours, on an event loop that no user code can block
    STEP_LOOP = "step loop"  # a coroutine of the user, on the event loop for user code
    THREAD = "thread"
    PROCESS = "process"


STEP_RAISED = "STEP_RAISED"
"""Error code of a step whose code raised an exception other than StepError."""


class StepError(Exception):
    """Raised by a step to specify its error. Any other exception counts as retryable."""

    def __init__(
        self, code: str, message: str, *, retryable: bool = True, category: str = "user", **facts: Any
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.retryable = retryable
        self.category = category
        self.facts = facts


def invalid_input(detail: str) -> StepError:
    """Create the error of inputs that are invalid after evaluation."""
    return StepError("INVALID_INPUT", detail, retryable=False)


class StepArtifacts(Protocol):
    """Access of one step to the artifact store."""

    def store(self, source: Path | bytes, kind: str) -> ArtifactRef: ...

    def fetch(self, ref: ArtifactRef | str, target: Path) -> int: ...


MAX_TEXT_LENGTH = 2000

INPUTS_ARE_LOGGED = "The inputs of this step are stored in the log, so they must hold no secret."


_BOOT_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def _unchanged(text: str) -> str:
    """Default of `mask_text`."""
    return text


def _forever() -> float:
    return math.inf


def _do_nothing() -> None:
    """Default of `end_output`."""


class StepNotStarted(Exception):
    """The lease expired before the step started. It was not executed, and may belong to another process."""


class StepContext:
    """Identity and services of a running step. Returned by `rw.current_step()`."""

    def __init__(
        self,
        *,
        run_id: str,
        step_id: str,
        attempt: int,
        engine_attempt: int,
        restored: Any = None,
        write: Callable[[str, bytes], None],
        save: Callable[[Any], None],
        end_output: Callable[[], None] = _do_nothing,
        secrets: Mapping[str, str] | None = None,
        artifacts: StepArtifacts | None = None,
        iteration: dict[str, Any] | None = None,
        workload: dict[str, Any] | None = None,
        resolve: Callable[[Any], Any] | None = None,
        mask_text: Callable[[str], str] | None = None,
        working_directory: str | None = None,
        lease_remaining: Callable[[], float] | None = None,
    ) -> None:
        self.run_id = run_id
        self.step_id = step_id  # an iteration of a foreach step: `step[3]`
        self.attempt = attempt
        self.engine_attempt = engine_attempt
        self.restored = restored  # the last checkpoint, if the step is re-executed
        self.grace = 5.0  # seconds between the request to stop and being killed
        self.write = write  # (stream, bytes): output for the step's log
        self.end_output = end_output  # called where the step ran, before its end is reported
        self.secrets: Mapping[str, str] = secrets or {}  # the secrets that the step names, by name
        self.iteration = iteration  # of a playbook loop, as its expressions see it
        self.workload = workload  # the parameters of the run, if the step is a child run
        self.resolve = resolve  # in playbooks: loads a task's result by its reference
        self.mask_text = mask_text or _unchanged  # hides secrets; to be called before a text is shortened
        self.working_directory = working_directory or os.curdir  # of the run, also after its recovery elsewhere
        self.lease_end = math.inf  # the step must not start later, in seconds since the machine was started
        self._lease_remaining = lease_remaining or _forever
        self.max_text = MAX_TEXT_LENGTH  # characters of an error message or a traceback
        self._save = save
        self._artifacts = artifacts

    def check_lease(self) -> bool:
        """Whether the step may start now: it certainly belongs to this process. Sets `lease_end`. Thread-safe."""
        now = time.clock_gettime(_BOOT_CLOCK)  # first: this process may be stopped between the two calls
        self.lease_end = now + self._lease_remaining()
        return self.lease_end >= now

    @property
    def cancelled(self) -> threading.Event:
        """Set when the step should stop. Created on first access, because most steps never use it."""
        event: threading.Event | None = self.__dict__.get("_cancelled")
        return self.__dict__.setdefault("_cancelled", threading.Event()) if event is None else event

    @property
    def listens(self) -> bool:
        """Whether `cancelled` was ever accessed. A step that never did cannot stop by itself."""
        return "_cancelled" in self.__dict__

    @property
    def is_cancelled(self) -> bool:
        event: threading.Event | None = self.__dict__.get("_cancelled")
        return event is not None and event.is_set()

    @property
    def idempotency_token(self) -> str:
        """A token that is the same when the attempt is repeated after a crash."""
        return sha256(f"{self.run_id}|{self.step_id}|{self.attempt}".encode()).hexdigest()

    def checkpoint(self, state: Any) -> None:
        """Persist a checkpoint. Durable on return; passed as `restored` if the step is re-executed."""
        self._save(state)

    def keep(self, source: str | Path | bytes, kind: str = "file") -> ArtifactRef:  # public name; prose: quoted
        """Store a file, or bytes, as an artifact of this step. Other steps can fetch it by the returned reference."""
        return self._artifact_access().store(source if isinstance(source, bytes) else Path(source), kind)

    def fetch(self, ref: ArtifactRef | Mapping[str, Any] | str, target: str | Path) -> int:
        """Write an artifact to a file, verified against its hash, and return its size."""
        artifact = msgspec.convert(ref, ArtifactRef) if isinstance(ref, Mapping) else ref
        return self._artifact_access().fetch(artifact, Path(target))

    def _artifact_access(self) -> StepArtifacts:
        if self._artifacts is None:
            raise RunwrightError(ErrorCode.CAPABILITY_NOT_SUPPORTED, "No artifact store is configured.")
        return self._artifacts

    def path(self, relative: str) -> str:
        """Return a path of the step's inputs, which is relative to the working directory of the run."""
        return os.path.join(self.working_directory, relative)

    def environment(self) -> dict[str, str]:
        """Return the environment variables of every process of the step."""
        return {
            "RUNWRIGHT_RUN_ID": self.run_id,
            "RUNWRIGHT_STEP_ID": self.step_id,
            "RUNWRIGHT_ATTEMPT": str(self.attempt),
            "RUNWRIGHT_IDEMPOTENCY_TOKEN": self.idempotency_token,
            **self.secrets,
        }


_current: ContextVar[StepContext | None] = ContextVar("runwright_step", default=None)


def current_step() -> StepContext:
    """Return the step that is running this code. Raises INVALID_ARGUMENT outside of a step."""
    context = _current.get()
    if context is None:
        raise RunwrightError(
            ErrorCode.INVALID_ARGUMENT, "No step is running. Call current_step() from the code of a step."
        )
    return context


def running_step() -> StepContext | None:
    """Return the step that is running this code, None outside of a step."""
    return _current.get()


def enter_step(context: StepContext | None) -> None:
    _current.set(context)


def is_unresolved(value: Any) -> bool:
    """Whether an input is only known during the run: it contains an expression or names a secret."""
    if isinstance(value, str):
        return "{{" in value
    return isinstance(value, dict) and set(value) == {"secret"}  # pyright: ignore[reportUnknownArgumentType]


class ToolProblem(str):
    """A problem of a step's inputs with an error code of its own."""

    __slots__ = ("code",)

    def __new__(cls, code: str, sentence: str) -> Self:
        problem = super().__new__(cls, sentence)
        problem.code = code
        return problem


class Tool(Protocol):
    """A kind of step. `inputs` is the type of its `with`, before and after the evaluation of expressions."""

    @property
    def kind(self) -> str: ...

    @property
    def inputs(self) -> type[msgspec.Struct]: ...

    @property
    def main_input(self) -> str | None:
        """The input that `<kind>: value` sets if the value is not a mapping."""
        ...

    def check(self, inputs: dict[str, Any], step: Step) -> str | None:
        """Return a sentence about a problem of these inputs beyond their types, None if there is none.

        Called before anything runs; values may still be expressions.
        """
        ...

    def lane(self, inputs: Any, step: Step) -> Lane:
        """Return where the step runs, given its evaluated inputs."""
        ...

    def run(self, inputs: Any, context: StepContext) -> Any:
        """Execute the step and return its result: a coroutine on the loop lanes, a plain call elsewhere."""
        ...


@runtime_checkable
class TimerTool(Protocol):
    """A tool on Lane.TIMER."""

    def due_at(self, inputs: Any, now_micros: int) -> int:
        """Return when a step that starts now is complete, in microseconds since 1970."""
        ...


@runtime_checkable
class ApprovalTool(Protocol):
    """A tool on Lane.ASK: its step waits for a decision or an external event."""

    def question(self, inputs: Any, expires_at: str | None) -> tuple[str, msgspec.Struct]:
        """Return type and payload of the event that records what the step waits for."""
        ...
