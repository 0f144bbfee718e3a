"""Test kit for plans: the real engine on a memory store, with scripted step results and virtual time.

app.py      PlayApp, PlayedRun, open and replay      script.py   scripted results, failures and answers
history.py  the history of a run as comparable lines  clock.py    event loop and clock with virtual time

The same script always produces the same events: ids are seeded, and time advances only when the loop is idle.

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
