"""A kit to test plans with: no tools, no waiting, the same engine.

from runwright import testing

def test_release():
    with testing.open({"build": {"version": 7}, "ok": testing.Approves({"share": 20}, after="2d")}) as app:
        run = app.start("release.yaml", name="shop")
        assert run.wait().status == "COMPLETED"
        run.assert_history("release.history")
"""

from __future__ import annotations

from .app import PlayApp, PlayedRun, open, replay  # noqa: A004
from .script import Approves, Denies, Fails, Result, Sends

__all__ = ["Approves", "Denies", "Fails", "PlayApp", "PlayedRun", "Result", "Sends", "open", "replay"]
