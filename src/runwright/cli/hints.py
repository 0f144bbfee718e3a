"""What to type next: whole commands, ready to be copied."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from .render import plain
from .session import Session
from .story import Asking


class Commands:
    """Commands about one run. The store is named where it was named to us."""

    def __init__(self, session: Session, run_id: str) -> None:
        self._run = _word(run_id)
        usual = Session(None, as_json=False)
        if session.server is not None:
            self._store = f" --server {_word(session.server)}" if session.server != usual.server else ""
        else:
            self._store = f" --store {_word(session.store)}" if session.store != usual.store else ""

    def _command(self, *words: str) -> str:
        return f"runwright {' '.join(words)}{self._store}"

    @property
    def resume(self) -> str:
        return self._command("resume", self._run)

    @property
    def cancel(self) -> str:
        return self._command("cancel", self._run)

    @property
    def rerun(self) -> str:
        return self._command("rerun", self._run)

    @property
    def watch(self) -> str:
        return self._command("watch", self._run)

    @property
    def alerts(self) -> str:
        return self._command("alerts", self._run)

    @property
    def recover(self) -> str:
        return self._command("recover")

    @property
    def go_on(self) -> str:
        return self._command("run", "--run-id", self._run)

    def confirm(self, signal_id: str) -> str:
        return self._command("confirm", self._run, signal_id)

    def retry(self, step_id: str) -> str:
        return self._command("retry", self._run, _word(step_id))

    def skip(self, step_id: str) -> str:
        return self._command("skip", self._run, _word(step_id))

    def approve(self, step_id: str, fields: Sequence[str] = ()) -> str:
        given = [word for name in fields for word in ("--field", _word(f"{name}=..."))]
        return self._command("approve", self._run, _word(step_id), *given)

    def send(self, event: str) -> str:
        return self._command("send", self._run, _word(event))

    def answer(self, step_id: str, asking: Asking) -> str:
        """What makes a waiting step go on."""
        return self.approve(step_id, asking.fields) if asking.event is None else self.send(asking.event)

    def logs(self, step_id: str) -> str:
        return self._command("logs", self._run, _word(step_id))


def _word(text: str) -> str:
    return shlex.quote(plain(text))
