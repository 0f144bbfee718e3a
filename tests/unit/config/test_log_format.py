"""The text format of the log of a process."""

from __future__ import annotations

import logging

from runwright.config.settings import TextLogFormatter

FORGED = "x\n12:00:00 INFO root: logged in\x1b[2J\x1b]0;title\x07"


def _format(message: str, *args: object, error: BaseException | None = None) -> str:
    exc_info = None if error is None else (type(error), error, None)
    record = logging.LogRecord("runwright.test", logging.INFO, __file__, 1, message, args, exc_info)
    return TextLogFormatter().format(record)


def test_ids_cannot_forge_lines_or_control_a_terminal() -> None:
    text = _format("Run %s ended", FORGED)
    assert text.splitlines() == [text]
    assert text.isprintable()
    assert r"x\n12:00:00 INFO root: logged in\x1b[2J" in text


def test_lines_of_a_traceback_cannot_be_taken_for_records() -> None:
    first, *others = _format("It failed", error=ValueError(FORGED)).splitlines()
    assert first.endswith("It failed")
    assert others
    assert all(line.startswith("  | ") and line.isprintable() for line in others)
