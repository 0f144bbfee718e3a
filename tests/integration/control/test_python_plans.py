"""Plans in Python: run from a program, on every store, and recovered by another process."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import runwright as rw
from runwright.control.plan_loader import read_plan_file
from support.engine import engine, wait_for_end

FLOW = """
from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import runwright as rw


@dataclass
class Report:
    day: str
    rows: list[int]


@rw.step(retries=2)
def extract(day: str) -> Report:
    return Report(day, [1, 2, 3])


@rw.step
async def double(row: int, factor: int = 2) -> int:
    return row * factor


@rw.step
def load(report: Report, rows: list[int]) -> dict[str, int]:
    assert isinstance(report, Report)
    return {report.day: sum(rows)}


@rw.step
def slow(n: int, folder: str) -> int:
    with Path(folder, f"step-{n}").open("a") as file:
        file.write("ran\\n")
    time.sleep(0.1)
    return n + 1


@rw.plan(version="3")
def orders(day: str, factor: int = 2):
    report = extract(day)
    doubled = double.map(report.rows, factor=factor)
    with rw.when(report.day == "monday"):
        load.options(id="on_monday")(report, doubled)
    return load(report, doubled)


@rw.plan
def long(folder: str):
    n = 0
    for _ in range(8):
        n = slow(n, folder)
    return n


if __name__ == "__main__":
    import sys

    with rw.open(sys.argv[1]) as app:
        run = app.start(long, run_id="run-1", folder=sys.argv[2])
        print(run.wait().status, run.result())
"""


@pytest.fixture
def flow(tmp_path: Path) -> Iterator[Path]:
    file = tmp_path / "made_flow.py"
    file.write_text(FLOW)
    yield file
    sys.modules.pop("made_flow", None)
    sys.path[:] = [entry for entry in sys.path if entry != str(tmp_path)]


def plan_in(flow: Path, name: str) -> rw.PlanFunction:
    read_plan_file(Path(f"{flow}:{name}"))
    return getattr(sys.modules["made_flow"], name)


def test_results_have_the_return_types_of_the_functions(store_url: str, flow: Path) -> None:
    orders = plan_in(flow, "orders")
    report = sys.modules["made_flow"].Report("tuesday", [1, 2, 3])
    with rw.open(store_url) as app:
        run = app.start(orders, day="tuesday")
        assert run.wait().status == "COMPLETED"
        assert run.result("extract") == report
        assert run.result("double") == [2, 4, 6]
        assert run.result() == {"tuesday": 12}
        assert {step.step_id: str(step.status) for step in run.snapshot().steps}["on_monday"] == "SKIPPED"
        monday = app.start(orders, params={"day": "monday", "factor": 1})
        assert monday.wait().status == "COMPLETED"
        assert monday.result("on_monday") == {"monday": 6}


async def test_plan_function_runs_in_an_async_app(flow: Path) -> None:
    orders = plan_in(flow, "orders")
    async with rw.open_async("memory://") as app:
        run = await app.start(orders, day="friday")
        await run.wait()
        assert (await run.result("extract")).day == "friday"
        assert await run.result() == {"friday": 12}


@pytest.mark.parametrize(
    ("given", "message"),
    [({}, "day"), ({"day": 5}, "day"), ({"day": "x", "factor": "many"}, "factor"), ({"dya": "x", "day": "x"}, "day")],
)
def test_wrong_parameters_are_refused_before_anything_runs(flow: Path, given: dict[str, object], message: str) -> None:
    orders = plan_in(flow, "orders")
    with rw.open("memory://") as app:
        with pytest.raises(rw.RunwrightError, match=message) as caught:
            app.start(orders, params=given)
        assert caught.value.code == "INVALID_ARGUMENT"


async def test_types_hold_when_parameters_are_updated(flow: Path) -> None:
    plan = {"plan": "p", "paramTypes": {"n": "integer"}, "params": {"n": 1}, "steps": [{"id": "w", "wait": "9s"}]}
    async with engine("memory://") as operations:
        run_id = await operations.start(operations.load(plan))
        refused = await operations.signal(run_id, "UPDATE_PARAMS", {"params": {"n": "two"}}, reason="r")
        assert (refused.decision, refused.code) == ("REJECTED", "SIGNAL_INVALID_PAYLOAD")
        accepted = await operations.signal(run_id, "UPDATE_PARAMS", {"params": {"n": 2}}, reason="r")
        assert accepted.decision == "ACCEPTED"
        await operations.signal(run_id, "CANCEL")
        await wait_for_end(operations, run_id)


@pytest.mark.slow
def test_killed_program_continues_the_same_run(flow: Path, tmp_path: Path) -> None:
    store, folder = f"sqlite:///{tmp_path}/runs.db", tmp_path / "effects"
    folder.mkdir()
    command = [sys.executable, str(flow), store, str(folder)]
    for number in (2, 5):
        process = subprocess.Popen(command)
        while not (folder / f"step-{number}").exists():
            time.sleep(0.01)
        process.kill()
        process.wait()
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == "COMPLETED 8\n"
    times = [len((folder / f"step-{number}").read_text().splitlines()) for number in range(8)]
    assert sum(times) <= 8 + 2, "a step that was completed ran again"
    assert times[7] == 1


@pytest.mark.slow
def test_recovery_finds_the_functions_of_a_killed_program(flow: Path, tmp_path: Path) -> None:
    store, folder = f"sqlite:///{tmp_path}/runs.db", tmp_path / "effects"
    folder.mkdir()
    process = subprocess.Popen([sys.executable, str(flow), store, str(folder)])
    while not (folder / "step-2").exists():
        time.sleep(0.01)
    process.kill()
    process.wait()
    flow.write_text(FLOW.replace("return n + 1", "return n + 1 + 0"))  # The file was edited in the meantime.
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    recovered = subprocess.run(
        [sys.executable, "-m", "runwright", "recover", "--store", store],
        cwd=elsewhere,
        env={**os.environ, "PYTHONPATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert recovered.returncode == 0, recovered.stderr
    shown = subprocess.run(
        [sys.executable, "-m", "runwright", "alerts", "--store", store], capture_output=True, text=True, check=True
    )
    assert "CODE_CHANGED" in shown.stdout
    assert "made_flow:slow" in shown.stdout
    with rw.open(store) as app:
        assert app.run("run-1").wait().status == "COMPLETED"
        assert app.run("run-1").result() == 8
