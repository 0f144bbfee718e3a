"""The history of a run as lines that are the same in every test run: events and entities, without ids and times."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from runwright.contract.events import RunEventRecord

UPDATE = "RUNWRIGHT_UPDATE_HISTORIES"
_DETAILS = ("reasonCode", "signalType", "engineResult", "answer")


def line_of(record: RunEventRecord) -> str:
    """Format an event, such as `StepFailed load attempt 2: HTTP_503`."""
    payload = record.payload or {}
    step = record.step_id or ""
    parts = [record.event_type, "a signal" if step.startswith("signal/") else step]
    if record.logical_attempt_id > 1:
        parts.append(f"attempt {record.logical_attempt_id}")
    outcome: dict[str, Any] = payload.get("outcome") or {}
    error: dict[str, Any] = payload.get("error") or outcome.get("error") or {}
    details = [str(error["code"])] if error.get("code") else []
    details += [str(payload[name]) for name in _DETAILS if payload.get(name)]
    return " ".join(part for part in parts if part) + (f": {', '.join(details)}" if details else "")


def lines_of(records: Iterable[RunEventRecord]) -> list[str]:
    return [line_of(record) for record in records]


def compare(lines: Sequence[str], expected: str | Path | Sequence[str]) -> None:
    """Compare a history with expected lines, or with a file of lines.

    Raises AssertionError with a diff. With RUNWRIGHT_UPDATE_HISTORIES=1 a file is written first.
    """
    if isinstance(expected, str | Path) and "\n" not in str(expected):
        expected_lines = _lines_of_file(Path(expected), lines)
        source = str(expected)
    else:
        expected_lines = (
            expected.strip().splitlines() if isinstance(expected, str) else [str(line) for line in expected]  # type: ignore[union-attr]
        )
        source = "expected"
    expected_lines = [line.strip() for line in expected_lines]
    if expected_lines != list(lines):
        difference = "\n".join(difflib.unified_diff(expected_lines, list(lines), source, "played", lineterm=""))
        raise AssertionError(f"The history differs:\n{difference}")


def _lines_of_file(path: Path, lines: Sequence[str]) -> list[str]:
    if os.environ.get(UPDATE):
        path.write_text("".join(f"{line}\n" for line in lines))
    if not path.exists():
        raise AssertionError(f"{path} not found. Write it with {UPDATE}=1.")
    return path.read_text().splitlines()
