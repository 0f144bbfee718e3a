"""The shell step: runs a command."""

from __future__ import annotations

import os
import shlex
from typing import Any, cast

import msgspec

from runwright.contract.plan import Step

from .base import Lane, StepContext, StepError, invalid_input, is_unresolved
from .shell_text import unquoted_expression

MAX_OUTPUT = 16 * 1024 * 1024
"""Default of the bytes of output that can become the result."""

ERROR_BYTES = 64 * 1024
"""Bytes at the end of standard error that are kept, for its last line."""

_SLACK = 1024 * 1024  # bytes above a limit before the beginning is dropped
_WHITE_SPACE = b" \t\n\r\x0b\x0c"

DEFAULT_SHELL = "/bin/sh"


class ShellInputs(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    command: str | list[Any]
    env: dict[str, Any] = {}
    cwd: str | None = None
    shell: str | None = None
    unquoted: bool = False
    """Expressions in the text of the command need not end in `| quote`: their values may be code."""


class ShellTool:
    kind = "shell"
    inputs = ShellInputs
    main_input = "command"

    def __init__(self, max_output: int = MAX_OUTPUT) -> None:
        self._max_output = max_output

    def check(self, inputs: dict[str, Any], step: Step) -> str | None:  # noqa: ARG002
        command, env, shell = inputs.get("command"), inputs.get("env", {}), inputs.get("shell")
        if isinstance(command, list) and shell is not None:
            return "A command that is a list runs without a shell: remove `shell`, or write the command as text."
        if isinstance(command, str) and inputs.get("unquoted") is not True:
            problem = unquoted_expression(command, shell if isinstance(shell, str) else None)
            if problem is not None:
                return problem
        problem = None if is_unresolved(command) else _command_problem(command)
        return problem or (None if is_unresolved(env) else _env_problem(env))

    def lane(self, inputs: ShellInputs, step: Step) -> Lane:  # noqa: ARG002
        return Lane.TOOL_LOOP

    async def run(self, inputs: ShellInputs, context: StepContext) -> Any:
        from .child_process import ChildProcess, start_error

        argv = _argv(inputs)
        env = _environment(inputs.env, context)
        folder = context.path(inputs.cwd or os.curdir)
        out, err = _StreamOutput(self._max_output), _StreamOutput(ERROR_BYTES)

        def write(stream: str, data: bytes) -> None:
            (err if stream == "err" else out).add(data)
            context.write(stream, data)

        try:
            process = ChildProcess(argv, env=env, cwd=folder, write=write, lease_end=context.lease_end)
        except (OSError, ValueError) as error:
            raise start_error(error, argv, folder) from None
        status = await process.finish(lambda: context.grace)
        if status != 0:
            raise _failed(status, context.mask_text(_decode(err.last_line())))
        return _result(out, self._max_output)


class _StreamOutput:
    """The output of a stream: all of it up to a limit, beyond that its end."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._bytes = bytearray()
        self.size = 0

    @property
    def is_complete(self) -> bool:
        return self.size <= self._limit

    def add(self, data: bytes) -> None:
        self._bytes += data
        self.size += len(data)
        if len(self._bytes) > self._limit + _SLACK:
            del self._bytes[: -self._limit]

    def last_line(self) -> bytes:
        """The last line that is not empty, without white space around it. Copies nothing else: it may be long."""
        end = len(self._bytes)
        while end and self._bytes[end - 1] in _WHITE_SPACE:
            end -= 1
        start = self._bytes.rfind(b"\n", 0, end) + 1
        return bytes(memoryview(self._bytes)[start:end]).lstrip()

    def text(self) -> str:
        return _decode(self._bytes)


def _result(out: _StreamOutput, limit: int) -> Any:
    """The JSON object or list on the last line; else all output."""
    line = out.last_line()
    if line.startswith((b"{", b"[")):
        try:
            return msgspec.json.decode(_decode(line))
        except (msgspec.DecodeError, RecursionError):
            pass
    if not out.is_complete:
        raise StepError(
            "OUTPUT_TOO_LARGE",
            f"The command wrote {out.size:,} bytes to its standard output; a result has at most {limit:,} ([limits] "
            "stepOutput). Write them to a file, or print a JSON object or list as the last line.",
            retryable=False,
        )
    return {"exitCode": 0, "stdout": out.text()}


def _failed(status: int, last_line: str) -> StepError:
    from .child_process import signal_name

    outcome = f"exit code {status}" if status > 0 else f"killed by {signal_name(-status)}"
    message = f"{outcome}: {last_line[:500]}" if last_line else outcome
    return StepError("EXIT_STATUS", message, exitCode=status if status > 0 else 128 - status)


def _argv(inputs: ShellInputs) -> list[str]:
    problem = _command_problem(inputs.command)
    if problem:
        raise invalid_input(problem)
    if isinstance(inputs.command, list):
        return [_to_text(part) for part in inputs.command]
    try:
        shell = shlex.split(inputs.shell or DEFAULT_SHELL)
    except ValueError as error:
        raise invalid_input(f"Invalid `shell`: {error}.") from None
    return [*(shell or [DEFAULT_SHELL]), "-c", inputs.command]


def _command_problem(command: Any) -> str | None:
    if isinstance(command, str):
        if not command.strip():
            return "`command` must not be empty."
        return "`command` contains a NUL character." if "\0" in command else None
    if not isinstance(command, list) or not command:
        return "`command` must be text for a shell, or a list of a program and its arguments."
    for part in cast("list[Any]", command):
        if not isinstance(part, str | int | float) and not is_unresolved(part):
            return "Arguments in `command` must be text or numbers."
    return None


def _env_problem(env: dict[str, Any]) -> str | None:
    for name, value in env.items():
        if not name or "=" in name or "\0" in name:
            return f"Invalid environment variable name {name!r}."
        if not isinstance(value, str | int | float) and not is_unresolved(value):
            return f"env.{name} must be text or a number."
        if isinstance(value, str) and "\0" in value:
            return f"env.{name} contains a NUL character."
    return None


def _environment(env: dict[str, Any], context: StepContext) -> dict[str, str]:
    problem = _env_problem(env)
    if problem:
        raise invalid_input(problem)
    return {**os.environ, **{name: _to_text(value) for name, value in env.items()}, **context.environment()}


def _to_text(value: Any) -> str:
    """Return a value as text, booleans as `true` and `false`."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _decode(data: bytes | bytearray) -> str:
    """Decode output to text that can be stored, with replacements for invalid bytes and NUL."""
    return data.decode(errors="replace").replace("\0", "\ufffd")
