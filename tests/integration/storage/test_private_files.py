"""Files next to a store are readable by their owner only, also with an open umask in a shared folder."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.engine import engine, run_plan

LARGE = "print('printed'); result = 'x' * 200_000"


@pytest.fixture(autouse=True)
def _open_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


async def test_output_results_and_artifacts_are_private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shared = tmp_path / "shared"
    shared.mkdir(mode=0o755)
    (tmp_path / "report.txt").write_text("confidential")
    plan = {
        "plan": "p",
        "steps": [
            {"id": "prints", "shell": "echo printed"},
            {"id": "large", "python": {"code": LARGE}},
            {"id": "keeps", "artifact": {"put": "report.txt"}},
        ],
    }
    async with engine(f"sqlite:///{shared}/runs.db") as operations:
        assert (await run_plan(operations, plan)).status == "COMPLETED"
    found = [path for path in shared.rglob("*") if not path.is_socket()]
    assert {path.name for path in shared.iterdir()} >= {"runs.db", "logs", "results", "artifacts"}
    open_to_others = {path: stat.filemode(path.stat().st_mode) for path in found if path.stat().st_mode & 0o077}
    assert open_to_others == {}
