"""What runwright.toml says of the server.

[server]
host = "127.0.0.1"
port = 8484
rate = 500              # requests a second that one caller may send; 0 for any number
drain = "10s"           # how long steps may go on when the server is asked to stop
steps = "here"          # or "workers": every step is left to `runwright worker`
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Literal

import msgspec

from runwright.contract.errors import ErrorCode, RunwrightError
from runwright.plans.durations import NoDuration, read_duration
from runwright.plans.problems import did_you_mean
from runwright.results.encoding import MAX_RESULT_BYTES

LARGEST_BODY = 2 * 1024 * 1024
LARGEST_EVENTS = 16 * 1024 * 1024
LARGEST_OUTCOME = MAX_RESULT_BYTES + 1024 * 1024
"""What a step came to, and what else there is to say of it."""
LARGEST_ARTIFACT = 1024 * 1024 * 1024


class ServerSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    host: str = "127.0.0.1"
    port: int = 8484
    rate: float = 500.0
    drain: float = 10.0
    steps: Literal["here", "workers"] = "here"
    connections: int = 2048
    """Requests and streams at a time; whoever comes on top is told to try again."""
    header_seconds: float = 10.0
    """How long a caller may take to say what it wants."""
    body_seconds: float = 60.0
    send_seconds: float = 60.0
    """How long a caller may leave what it asked for unread."""

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


def read_server_settings(table: Mapping[str, Any], **given: Any) -> ServerSettings:
    """The table, with what the command line says over it."""
    known = ServerSettings.__struct_encode_fields__
    settings: dict[str, Any] = dict(table)
    for name in settings:
        if name not in known:
            raise _refused(f"[server] has no {name!r}.{did_you_mean(name, known)}")
    if isinstance(settings.get("drain"), str):
        try:
            settings["drain"] = read_duration(settings["drain"])
        except NoDuration as error:
            raise _refused(f"[server] drain: {error}") from None
    settings |= {name: value for name, value in given.items() if value is not None}
    try:
        return msgspec.convert(settings, ServerSettings)
    except msgspec.ValidationError as error:
        raise _refused(f"[server]: {error}.") from None


def _refused(sentence: str) -> RunwrightError:
    return RunwrightError(ErrorCode.INVALID_ARGUMENT, f"runwright.toml: {sentence}")
