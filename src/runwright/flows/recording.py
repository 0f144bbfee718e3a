"""A plan while it is being written down: the steps that were called so far."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from runwright.contract.errors import ErrorCode, RunwrightError
from runwright.core.expressions import mentioned_steps

from .values import Value, expression, written

if TYPE_CHECKING:
    from .decorated import Decorated

_current: ContextVar[Recording | None] = ContextVar("runwright_recording", default=None)


def current() -> Recording | None:
    """The plan that is being written down here, if one is."""
    return _current.get()


class Recording:
    def __init__(self) -> None:
        self.steps: list[dict[str, Any]] = []
        self.called: dict[str, Decorated[..., Any]] = {}  # by step
        self._conditions: list[str | bool] = []
        self._taken: set[str] = set()

    @contextmanager
    def open(self) -> Generator[None]:
        if _current.get() is not None:
            raise RunwrightError(ErrorCode.INVALID_PLAN_SCHEMA, "A plan cannot be written down inside another.")
        token = _current.set(self)
        try:
            yield
        finally:
            _current.reset(token)

    @contextmanager
    def when(self, condition: str | bool) -> Generator[None]:
        self._conditions.append(condition)
        try:
            yield
        finally:
            self._conditions.pop()

    def add(
        self,
        function: Decorated[..., Any],
        inputs: dict[str, Any],
        options: dict[str, Any],
        foreach: dict[str, Any] | None = None,
    ) -> Value:
        """Write a call down; gives back what stands for its result."""
        step_id = self._new_id(function.name, options.get("id"))
        self.called[step_id] = function
        fields: dict[str, Any] = {"id": step_id, function.kind: written(inputs), **_settings(options)}
        if foreach is not None:
            fields["foreach"] = {**foreach, "in": written(foreach["in"])}
        if self._conditions:
            fields["when"] = self._condition()
        after = dict.fromkeys(_step_of(value) for value in options.get("after") or ())
        mentioned = mentioned_steps([fields[function.kind], fields.get("foreach"), fields.get("when")]) or ()
        fields["dependsOn"] = list(dict.fromkeys([*(known for known in self._ids() if known in mentioned), *after]))
        self.steps.append(fields)
        return StepValue(step_id)

    def _ids(self) -> list[str]:
        return [step["id"] for step in self.steps]

    def _new_id(self, name: str, wanted: str | None) -> str:
        if wanted is not None:
            if wanted in self._taken:
                raise RunwrightError(ErrorCode.INVALID_PLAN_SCHEMA, f"There is a step {wanted!r} already.")
            self._taken.add(wanted)
            return wanted
        number, step_id = 1, name
        while step_id in self._taken:
            number += 1
            step_id = f"{name}_{number}"
        self._taken.add(step_id)
        return step_id

    def _condition(self) -> str | bool:
        if len(self._conditions) == 1:
            only = self._conditions[0]
            return only if isinstance(only, bool) else f"{{{{ {only} }}}}"
        parts = (str(each).lower() if isinstance(each, bool) else f"({each})" for each in self._conditions)
        return "{{ " + " and ".join(parts) + " }}"


class StepValue(Value):
    """What a step will give."""

    __slots__ = ("_step_id",)

    def __init__(self, step_id: str) -> None:
        path = f".{step_id}" if step_id.isidentifier() else f"[{expression(step_id)}]"
        super().__init__(f"steps{path}.result")
        self._step_id = step_id


def _step_of(value: Any) -> str:
    if not isinstance(value, StepValue):
        raise RunwrightError(ErrorCode.INVALID_STEP_SCHEMA, "`after` takes what steps gave back, in a list.")
    return value._step_id  # pyright: ignore[reportPrivateUsage]


def _settings(options: dict[str, Any]) -> dict[str, Any]:
    """A step's settings, by the names that plans have for them."""
    retry: dict[str, Any] = {}
    if "retries" in options:
        retry["maxAttempts"] = options["retries"] + 1
    for name, wire in (("backoff", "backoff"), ("initial", "initial"), ("longest", "max"), ("jitter", "jitter")):
        if name in options:
            retry[wire] = options[name]
    fields: dict[str, Any] = {"retry": retry} if retry else {}
    for name, wire in (("timeout", "timeout"), ("step_class", "class"), ("cancellable", "cancellable")):
        if options.get(name) is not None:
            fields[wire] = options[name]
    return fields


@contextmanager
def when(condition: Any) -> Generator[None]:
    """Steps called inside run only if the condition holds: `with rw.when(rows.count > 0):`"""
    plan = current()
    if plan is None:
        raise RunwrightError(ErrorCode.INVALID_PLAN_SCHEMA, "rw.when() belongs into a function with @rw.plan.")
    if not isinstance(condition, Value | bool):
        raise RunwrightError(
            ErrorCode.INVALID_PLAN_SCHEMA, "rw.when() takes a condition on what a step gave, such as rows.count > 0."
        )
    with plan.when(condition if isinstance(condition, bool) else expression(condition)):
        yield
