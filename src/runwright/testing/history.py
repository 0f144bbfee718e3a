"""A run's history as lines that are the same in every play: what happened to whom, without ids and times."""

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
    """`StepFailed load attempt 2: HTTP_503`"""
    payload = record.payload or {}
    step = record.step_id or ""
    words = [record.event_type, "a signal" if step.startswith("signal/") else step]
    if record.logical_attempt_id > 1:
        words.append(f"attempt {record.logical_attempt_id}")
    outcome: dict[str, Any] = payload.get("outcome") or {}
    error: dict[str, Any] = payload.get("error") or outcome.get("error") or {}
    details = [str(error["code"])] if error.get("code") else []
    details += [str(payload[name]) for name in _DETAILS if payload.get(name)]
    return " ".join(word for word in words if word) + (f": {', '.join(details)}" if details else "")


def lines_of(records: Iterable[RunEventRecord]) -> list[str]:
    return [line_of(record) for record in records]


def compare(lines: Sequence[str], expected: str | Path | Sequence[str]) -> None:
    """Fail unless the history is as expected: lines, or a file of lines. With RUNWRIGHT_UPDATE_HISTORIES=1 a file is
    written anew."""
    if isinstance(expected, str | Path) and "\n" not in str(expected):
        wanted = _from_file(Path(expected), lines)
        where = str(expected)
    else:
        wanted = expected.strip().splitlines() if isinstance(expected, str) else [str(line) for line in expected]  # type: ignore[union-attr]
        where = "expected"
    wanted = [line.strip() for line in wanted]
    if wanted != list(lines):
        difference = "\n".join(difflib.unified_diff(wanted, list(lines), where, "played", lineterm=""))
        raise AssertionError(f"The history is another:\n{difference}")


def _from_file(path: Path, lines: Sequence[str]) -> list[str]:
    if os.environ.get(UPDATE):
        path.write_text("".join(f"{line}\n" for line in lines))
    if not path.exists():
        raise AssertionError(f"There is no {path} yet. Write it with {UPDATE}=1.")
    return path.read_text().splitlines()
