"""Commands of the README for the server, executed as printed."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from support.paths import ROOT
from support.server import server_in_thread

README = ROOT / "README.md"


@pytest.mark.slow
def test_readme_server_commands_run_as_printed(file_store: str, tmp_path: Path) -> None:
    assert shutil.which("curl"), "the commands of the README require curl"
    section = README.read_text().partition("## A server")[2]
    block = re.search(r"```sh\n(.*?)```", section, re.DOTALL)
    assert block is not None
    with server_in_thread(file_store) as address:
        script = block[1].replace("http://127.0.0.1:8484", address) + "\nwait\n"
        done = subprocess.run(["bash", "-e", "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert '"created":true' in done.stdout
    event_types = re.findall(r"^event: (\w+)$", done.stdout, re.MULTILINE)
    assert event_types[:2] == ["RunQueued", "RunStarted"]
    assert {"RunPaused", "RunResumed"} <= set(event_types)
    assert event_types[-1] == "RunCompleted"
    assert done.stdout.count('"decision":"ACCEPTED"') >= 2
