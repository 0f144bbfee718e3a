"""Folders of the repository that tests read."""

from __future__ import annotations

from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
ROOT = TESTS.parent
EXAMPLES = ROOT / "examples"
CORPUS = TESTS / "corpus"
RECORDED_RUN = EXAMPLES / "recorded-run.jsonl"
