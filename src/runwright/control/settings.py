"""runwright.toml, in the folder where a process was started."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any, cast

from runwright.contract.errors import ErrorCode, RunwrightError

FILE = Path("runwright.toml")


def read_settings() -> dict[str, Any]:
    """All that the file says; nothing where there is none."""
    try:
        return tomllib.loads(FILE.read_text())
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeError, tomllib.TOMLDecodeError) as error:
        raise RunwrightError(ErrorCode.INVALID_ARGUMENT, f"runwright.toml cannot be read: {error}.") from None


def settings_table(name: str) -> dict[str, Any]:
    table = read_settings().get(name, {})
    if not isinstance(table, dict):
        raise RunwrightError(ErrorCode.INVALID_ARGUMENT, f"runwright.toml: write `{name}` as a table, [{name}].")
    return cast("dict[str, Any]", table)
