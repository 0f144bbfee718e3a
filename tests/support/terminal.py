"""A terminal for tests: runs a program, types keys, and reads the screen."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

_CODE = re.compile(r"\x1b\[([0-9;?]*)([A-Za-z])|([\r\n])|([^\x1b\r\n]+)")


class TerminalScreen:
    """An emulation of the few control codes that our screen uses."""

    def __init__(self, lines: int = 200) -> None:
        self.rows: list[str] = [""] * lines
        self.row = self.column = 0
        self.highest_jump = 0

    def feed(self, text: str) -> None:
        for count, code, move, words in _CODE.findall(text):
            if words:
                line = self.rows[self.row].ljust(self.column)
                self.rows[self.row] = line[: self.column] + words + line[self.column + len(words) :]
                self.column += len(words)
            elif move == "\r":
                self.column = 0
            elif move == "\n":
                self.row, self.column = self.row + 1, 0
            elif code == "A":
                self.row -= int(count)
                self.highest_jump = max(self.highest_jump, int(count))
                assert self.row >= 0, "the cursor left the screen"
            elif code == "K":
                self.rows[self.row] = self.rows[self.row][: self.column]
            elif code == "J":
                self.rows[self.row :] = [self.rows[self.row][: self.column], *[""] * (len(self.rows) - self.row - 1)]

    @property
    def text(self) -> str:
        return "\n".join(line.rstrip() for line in self.rows).rstrip()


class Terminal:
    """A `runwright` command in a new terminal."""

    def __init__(self, folder: Path, *arguments: str, columns: int = 100, lines: int = 30, **variables: str) -> None:
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        environment = {name: value for name, value in os.environ.items() if not name.startswith("RUNWRIGHT_")}
        for name in ("NO_COLOR", "COLUMNS", "LINES"):
            environment.pop(name, None)

        modes = termios.tcgetattr(slave)
        modes[3] |= termios.NOFLSH  # else Ctrl-C discards output that has not been read yet
        termios.tcsetattr(slave, termios.TCSANOW, modes)

        def take_terminal() -> None:
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)
            signal.signal(signal.SIGINT, signal.SIG_DFL)  # a shell ignores SIGINT for background jobs

        self.process = subprocess.Popen(
            [sys.executable, "-m", "runwright", *arguments],
            cwd=folder,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env={**environment, "TERM": "xterm-256color", "PYTHONUTF8": "1", **variables},
            start_new_session=True,
            preexec_fn=take_terminal,
        )
        self.slave = slave
        self.output = ""
        self._told = 0

    def wait_for(self, *texts: str, seconds: float = 20) -> str:
        """Wait until all of these texts were shown since the last call, and return the output since then."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", self.output[self._told :])
            if all(text in shown for text in texts):
                self._told = len(self.output)
                return shown
            if not self._read():
                break
        raise AssertionError(f"{texts} not shown, but:\n{self.output[self._told :]}")

    def type(self, keys: str) -> None:
        os.write(self._master, keys.encode())

    def end(self, seconds: float = 20) -> int:
        """Wait for the end of the program and return its exit code."""
        os.close(self.slave)
        until = time.monotonic() + seconds
        while time.monotonic() < until and self._read():
            pass
        code = self.process.wait(max(0.1, until - time.monotonic()))
        os.close(self._master)
        return code

    @property
    def screen(self) -> TerminalScreen:
        picture = TerminalScreen(2000)
        picture.feed(self.output)
        return picture

    def echoes(self) -> bool:
        return bool(termios.tcgetattr(self.slave)[3] & termios.ECHO)

    def _read(self) -> bool:
        if select.select([self._master], [], [], 0.1)[0]:
            try:
                data = os.read(self._master, 1 << 16)
            except OSError:
                return False
            self.output += data.decode(errors="replace").replace("\r\n", "\n")
            return bool(data)
        return True
