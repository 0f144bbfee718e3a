"""Files and folders that only their owner can read: output, results and artifacts may be confidential."""

from __future__ import annotations

import os
from pathlib import Path
from typing import IO

FILE_MODE, FOLDER_MODE = 0o600, 0o700


def make_private_folder(folder: Path) -> list[Path]:
    """Create a folder and its missing parents. Returns those that were missing; existing ones keep their mode."""
    missing = [each for each in (folder, *folder.parents) if not each.is_dir()]
    for each in reversed(missing):
        each.mkdir(mode=FOLDER_MODE, exist_ok=True)
    return missing


def open_private(path: Path, mode: str) -> IO[bytes]:
    """Open a file in a binary mode that creates it."""
    return open(path, mode, opener=lambda name, flags: os.open(name, flags, FILE_MODE))
