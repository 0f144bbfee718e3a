"""Failures that end the run of a playbook."""

from __future__ import annotations

from itertools import islice

from runwright.contract.playbook import FailureMode
from runwright.contract.refs import ErrorInfo

from .context import PlaybookContext


class FatalFailures:
    """Failures that no arc handles, of steps whose failure mode does not allow the run to continue."""

    def __init__(self, playbook: PlaybookContext) -> None:
        self._playbook = playbook
        self._fatal: dict[str, ErrorInfo | None] = {}
        self._examined = 0  # unhandled failures classified so far: the list only grows

    def all(self) -> dict[str, ErrorInfo | None]:
        """By the path of the visit, in the order of the log."""
        unhandled = self._playbook.state.unhandled_errors
        for path, error in islice(unhandled.items(), self._examined, None):
            mode = self._playbook.step(path.partition("@")[0]).route.failure
            if mode is FailureMode.FAIL_FAST or (error is not None and error.category == "plan"):
                self._fatal[path] = error
        self._examined = len(unhandled)
        return self._fatal
