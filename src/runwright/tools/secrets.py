"""Secrets: plans name them, providers know them, and only the step that asked for one ever sees it."""

from __future__ import annotations

import base64
import json
import os
import stat
import subprocess
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, cast
from urllib.parse import quote

import msgspec

from runwright.contract.errors import ErrorCode, RunwrightError
from runwright.contract.refs import DEFAULT_TENANT, ErrorInfo

MASK = "***"
_COMMAND_SECONDS = 30.0


class SecretContext(msgspec.Struct, frozen=True):
    """For whom a secret is wanted."""

    tenant_id: str = DEFAULT_TENANT
    environment_id: str = "default"


class SecretsProvider(Protocol):
    def resolve(self, refs: Sequence[str], context: SecretContext) -> dict[str, str]:
        """The values of these secrets. SECRET_NOT_AVAILABLE names one that cannot be had. May take its time."""
        ...

    def missing(self, refs: Sequence[str], context: SecretContext) -> list[str]:
        """Those that surely cannot be had; asked before a run starts, so it must be quick."""
        ...


class EnvironmentSecrets:
    """A secret is the environment variable of its name."""

    def resolve(self, refs: Sequence[str], context: SecretContext) -> dict[str, str]:
        for name in self.missing(refs, context):
            raise not_available(name, f"Set the environment variable {name}.")
        return {name: os.environ[name] for name in refs}

    def missing(self, refs: Sequence[str], context: SecretContext) -> list[str]:  # noqa: ARG002
        return [name for name in refs if name not in os.environ]


class FileSecrets:
    """A TOML file of names and values, which nobody but its owner may read."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def resolve(self, refs: Sequence[str], context: SecretContext) -> dict[str, str]:
        known = self._read(context)
        for name in refs:
            if name not in known:
                raise not_available(name, f"Add it to {self._path}.")
        return {name: known[name] for name in refs}

    def missing(self, refs: Sequence[str], context: SecretContext) -> list[str]:
        known = self._read(context)
        return [name for name in refs if name not in known]

    def _read(self, context: SecretContext) -> dict[str, str]:
        """Names at the top are for everybody; a table with an environment's name goes before them."""
        try:
            with self._path.open("rb") as file:
                mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
                if mode & 0o077:
                    raise RunwrightError(
                        ErrorCode.SECRET_NOT_AVAILABLE,
                        f"{self._path} can be read by others (mode {mode:03o}). Run: chmod 600 {self._path}",
                    )
                content = tomllib.load(file)
        except (OSError, UnicodeError, tomllib.TOMLDecodeError) as error:
            reason = getattr(error, "strerror", None) or type(error).__name__  # what it says may quote a secret
            raise RunwrightError(
                ErrorCode.SECRET_NOT_AVAILABLE, f"The secrets in {self._path} cannot be read: {reason}."
            ) from None
        own: Any = content.get(context.environment_id)
        chosen = {**content, **(cast("dict[str, Any]", own) if isinstance(own, dict) else {})}
        return {name: value for name, value in chosen.items() if isinstance(value, str)}


class CommandSecrets:
    """A program that prints a secret when it is called with its name, such as the client of a vault."""

    def __init__(self, command: Sequence[str]) -> None:
        self._command = list(command)

    def resolve(self, refs: Sequence[str], context: SecretContext) -> dict[str, str]:
        return {name: self._ask(name, context) for name in refs}

    def missing(self, refs: Sequence[str], context: SecretContext) -> list[str]:  # noqa: ARG002
        return []

    def _ask(self, name: str, context: SecretContext) -> str:
        environment = {
            **os.environ,
            "RUNWRIGHT_TENANT_ID": context.tenant_id,
            "RUNWRIGHT_ENVIRONMENT_ID": context.environment_id,
        }
        try:
            done = subprocess.run(  # noqa: S603 - the command is the user's own
                [*self._command, name],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=_COMMAND_SECONDS,
                check=False,
                env=environment,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise not_available(name, f"{self._command[0]} failed: {type(error).__name__}.") from None
        if done.returncode != 0:
            raise not_available(name, f"{self._command[0]} ended with exit code {done.returncode}.")
        return done.stdout.decode(errors="replace").removesuffix("\n").removesuffix("\r")


def not_available(name: str, advice: str) -> RunwrightError:
    return RunwrightError(ErrorCode.SECRET_NOT_AVAILABLE, f"The secret {name!r} cannot be had. {advice}")


def provider_from(settings: Mapping[str, Any]) -> SecretsProvider:
    """The provider that `[secrets]` in runwright.toml asks for: env, file, command, or the name of a plug-in."""
    kind = settings.get("provider", "env")
    if kind == "env":
        return EnvironmentSecrets()
    if kind == "file":
        return FileSecrets(Path(str(settings.get("file", "secrets.toml"))).expanduser().absolute())
    if kind == "command":
        command: Any = settings.get("command")
        if not isinstance(command, list) or not command:
            raise RunwrightError(ErrorCode.INVALID_ARGUMENT, '[secrets] command is a list, such as ["vault", "get"].')
        return CommandSecrets([str(word) for word in cast("list[Any]", command)])
    return _plug_in(str(kind), settings)


def _plug_in(kind: str, settings: Mapping[str, Any]) -> SecretsProvider:
    from importlib.metadata import entry_points

    for point in entry_points(group="runwright.secrets", name=kind):
        return point.load()(dict(settings))
    raise RunwrightError(
        ErrorCode.INVALID_ARGUMENT, f"[secrets] provider is env, file, command or an installed one; {kind!r} is none."
    )


class Mask:
    """Hides the values of secrets in whatever a step gives out."""

    def __init__(self, values: Iterable[str]) -> None:
        hidden: set[str] = set()
        for value in values:
            for part in {value, *(line for line in value.splitlines() if len(line) > 3)}:
                if part:
                    hidden |= {part, json.dumps(part)[1:-1], json.dumps(part, ensure_ascii=False)[1:-1]}
                    hidden |= {quote(part), quote(part, safe=""), base64.b64encode(part.encode()).decode()}
        self._texts = sorted(hidden, key=len, reverse=True)
        self._data = [text.encode() for text in self._texts]

    def data(self, data: bytes) -> bytes:
        for hidden in self._data:
            if hidden in data:
                data = data.replace(hidden, MASK.encode())
        return data

    def text(self, text: str) -> str:
        for hidden in self._texts:
            if hidden in text:
                text = text.replace(hidden, MASK)
        return text

    def json(self, body: bytes) -> bytes:
        """JSON stays JSON: texts are masked, and a number that is a secret becomes a text."""
        if not any(hidden in body for hidden in self._data):
            return body
        return msgspec.json.encode(self._value(msgspec.json.decode(body)))

    def error(self, error: ErrorInfo) -> ErrorInfo:
        """What it says is masked, and not what its fields are called."""
        said = (None if text is None else self.text(text) for text in (error.code, error.message, error.category))
        code, message, category = said
        return ErrorInfo(code, message, error.retryable, category, self._value(error.facts))

    def _value(self, value: Any) -> Any:
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            return {self.text(str(key)): self._value(item) for key, item in cast("dict[Any, Any]", value).items()}
        if isinstance(value, list):
            return [self._value(item) for item in cast("list[Any]", value)]
        if isinstance(value, int | float) and not isinstance(value, bool) and str(value) in self._texts:
            return MASK
        return value
