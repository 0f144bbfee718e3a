"""The small parts of a picture: signs, bars, times that tick."""

from __future__ import annotations

from rich.text import Text

from .tree import ASCII, LINES


class Glyphs:
    def __init__(self, *, ascii_only: bool = False) -> None:
        self.branches = ASCII if ascii_only else LINES
        self.done, self.failed, self.skipped, self.running, self.again, self.pending = (
            "+x-*~." if ascii_only else "✔✘–●↻○"
        )
        self.bar, self.bar_end, self.rest = "##." if ascii_only else "━╸─"
        self.cut = "..." if ascii_only else "…"


def bar(fraction: float, width: int, style: str, glyphs: Glyphs) -> Text:
    """A bar of this width; only a whole one looks whole."""
    width = max(4, width)
    halves = int(fraction * width * 2)
    full, half = divmod(halves, 2)
    text = Text().append(glyphs.bar * full, style)  # a style of the whole text would colour what is added later
    if half:
        text.append(glyphs.bar_end, style)
    return text.append(glyphs.rest * (width - full - half), "bright_black")


def ticking(seconds: float) -> str:
    """A time that is still running: its width changes seldom."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, second = divmod(int(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02}:{second:02} h" if hours else f"{minutes}:{second:02} min"


def fit(line: Text, width: int, cut: str = "…") -> Text:
    """Cut a line to a width in columns, and show that it was cut."""
    if line.cell_len <= width:
        return line
    line.truncate(max(0, width - len(cut)))
    return line.append(cut)
