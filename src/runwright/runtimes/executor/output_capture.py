"""Capture the printed output of steps in their logs instead of the terminal.

While an executor is open, `sys.stdout` and `sys.stderr` are routers: inside a step they write to the step's log,
elsewhere they behave as the original streams. Logging is captured too, because most handlers write to one of the two
streams; if no handler does, a handler of this module writes records to the step's log.
"""

from __future__ import annotations

import io
import logging
import sys
import threading
from typing import Any, TextIO, cast

from runwright.tools.base import StepContext, running_step

_FORMAT = logging.Formatter("%(levelname)s %(name)s: %(message)s")


class OutputRouter:
    """Replacement of a standard stream. Outside of steps, every attribute is that of the original."""

    def __init__(self, original: TextIO, stream: str) -> None:
        self.original = original
        self._stream = stream

    def write(self, text: str) -> int:
        step = running_step()
        if step is None:
            return self.original.write(text)
        if not isinstance(text, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")
        step.write(self._stream, text.encode(errors="replace"))
        return len(text)

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        if running_step() is None:
            self.original.flush()

    def isatty(self) -> bool:
        return running_step() is None and self.original.isatty()

    @property
    def buffer(self) -> Any:
        step = running_step()
        return self.original.buffer if step is None else _RawOutput(step, self._stream)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.original, name)

    def __iter__(self) -> Any:
        return iter(self.original)


class _RawOutput(io.RawIOBase):
    """`sys.stdout.buffer` inside a step."""

    def __init__(self, step: StepContext, stream: str) -> None:
        self._step = step
        self._stream = stream

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        written = bytes(data)
        self._step.write(self._stream, written)
        return len(written)


class _StepHandler(logging.Handler):
    """Writes log records to the log of the step that emitted them."""

    def emit(self, record: logging.LogRecord) -> None:
        step = running_step()
        if step is not None:
            try:
                step.write("err", f"{_FORMAT.format(record)}\n".encode(errors="replace"))
            except Exception:
                self.handleError(record)


class OutputCapture:
    """Installs the routers while at least one executor is open."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._routers: dict[str, OutputRouter] = {}
        self._rerouted: list[tuple[logging.StreamHandler[Any], TextIO]] = []
        self._handler = _StepHandler()

    def open(self) -> None:
        with self._lock:
            self._users += 1
            for name, stream in (("stdout", "out"), ("stderr", "err")):
                original = getattr(sys, name)  # Other code may have replaced our router.
                if original is not None and not isinstance(original, OutputRouter):
                    self._routers[name] = OutputRouter(original, stream)
                    setattr(sys, name, self._routers[name])
            self._reroute_logging()

    def close(self) -> None:
        with self._lock:
            self._users -= 1
            if self._users:
                return
            for name, router in self._routers.items():
                if getattr(sys, name) is router:  # Otherwise other code replaced it, and will restore it.
                    setattr(sys, name, router.original)
            self._routers.clear()
            for handler, stream in self._rerouted:
                handler.setStream(stream)
            self._rerouted.clear()
            logging.getLogger().removeHandler(self._handler)

    def _reroute_logging(self) -> None:
        """Make each log record of a step reach its log exactly once.

        Without any handler, nothing is changed: logging then writes to `sys.stderr`, which is captured. A handler of
        ours would also make a later `logging.basicConfig()` do nothing.
        """
        root = logging.getLogger()
        originals = {id(router.original): router for router in self._routers.values()}
        for handler in root.handlers:
            if isinstance(handler, logging.StreamHandler):
                handler = cast("logging.StreamHandler[Any]", handler)
                router = originals.get(id(handler.stream))
                if router is not None:
                    self._rerouted.append((handler, handler.stream))
                    handler.setStream(cast("TextIO", router))
        if root.handlers and not self._rerouted and self._handler not in root.handlers:
            root.addHandler(self._handler)


CAPTURE = OutputCapture()
