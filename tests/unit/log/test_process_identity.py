"""A process that is hidden in /proc is not considered dead."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from runwright.log import process_identity
from runwright.log.model import Holder


def test_a_hidden_process_is_dead_only_if_its_pid_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    other = Holder(process_identity._host(), 1, "77")
    real = Path.read_text

    def hidden(self: Path, *arguments: object, **more: object) -> str:
        if str(self) == "/proc/1/stat":
            raise FileNotFoundError(str(self))
        return real(self)

    monkeypatch.setattr(Path, "read_text", hidden)

    def refused(pid: int, number: int) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "kill", refused)
    assert not process_identity.is_dead(other)

    def gone(pid: int, number: int) -> None:
        raise ProcessLookupError

    monkeypatch.setattr(os, "kill", gone)
    assert process_identity.is_dead(other)
