"""Secrets: plans name them, providers resolve them, and only the step that names a secret gets its value."""

from __future__ import annotations

import os
import stat
import subprocess
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, cast

import msgspec

from runwright.contract.errors import ErrorCode, RunwrightError
from runwright.contract.refs import DEFAULT_TENANT

_COMMAND_TIMEOUT = 30.0


class SecretContext(msgspec.Struct, frozen=True):
    """Tenant and environment that a secret is resolved for."""

    tenant_id: str = DEFAULT_TENANT
    environment_id: str = "default"


class SecretsProvider(Protocol):
    def resolve(self, refs: Sequence[str], context: SecretContext) -> dict[str, str]:
        """Return the values of these secrets. Raises SECRET_NOT_AVAILABLE, naming the secret. May be slow."""
        ...

    def missing(self, refs: Sequence[str], context: SecretContext) -> list[str]:
        """Return the secrets that are certainly missing. Called before a run starts, so it must be fast."""
        ...


class EnvironmentSecrets:
    """Secrets in environment variables of the same name."""

    def resolve(self, refs: Sequence[str], context: SecretContext) -> dict[str, str]:
        for name in self.missing(refs, context):
            raise _not_available(name, f"Set the environment variable {name}.")
        return {name: os.environ[name] for name in refs}

    def missing(self, refs: Sequence[str], context: SecretContext) -> list[str]:  # noqa: ARG002
        return [name for name in refs if name not in os.environ]


class FileSecrets:
    """Secrets in a TOML file that only its owner may read."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def resolve(self, refs: Sequence[str], context: SecretContext) -> dict[str, str]:
        values = self._read(context)
        for name in refs:
            if name not in values:
                raise _not_available(name, f"Add it to {self._path}.")
        return {name: values[name] for name in refs}

    def missing(self, refs: Sequence[str], context: SecretContext) -> list[str]:
        values = self._read(context)
        return [name for name in refs if name not in values]

    def _read(self, context: SecretContext) -> dict[str, str]:
        """Return the secrets of an environment: its table, over the names at the top level."""
        try:
            with self._path.open("rb") as file:
                mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
                if mode & 0o077:
                    raise RunwrightError(
                        ErrorCode.SECRET_NOT_AVAILABLE,
                        f"{self._path} is readable by other users (mode {mode:03o}). Run: chmod 600 {self._path}",
                    )
                content = tomllib.load(file)
        except (OSError, UnicodeError, tomllib.TOMLDecodeError) as error:
            reason = getattr(error, "strerror", None) or type(error).__name__  # the full message may quote a secret
            raise RunwrightError(
                ErrorCode.SECRET_NOT_AVAILABLE, f"Cannot read secrets from {self._path}: {reason}."
            ) from None
        overrides: Any = content.get(context.environment_id)
        merged = {**content, **(cast("dict[str, Any]", overrides) if isinstance(overrides, dict) else {})}
        return {name: value for name, value in merged.items() if isinstance(value, str)}


class CommandSecrets:
    """Secrets printed by a program that is called with the name, such as the client of a vault."""

    def __init__(self, command: Sequence[str]) -> None:
        self._command = list(command)

    def resolve(self, refs: Sequence[str], context: SecretContext) -> dict[str, str]:
        return {name: self._run_command(name, context) for name in refs}

    def missing(self, refs: Sequence[str], context: SecretContext) -> list[str]:  # noqa: ARG002
        return []

    def _run_command(self, name: str, context: SecretContext) -> str:
        environment = {
            **os.environ,
            "RUNWRIGHT_TENANT_ID": context.tenant_id,
            "RUNWRIGHT_ENVIRONMENT_ID": context.environment_id,
        }
        try:
            completed = subprocess.run(  # noqa: S603 - the command is the user's own
                [*self._command, name],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=_COMMAND_TIMEOUT,
                check=False,
                env=environment,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise _not_available(name, f"{self._command[0]} failed: {type(error).__name__}.") from None
        if completed.returncode != 0:
            raise _not_available(name, f"{self._command[0]} failed with exit code {completed.returncode}.")
        return completed.stdout.decode(errors="replace").removesuffix("\n").removesuffix("\r")


def _not_available(name: str, advice: str) -> RunwrightError:
    return RunwrightError(ErrorCode.SECRET_NOT_AVAILABLE, f"Secret {name!r} not found. {advice}")


def create_provider(settings: Mapping[str, Any]) -> SecretsProvider:
    """Create the provider of `[secrets]` in runwright.toml: env, file, command, or the name of a plug-in."""
    kind = settings.get("provider", "env")
    if kind == "env":
        return EnvironmentSecrets()
    if kind == "file":
        return FileSecrets(Path(str(settings.get("file", "secrets.toml"))).expanduser().absolute())
    if kind == "command":
        command: Any = settings.get("command")
        if not isinstance(command, list) or not command:
            raise RunwrightError(
                ErrorCode.INVALID_ARGUMENT, '[secrets] command must be a list, such as ["vault", "get"].'
            )
        return CommandSecrets([str(part) for part in cast("list[Any]", command)])
    return _load_plug_in(str(kind), settings)


def _load_plug_in(kind: str, settings: Mapping[str, Any]) -> SecretsProvider:
    from importlib.metadata import entry_points

    for point in entry_points(group="runwright.secrets", name=kind):
        return point.load()(dict(settings))
    raise RunwrightError(
        ErrorCode.INVALID_ARGUMENT,
        f"Unknown [secrets] provider {kind!r}: use env, file, command or an installed plug-in.",
    )
