"""The command, as a person runs it in a folder of theirs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def runwright(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RUNWRIGHT_")}
    command = [sys.executable, "-m", "runwright", *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
