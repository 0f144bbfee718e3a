"""Import of user modules: the files of plans and steps.

A module is imported to find its plans and functions, in this process or in another one. Its top-level code runs, but it
must not open an app or start a run: a plan that is only shown would run, and a step would start its own run again.
"""

from __future__ import annotations

import importlib
import threading
from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from types import ModuleType
from weakref import WeakKeyDictionary

from runwright.contract.errors import ErrorCode, RunwrightError

_imported: ContextVar[str | None] = ContextVar("runwright_imported_module", default=None)
"""The module that is being imported."""


_threads: WeakKeyDictionary[threading.Thread, str] = WeakKeyDictionary()
"""Threads that modules started while they were imported, with the name of the module."""

_RUNNING_LOOP = "asyncio.run() cannot be called from a running event loop"


def import_user_module(name: str) -> ModuleType:
    with _importing(name):
        try:
            return importlib.import_module(name)
        except RuntimeError as error:
            if str(error) == _RUNNING_LOOP:
                raise _open_during_import(name, "asyncio.run()") from None
            raise


@contextmanager
def _importing(name: str) -> Generator[None]:
    token = _imported.set(name)
    try:
        with _THREAD_STARTS:
            yield
    finally:
        _imported.reset(token)


class _ThreadStarts:
    """While modules are imported, records the threads that they start."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._imports = 0
        self._start = threading.Thread.start

    def __enter__(self) -> None:
        with self._lock:
            self._imports += 1
            if self._imports == 1:
                self._start = start = threading.Thread.start

                def record(self: threading.Thread) -> None:
                    if (name := _imported.get()) is not None:  # the module is imported by the thread that calls this
                        _threads[self] = name
                    start(self)

                threading.Thread.start = record

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._imports -= 1
            if not self._imports:
                threading.Thread.start = self._start


_THREAD_STARTS = _ThreadStarts()


def refuse_during_import(call: str) -> None:
    """Raise OPEN_DURING_IMPORT if a user module makes this call while Runwright imports it, or in a thread that it
    started then."""
    name = _imported.get() or _threads.get(threading.current_thread())
    if name is not None:
        raise _open_during_import(name, call)


def _open_during_import(name: str, call: str) -> RunwrightError:
    message = (
        f"Module {name!r} calls {call} while it is imported to find a plan or a step. "
        'Move the call into a function, or below the line: if __name__ == "__main__":'
    )
    return RunwrightError(ErrorCode.OPEN_DURING_IMPORT, message)


def module_name(file: Path) -> str:
    """Return the name under which a file is imported: with its packages, so that relative imports work."""
    root = importable_folder(file)
    return ".".join(file.relative_to(root).with_suffix("").parts)


def importable_folder(file: Path) -> Path:
    """Return the folder from which a file is imported: the one that contains its outermost package."""
    folder = file.parent
    while (folder / "__init__.py").is_file() and folder.name.isidentifier() and folder != folder.parent:
        folder = folder.parent
    return folder
