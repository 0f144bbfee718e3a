"""What a tool is: a kind of step. One file each; a tool knows nothing of runs, logs or plans."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from enum import StrEnum
from hashlib import sha256
from pathlib import Path
from typing import Any, Protocol

import msgspec

from runwright.contract.errors import ErrorCode, RunwrightError
from runwright.contract.plan import Step
from runwright.contract.refs import ArtifactRef


class Lane(StrEnum):
    """Where a tool's code runs."""

    INLINE = "inline"  # at once, in the driver: for what takes no time
    TIMER = "timer"  # nowhere: the driver completes the step when its time has come
    ASK = "ask"  # nowhere: the driver completes the step when somebody answers, or an event comes
    RUN = "run"  # it is a run of its own; the driver completes the step when that has ended
    TOOL_LOOP = "tool loop"  # a coroutine of ours, on a loop that no user code can block
    STEP_LOOP = "step loop"  # a coroutine of the user's, on the loop for such
    THREAD = "thread"
    PROCESS = "process"


RAISED = "STEP_RAISED"
"""The code of a step whose code raised something of its own."""


class StepError(Exception):
    """Raised by a step to say how it failed. Any other exception counts as retryable."""

    def __init__(
        self, code: str, message: str, *, retryable: bool = True, category: str = "user", **facts: Any
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.retryable = retryable
        self.category = category
        self.facts = facts


class ArtifactShelf(Protocol):
    """Where a step's artifacts go, and where it finds those of others."""

    def keep(self, source: Path | bytes, kind: str) -> ArtifactRef: ...

    def fetch(self, ref: ArtifactRef | str, target: Path) -> int: ...


def _nothing() -> None:
    """Nothing is to be done."""


class StepContext:
    """What a running step knows of itself, and what it can ask for. `rw.current_step()` gives it."""

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
        end_output: Callable[[], None] = _nothing,
        secrets: Mapping[str, str] | None = None,
        artifacts: ArtifactShelf | None = None,
        iteration: dict[str, Any] | None = None,
        workload: dict[str, Any] | None = None,
        resolve: Callable[[Any], Any] | None = None,
    ) -> None:
        self.run_id = run_id
        self.step_id = step_id  # an iteration of a foreach step: `step[3]`
        self.attempt = attempt
        self.engine_attempt = engine_attempt
        self.restored = restored  # what this step last handed to `checkpoint`, if it ran before
        self.grace = 5.0  # seconds between being asked to stop and being stopped by force
        self.write = write  # (stream, bytes): output for the step's log
        self.end_output = end_output  # called where the step ran, before anybody is told that it ended
        self.secrets: Mapping[str, str] = secrets or {}  # those that the step names, by name
        self.iteration = iteration  # of a playbook's loop, as its expressions see it
        self.workload = workload  # the parameters of the run, where the step is a run itself
        self.resolve = resolve  # of a playbook: from the reference of a task's result to the result
        self._save = save
        self._artifacts = artifacts

    @property
    def cancelled(self) -> threading.Event:
        """Set when the step should stop. Made when it is first asked for: most steps end without."""
        event: threading.Event | None = self.__dict__.get("_cancelled")
        return self.__dict__.setdefault("_cancelled", threading.Event()) if event is None else event

    @property
    def listens(self) -> bool:
        """Whether anybody has asked for `cancelled`. A step that never did cannot stop by itself."""
        return "_cancelled" in self.__dict__

    @property
    def is_cancelled(self) -> bool:
        event: threading.Event | None = self.__dict__.get("_cancelled")
        return event is not None and event.is_set()

    @property
    def idempotency_token(self) -> str:
        """The same again when the attempt is run anew after a crash."""
        return sha256(f"{self.run_id}|{self.step_id}|{self.attempt}".encode()).hexdigest()

    def checkpoint(self, state: Any) -> None:
        """Keep a mark of progress. Once this returns it is durable, and `restored` if the step runs again."""
        self._save(state)

    def keep(self, source: str | Path | bytes, kind: str = "file") -> ArtifactRef:
        """Keep a file, or bytes, as an artifact of this step. Give the reference back, and others can fetch it."""
        return self._shelf().keep(source if isinstance(source, bytes) else Path(source), kind)

    def fetch(self, ref: ArtifactRef | Mapping[str, Any] | str, target: str | Path) -> int:
        """Write an artifact to a file, checked against its hash; gives back its size."""
        wanted = msgspec.convert(ref, ArtifactRef) if isinstance(ref, Mapping) else ref
        return self._shelf().fetch(wanted, Path(target))

    def _shelf(self) -> ArtifactShelf:
        if self._artifacts is None:
            raise RunwrightError(ErrorCode.CAPABILITY_NOT_SUPPORTED, "There is no store for artifacts here.")
        return self._artifacts

    def environment(self) -> dict[str, str]:
        """What every process that belongs to the step is given."""
        return {
            "RUNWRIGHT_RUN_ID": self.run_id,
            "RUNWRIGHT_STEP_ID": self.step_id,
            "RUNWRIGHT_ATTEMPT": str(self.attempt),
            "RUNWRIGHT_IDEMPOTENCY_TOKEN": self.idempotency_token,
            **self.secrets,
        }


_current: ContextVar[StepContext | None] = ContextVar("runwright_step", default=None)


def current_step() -> StepContext:
    """The step that this code runs in."""
    context = _current.get()
    if context is None:
        raise RunwrightError(ErrorCode.INVALID_ARGUMENT, "No step is running here. Call this from a step's own code.")
    return context


def running_step() -> StepContext | None:
    """The step that this code runs in, if it runs in one."""
    return _current.get()


def enter_step(context: StepContext | None) -> None:
    _current.set(context)


def is_open(value: Any) -> bool:
    """Whether an input is only known once the run is under way: it holds an expression, or names a secret."""
    if isinstance(value, str):
        return "{{" in value
    return isinstance(value, dict) and set(value) == {"secret"}  # pyright: ignore[reportUnknownArgumentType]


class Tool(Protocol):
    """A kind of step. `inputs` is the type that its `with` must fit, before and after expressions are filled in."""

    @property
    def kind(self) -> str: ...

    @property
    def inputs(self) -> type[msgspec.Struct]: ...

    @property
    def main_input(self) -> str | None:
        """The input that `<kind>: value` sets where the value is not a mapping."""
        ...

    def check(self, inputs: dict[str, Any], step: Step) -> str | None:
        """What is wrong with these inputs beyond their types, as a sentence; asked before anything runs.
        Values may still be expressions."""
        ...

    def lane(self, inputs: Any, step: Step) -> Lane:
        """Where it runs, given its filled-in inputs."""
        ...

    def run(self, inputs: Any, context: StepContext) -> Any:
        """Do it: a coroutine on a loop, a plain call elsewhere. What it gives back is the step's result."""
        ...
