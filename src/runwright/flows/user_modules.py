"""Import of user modules: the files of plans and steps.

A module is imported to find its plans and functions, in this process or in another one. Its top-level code runs, but it
must not open an app or start a run: a plan that is only shown would run, and a step would start its own run again.
"""

from __future__ import annotations

import importlib
from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from types import ModuleType

from runwright.contract.errors import ErrorCode, RunwrightError

_imported: ContextVar[str | None] = ContextVar("runwright_imported_module", default=None)
"""The module that is being imported."""


def import_user_module(name: str) -> ModuleType:
    with _importing(name):
        return importlib.import_module(name)


@contextmanager
def _importing(name: str) -> Generator[None]:
    token = _imported.set(name)
    try:
        yield
    finally:
        _imported.reset(token)


def refuse_during_import(call: str) -> None:
    """Raise OPEN_DURING_IMPORT if Runwright is importing a user module."""
    name = _imported.get()
    if name is not None:
        raise RunwrightError(
            ErrorCode.OPEN_DURING_IMPORT,
            f"Module {name!r} calls {call} while it is imported to find a plan or a step. "
            'Move the call into a function, or below the line: if __name__ == "__main__":',
        )


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
