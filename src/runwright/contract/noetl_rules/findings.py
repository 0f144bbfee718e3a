"""What is wrong with a log in the words of the NoETL event model, one sentence for each thing."""

from __future__ import annotations

import msgspec

from .said import Said


class NoetlFinding(msgspec.Struct, frozen=True):
    code: str
    sentence: str
    event_id: str | None = None
    seq: int | None = None
    is_warning: bool = False


class Findings:
    """Gathers them. What is told is about the event at hand, unless another is named."""

    def __init__(self) -> None:
        self.told: list[NoetlFinding] = []
        self.event_id: str | None = None
        self.seq: int | None = None

    def turn_to(self, event_id: str | None, seq: int | None) -> None:
        self.event_id, self.seq = event_id, seq

    def tell(self, code: str, sentence: str, *, warning: bool = False, about: Said | None = None) -> None:
        event_id, seq = (self.event_id, self.seq) if about is None else (about.event_id, about.seq)
        self.told.append(NoetlFinding(code, sentence, event_id, seq, warning))
