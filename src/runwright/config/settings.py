"""Settings of a process: runwright.toml in its working directory, and the format of its log."""

from __future__ import annotations

import logging
import sys
import time
import tomllib
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

import msgspec

from runwright.contract.errors import ErrorCode, RunwrightError

FILE = Path("runwright.toml")

_encoder = msgspec.json.Encoder(enc_hook=str)


def read_settings() -> dict[str, Any]:
    """Return the contents of the file; an empty dict if there is none."""
    try:
        return tomllib.loads(FILE.read_text())
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeError, tomllib.TOMLDecodeError) as error:
        raise RunwrightError(ErrorCode.INVALID_ARGUMENT, f"Invalid runwright.toml: {error}.") from None


def settings_table(name: str) -> dict[str, Any]:
    table = read_settings().get(name, {})
    if not isinstance(table, dict):
        raise invalid_setting(f"`{name}` must be a table, [{name}].")
    return cast("dict[str, Any]", table)


def invalid_setting(message: str) -> RunwrightError:
    return RunwrightError(ErrorCode.INVALID_ARGUMENT, f"runwright.toml: {message}")


def require_extra(module: str, feature: str, extra: str) -> None:
    """Raise INVALID_ARGUMENT if the optional dependency of a configured feature is not installed."""
    if find_spec(module) is None:
        raise invalid_setting(f"{feature} requires `runwright[{extra}]`. Install it.")


class JsonLogFormatter(logging.Formatter):
    """One JSON document per record, with the record's `facts` (such as run and tenant) as fields."""

    def format(self, record: logging.LogRecord) -> str:
        timestamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        document: dict[str, Any] = {
            "time": f"{timestamp}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        facts: dict[str, Any] = getattr(record, "facts", {})
        document |= {name: value for name, value in facts.items() if value is not None}
        if record.exc_info:
            document["exception"] = self.formatException(record.exc_info)
        return _encoder.encode(document).decode()


class TextLogFormatter(logging.Formatter):
    """One line per record. Ids of users cannot forge lines or control a terminal: such characters are escaped."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s", "%H:%M:%S")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - the name of the base class
        record.message = _escape(record.message)
        return super().formatMessage(record)

    def formatException(self, ei: Any) -> str:  # noqa: N802 - the name of the base class
        lines = super().formatException(ei).split("\n")
        return "\n".join(f"  | {_escape(line)}" for line in lines)


def _escape(text: str) -> str:
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)


def configure_logging(*, in_json: bool, access: bool) -> None:
    """Log to standard error, as text or JSON lines. Standard output belongs to the caller of the process."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLogFormatter() if in_json else TextLogFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("runwright").setLevel(logging.INFO)
    logging.getLogger("runwright.server.access").setLevel(logging.INFO if access else logging.WARNING)
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
