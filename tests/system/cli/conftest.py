"""Fixtures of the command tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.commands import Project, Shell


@pytest.fixture
def runwright(tmp_path: Path) -> Shell:
    return Shell(tmp_path)


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    project = Project(tmp_path)
    yield project
    project.end()
