"""Commands to type next, complete and quoted for the shell."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from runwright.cli.terminal.formatting import printable

from .run_view import InputRequest
from .session import Session


class CommandHints:
    """Commands about one run. They name the store or server only if it is not the default one."""

    def __init__(self, session: Session, run_id: str) -> None:
        self._run = _quote(run_id)
        default = Session(None, as_json=False)
        if session.server is not None:
            self._store = f" --server {_quote(session.server)}" if session.server != default.server else ""
        else:
            self._store = f" --store {_quote(session.store)}" if session.store != default.store else ""

    def _command(self, *arguments: str) -> str:
        return f"runwright {' '.join(arguments)}{self._store}"

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
    def continue_run(self) -> str:
        return self._command("run", "--run-id", self._run)

    def confirm(self, signal_id: str) -> str:
        return self._command("confirm", self._run, signal_id)

    def retry(self, step_id: str) -> str:
        return self._command("retry", self._run, _quote(step_id))

    def skip(self, step_id: str) -> str:
        return self._command("skip", self._run, _quote(step_id))

    def approve(self, step_id: str, fields: Sequence[str] = ()) -> str:
        options = [part for name in fields for part in ("--field", _quote(f"{name}=..."))]
        return self._command("approve", self._run, _quote(step_id), *options)

    def send(self, event: str) -> str:
        return self._command("send", self._run, _quote(event))

    def answer(self, step_id: str, request: InputRequest) -> str:
        """The command that lets a waiting step continue."""
        return self.approve(step_id, request.fields) if request.event is None else self.send(request.event)

    def logs(self, step_id: str) -> str:
        return self._command("logs", self._run, _quote(step_id))


def _quote(text: str) -> str:
    return shlex.quote(printable(text))
