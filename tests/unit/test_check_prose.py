"""The check of names and prose that `make lint` runs: it fails on idioms, and accepts plain English."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from support.paths import ROOT

SCRIPT = ROOT / "scripts" / "check_prose.py"


def check(path: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(SCRIPT), *options, str(path)], capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize(
    ("name", "text", "found"),
    [
        ("a.py", "# Whoever takes the run over decides the same.", "Whoever"),
        ("a.py", '"""Nobody drives this run now."""', "Nobody"),
        ("a.py", 'raise ValueError("The store is away, ask again later.")', "is away"),
        ("a.py", "x = 1  # What is left open is closed.", "What is"),
        ("a.md", "The log is folded anew.", "anew"),
        ("a.sql", "select 1 -- told to the driver", "told"),
        ("tests/test_a.py", "def test_nobody_hands_out_more() -> None: ...", "nobody"),
        ("tests/test_a.py", f"def test_{'a_' * 31}b() -> None: ...", "a " * 31 + "b"),
        ("src/a.py", "def tell_driver() -> None: ...", "tell_driver"),
    ],
)
def test_idioms_and_vague_names_fail(tmp_path: Path, name: str, text: str, found: str) -> None:
    file = tmp_path / name
    file.parent.mkdir(exist_ok=True)
    file.write_text(f"{text}\n")
    result = check(file)
    assert result.returncode == 1
    assert f":1: {found!r}" in result.stdout


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.py", "# A recovered run makes the same decisions."),
        ("a.py", 'message = "told"  # one word is data, not prose'),
        ("a.md", "What is a run? It is an execution of a plan."),
        ("a.md", "> Nobody may edit the log."),
        ("a.py", "# Nobody may edit the log. prose: quoted"),
        ("src/a.py", "def notify_driver() -> None: ..."),
        ("src/a.py", "def keep(self) -> None: ...  # public; prose: quoted"),
    ],
)
def test_plain_english_and_quotations_pass(tmp_path: Path, name: str, text: str) -> None:
    file = tmp_path / name
    file.parent.mkdir(exist_ok=True)
    file.write_text(f"{text}\n")
    result = check(file)
    assert (result.returncode, result.stdout) == (0, "")


def test_the_report_counts_per_ten_thousand_words(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text("somebody retries " * 5000)
    result = check(tmp_path, "--report")
    assert "10,000   5000.0" in result.stdout
