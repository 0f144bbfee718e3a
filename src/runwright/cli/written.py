"""What steps wrote, fit to be shown: colours and cursor movements of their own are taken out."""

from __future__ import annotations

import re

from .render import plain

_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")


def readable(text: str) -> str:
    """One line. Of a line that was written over itself, as progress bars are, the last state."""
    if text.isprintable():
        return text
    text = _ESCAPES.sub("", text).rstrip("\r")
    return plain(text.rpartition("\r")[2].expandtabs(8))
