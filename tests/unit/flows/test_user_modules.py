"""Modules of users must not open an app while they are imported, in any thread."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

import pytest

import runwright as rw
from runwright.flows.user_modules import import_user_module, refuse_during_import

MODULE = """
import threading
from runwright.flows.user_modules import refuse_during_import

imported, codes = threading.Event(), []

def open_late():
    imported.wait(10)
    try:
        refuse_during_import("rw.open")
    except Exception as error:
        codes.append(error.code)

thread = threading.Thread(target=open_late)
thread.start()
"""


def test_thread_of_a_module_cannot_open_an_app_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "late_module.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    start = threading.Thread.start
    module = import_user_module("late_module")
    assert threading.Thread.start is start
    module.imported.set()
    module.thread.join()
    assert module.codes == [rw.ErrorCode.OPEN_DURING_IMPORT]
    refuse_during_import("rw.open")
    del sys.modules["late_module"]
