"""The shell step: runs a command."""

from __future__ import annotations

import os
import shlex
from typing import Any, cast

import msgspec

from runwright.contract.plan import Step

from .base import Lane, StepContext, StepError, invalid_input, is_unresolved

TAIL = 8 * 1024
"""Bytes at the end of the output that become part of the result."""

MARGIN = 64 * 1024
"""Bytes before the tail that are kept until it is masked: a secret may begin there."""

MAX_JSON_LINE = 1024 * 1024
"""Maximum bytes of a last line that is parsed as JSON."""

DEFAULT_SHELL = "/bin/sh"


class ShellInputs(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    command: str | list[Any]
    env: dict[str, Any] = {}
    cwd: str | None = None
    shell: str | None = None


class ShellTool:
    kind = "shell"
    inputs = ShellInputs
    main_input = "command"

    def check(self, inputs: dict[str, Any], step: Step) -> str | None:  # noqa: ARG002
        command, env, shell = inputs.get("command"), inputs.get("env", {}), inputs.get("shell")
        if isinstance(command, list) and shell is not None:
            return "A command that is a list runs without a shell: remove `shell`, or write the command as text."
        problem = None if is_unresolved(command) else _command_problem(command)
        return problem or (None if is_unresolved(env) else _env_problem(env))

    def lane(self, inputs: ShellInputs, step: Step) -> Lane:  # noqa: ARG002
        return Lane.TOOL_LOOP

    async def run(self, inputs: ShellInputs, context: StepContext) -> Any:
        from .child_process import ChildProcess, start_error

        argv = _argv(inputs)
        env = _environment(inputs.env, context)
        out, err = _Tail(), _Tail()

        def write(stream: str, data: bytes) -> None:
            (err if stream == "err" else out).add(data)
            context.write(stream, data)

        try:
            process = ChildProcess(argv, env=env, cwd=inputs.cwd, write=write)
        except (OSError, ValueError) as error:
            raise start_error(error, argv, inputs.cwd) from None
        status = await process.finish(lambda: context.grace)
        if status != 0:
            raise _failed(status, context.mask_text(err.last_line()))
        return _result(out, context)


class _Tail:
    """The end of a stream: its last bytes, and its last line if that is longer."""

    def __init__(self) -> None:
        self._bytes = bytearray()
        self._size = 0

    @property
    def is_truncated(self) -> bool:
        return self._size > TAIL

    def add(self, data: bytes) -> None:
        self._bytes += data
        self._size += len(data)
        if len(self._bytes) <= 2 * TAIL + MARGIN:
            return
        body = len(self._bytes) - (1 if self._bytes.endswith(b"\n") else 0)
        line = self._bytes.rfind(b"\n", 0, body) + 1
        if body - line > MAX_JSON_LINE:
            line = len(self._bytes)
        del self._bytes[: min(line, len(self._bytes) - TAIL - MARGIN)]

    def last_line(self) -> str:
        lines = bytes(self._bytes).rstrip().rsplit(b"\n", 1)
        return _decode(lines[-1])

    def text(self, context: StepContext) -> str:
        masked = context.mask_text(_decode(bytes(self._bytes))).encode()
        tail = masked[-TAIL:]
        if len(masked) > TAIL:
            tail = tail.lstrip(bytes(range(0x80, 0xC0)))  # remaining bytes of a split character
        return tail.decode()


def _result(out: _Tail, context: StepContext) -> Any:
    line = out.last_line().strip()
    if line.startswith(("{", "[")):
        try:
            return msgspec.json.decode(line)
        except (msgspec.DecodeError, RecursionError):
            pass
    return {"exitCode": 0, "stdout": out.text(context), **({"truncated": True} if out.is_truncated else {})}


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


def _decode(data: bytes) -> str:
    """Decode output to text that can be stored, with replacements for invalid bytes and NUL."""
    return data.decode(errors="replace").replace("\0", "\ufffd")
