"""A step that runs a command."""

from __future__ import annotations

import os
import shlex
from typing import Any, cast

import msgspec

from runwright.contract.plan import Step

from .base import Lane, StepContext, StepError, is_open

TAIL = 8 * 1024
"""How much of the output becomes part of the result, in bytes."""

LONGEST_LINE = 1024 * 1024
"""How long a last line may be to be read as JSON."""

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
            return "A command that is a list is run without a shell: leave `shell` out, or write the command as text."
        trouble = None if is_open(command) else _command_trouble(command)
        return trouble or (None if is_open(env) else _env_trouble(env))

    def lane(self, inputs: ShellInputs, step: Step) -> Lane:  # noqa: ARG002
        return Lane.TOOL_LOOP

    async def run(self, inputs: ShellInputs, context: StepContext) -> Any:
        from .process import ChildProcess, start_trouble

        argv = _argv(inputs)
        env = _environment(inputs.env, context)
        out, err = _Tail(), _Tail()

        def write(stream: str, data: bytes) -> None:
            (err if stream == "err" else out).add(data)
            context.write(stream, data)

        try:
            process = ChildProcess(argv, env=env, cwd=inputs.cwd, write=write)
        except (OSError, ValueError) as error:
            raise start_trouble(error, argv, inputs.cwd) from None
        status = await process.finish(lambda: context.grace)
        if status != 0:
            raise _failed(status, err.last_line())
        return _result(out)


class _Tail:
    """The end of a stream: its last bytes, and its last line where that is longer."""

    def __init__(self) -> None:
        self._kept = bytearray()
        self._size = 0

    @property
    def is_cut(self) -> bool:
        return self._size > TAIL

    def add(self, data: bytes) -> None:
        self._kept += data
        self._size += len(data)
        if len(self._kept) <= 2 * TAIL:
            return
        body = len(self._kept) - (1 if self._kept.endswith(b"\n") else 0)
        line = self._kept.rfind(b"\n", 0, body) + 1
        if body - line > LONGEST_LINE:
            line = len(self._kept)
        del self._kept[: min(line, len(self._kept) - TAIL)]

    def last_line(self) -> str:
        lines = bytes(self._kept).rstrip().rsplit(b"\n", 1)
        return _text(lines[-1])

    def text(self) -> str:
        tail = bytes(self._kept[-TAIL:])
        if len(self._kept) > TAIL:
            tail = tail.lstrip(bytes(range(0x80, 0xC0)))  # the rest of a character that was cut
        return _text(tail)


def _result(out: _Tail) -> Any:
    line = out.last_line().strip()
    if line.startswith(("{", "[")):
        try:
            return msgspec.json.decode(line)
        except (msgspec.DecodeError, RecursionError):
            pass
    return {"exitCode": 0, "stdout": out.text(), **({"truncated": True} if out.is_cut else {})}


def _failed(status: int, last_line: str) -> StepError:
    from .process import signal_name

    what = f"exit code {status}" if status > 0 else f"killed by {signal_name(-status)}"
    message = f"{what}: {last_line[:500]}" if last_line else what
    return StepError("EXIT_STATUS", message, exitCode=status if status > 0 else 128 - status)


def _argv(inputs: ShellInputs) -> list[str]:
    trouble = _command_trouble(inputs.command)
    if trouble:
        raise _bad(trouble)
    if isinstance(inputs.command, list):
        return [_word(part) for part in inputs.command]
    try:
        shell = shlex.split(inputs.shell or DEFAULT_SHELL)
    except ValueError as error:
        raise _bad(f"shell: {error}.") from None
    return [*(shell or [DEFAULT_SHELL]), "-c", inputs.command]


def _command_trouble(command: Any) -> str | None:
    if isinstance(command, str):
        if not command.strip():
            return "`command` is empty."
        return "`command` holds a NUL character." if "\0" in command else None
    if not isinstance(command, list) or not command:
        return "`command` is text for a shell, or a list: a program and its arguments."
    for part in cast("list[Any]", command):
        if not isinstance(part, str | int | float) and not is_open(part):
            return "A program's arguments are texts and numbers."
    return None


def _env_trouble(env: dict[str, Any]) -> str | None:
    for name, value in env.items():
        if not name or "=" in name or "\0" in name:
            return f"{name!r} cannot be the name of an environment variable."
        if not isinstance(value, str | int | float) and not is_open(value):
            return f"env.{name} is to be text or a number."
        if isinstance(value, str) and "\0" in value:
            return f"env.{name} holds a NUL character."
    return None


def _environment(env: dict[str, Any], context: StepContext) -> dict[str, str]:
    trouble = _env_trouble(env)
    if trouble:
        raise _bad(trouble)
    return {**os.environ, **{name: _word(value) for name, value in env.items()}, **context.environment()}


def _word(value: Any) -> str:
    """A number or a truth value as people write it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _text(data: bytes) -> str:
    """Output as text that can be stored, whatever bytes it is made of."""
    return data.decode(errors="replace").replace("\0", "\ufffd")


def _bad(detail: str) -> StepError:
    return StepError("INVALID_INPUT", detail, retryable=False)
