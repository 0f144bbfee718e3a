"""Server settings: the table [server] of runwright.toml.

[server]
host = "127.0.0.1"
port = 8484
rate = 500              # requests per second of one caller; 0: no limit
drain = "10s"           # time that running steps have to finish when the server stops
steps = "here"          # or "workers": all steps are executed by `runwright worker`
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Literal

import msgspec

from runwright.contract.errors import ErrorCode, RunwrightError
from runwright.plans.durations import InvalidDuration, parse_duration
from runwright.plans.problems import did_you_mean
from runwright.storage.json_encoding import MAX_RESULT_BYTES

MAX_BODY_BYTES = 2 * 1024 * 1024
MAX_EVENTS_BYTES = 16 * 1024 * 1024
MAX_OUTCOME_BYTES = MAX_RESULT_BYTES + 1024 * 1024
"""A step's result, with room for its error and artifacts."""
MAX_ARTIFACT_BYTES = 1024 * 1024 * 1024


class ServerSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    host: str = "127.0.0.1"
    port: int = 8484
    rate: float = 500.0
    drain: float = 10.0
    steps: Literal["here", "workers"] = "here"
    stalled_loop_seconds: float = 60.0
    """Time after which a server whose event loop does not answer gives up its runs."""
    connections: int = 2048
    """Open connections; requests on further ones get 503, except health checks."""
    connections_per_caller: int = 256
    """Concurrent requests and streams of one caller; further ones get 429."""
    header_seconds: float = 10.0
    """Time to receive the head of a request."""
    body_seconds: float = 60.0
    """Time to receive the body of a request."""
    stalled_reader_seconds: float = 60.0
    """Time for a caller to read the next part of a stream; then the connection is closed."""

    @property
    def is_local(self) -> bool:
        return is_loopback(self.host)


@lru_cache(1024)
def is_loopback(host: str) -> bool:
    name = host.strip("[]")
    if name.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def read_server_settings(table: Mapping[str, Any], **overrides: Any) -> ServerSettings:
    """Read the table [server]. `overrides` come from the command line and win unless they are None."""
    known = ServerSettings.__struct_encode_fields__
    settings: dict[str, Any] = dict(table)
    for name in settings:
        if name not in known:
            raise _invalid(f"Unknown field {name!r} in [server].{did_you_mean(name, known)}")
    if isinstance(settings.get("drain"), str):
        try:
            settings["drain"] = parse_duration(settings["drain"])
        except InvalidDuration as error:
            raise _invalid(f"Invalid drain in [server]: {error}") from None
    settings |= {name: value for name, value in overrides.items() if value is not None}
    try:
        return msgspec.convert(settings, ServerSettings)
    except msgspec.ValidationError as error:
        raise _invalid(f"Invalid [server]: {error}.") from None


def _invalid(message: str) -> RunwrightError:
    return RunwrightError(ErrorCode.INVALID_ARGUMENT, f"runwright.toml: {message}")
