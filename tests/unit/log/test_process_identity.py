"""A process that /proc hides is not taken for dead."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from runwright.log import leases as holder
from runwright.log.model import Holder


def test_a_hidden_process_may_live(monkeypatch: pytest.MonkeyPatch) -> None:
    other = Holder(holder._host(), 1, "77")
    real = Path.read_text

    def hidden(self: Path, *arguments: object, **more: object) -> str:
        if str(self) == "/proc/1/stat":
            raise FileNotFoundError(str(self))
        return real(self)

    monkeypatch.setattr(Path, "read_text", hidden)

    def refused(pid: int, number: int) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "kill", refused)
    assert not holder.is_dead(other)

    def gone(pid: int, number: int) -> None:
        raise ProcessLookupError

    monkeypatch.setattr(os, "kill", gone)
    assert holder.is_dead(other)
