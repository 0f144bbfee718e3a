"""The output of a shell step as its result: complete for the steps that use it, also when it is stored by reference."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.engine import engine, run_plan


async def test_later_steps_get_the_whole_output(store: str) -> None:
    steps = [
        {"id": "numbers", "shell": "seq 1 50000"},
        {"id": "count", "python": {"code": "len(text.split())", "args": {"text": "{{ steps.numbers.result.stdout }}"}}},
    ]
    async with engine(store) as operations:
        snapshot = await run_plan(operations, {"plan": "p", "steps": steps})
        assert await operations.result(snapshot.run_id, "count") == 50_000


async def test_limit_of_the_output_is_a_setting(store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runwright.toml").write_text("[limits]\nstepOutput = 1000\n")
    async with engine(store) as operations:
        snapshot = await run_plan(operations, {"plan": "p", "steps": [{"id": "a", "shell": "seq 1 5000"}]})
    assert snapshot.status == "FAILED"
    assert snapshot.steps[0].error is not None
    assert snapshot.steps[0].error.code == "OUTPUT_TOO_LARGE"
