"""The cost of plan formats: a plan in Python against the same in YAML, a dbt project as a plan against dbt alone."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import runwright as rw
from runwright.control.bootstrap import open_operations
from runwright.control.operations import Operations
from runwright.control.plan_loader import read_function
from runwright.plans.loader import load_plan
from runwright.plans.writer import plan_yaml
from runwright.tools.registry import all_tools

from .scale import Scale
from .stopwatch import Stopwatch
from .table import Measurement, Row
from .targets import TARGETS

_STEPS = 200
_RUNS = 5
_LAYERS, _WIDTH = 5, 20
_BIN = Path(sys.executable).parent


def measure(wanted: Collection[str], scale: Scale) -> Iterator[Row]:
    if "plans-python" in wanted:
        yield Row(TARGETS["plans-python"], [asyncio.run(_python_round(scale)) for _ in range(scale.rounds)])
    if "plans-dbt" in wanted:
        yield Row(TARGETS["plans-dbt"], [_dbt_round(scale) for _ in range(scale.size(5, 3))])


@rw.step
def work(number: int) -> int:
    return number + 1


# Python against YAML: from the text or function of the plan to the end of the run


def _chain(start: int) -> Any:
    value: Any = start
    for _ in range(_STEPS):
        value = work(value)
    return value


async def _python_round(scale: Scale) -> Measurement:
    text = plan_yaml(read_function(rw.plan(_chain)).plan, all_tools())
    with scale.new_folder() as folder:
        async with open_operations(f"sqlite:///{folder}/runs.db") as operations:
            await _run(operations, operations.load(rw.plan(_chain)))  # Warm-up: creates threads and statements.
            yaml = await _cost(operations, lambda: load_plan(text, tools=all_tools()).plan)
            python = await _cost(operations, lambda: operations.load(rw.plan(_chain)))
    return Measurement(python, yaml)


async def _cost(operations: Operations, load: Any) -> float:
    """Return milliseconds per step."""
    with Stopwatch() as watch:
        for _ in range(_RUNS):
            await _run(operations, load())
    return watch.seconds * 1000 / (_RUNS * _STEPS)


async def _run(operations: Operations, plan: rw.ExecutionPlan) -> None:
    snapshot = await operations.wait(await operations.start(plan, params={"start": 0}))
    assert (snapshot.status, snapshot.completed_steps) == ("COMPLETED", _STEPS)


# dbt: from the command line to the end of the process, for both


def _dbt_round(scale: Scale) -> Measurement:
    with scale.new_folder() as folder:
        _write_project(folder)
        options = ("--project-dir", ".", "--profiles-dir", ".")
        _seconds(folder, "dbt", "--quiet", "parse", *options)
        _seconds(folder, "runwright", "plan", "import-dbt", "target/manifest.json", "-o", "plan.yaml")
        reference = _seconds(folder, "dbt", "--quiet", "run", *options)
        (folder / "big.duckdb").unlink()
        return Measurement(_seconds(folder, "runwright", "run", "plan.yaml"), reference)


def _seconds(folder: Path, program: str, *arguments: str) -> float:
    with Stopwatch() as watch:
        subprocess.run([str(_BIN / program), *arguments], cwd=folder, check=True, capture_output=True)
    return watch.seconds


def _write_project(folder: Path) -> None:
    """A hundred trivial models in five layers."""
    (folder / "models").mkdir()
    (folder / "dbt_project.yml").write_text(
        "name: big\nversion: '1.0'\nprofile: big\nflags: {send_anonymous_usage_stats: false}\n"
    )
    (folder / "profiles.yml").write_text(
        "big:\n  target: dev\n  outputs:\n    dev: {type: duckdb, path: big.duckdb, threads: 4}\n"
    )
    for layer in range(_LAYERS):
        for number in range(_WIDTH):
            source = f"{{{{ ref('model_{layer - 1}_{number}') }}}}" if layer else "(select 1 as n)"
            (folder / "models" / f"model_{layer}_{number}.sql").write_text(f"select n from {source}")
