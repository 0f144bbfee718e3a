"""Steps that misbehave: they fail without effects on other runs, the engine or its lease."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from runwright.control.operations import Operations
from support.engine import (
    engine,
    event_lines,
    lines_of_types,
    python_inputs,
    run_plan,
    sleep_inputs,
    step_of,
    wait_for_end,
    wait_for_event,
)
from support.waiting import until

TTL = 1.0
"""Seconds of a lease; it is lost if a step blocks the engine for longer."""


@pytest.fixture
def store(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/runs.db"


@asynccontextmanager
async def engine_with_other_runs(
    store: str, caplog: pytest.LogCaptureFixture, **settings: Any
) -> AsyncGenerator[Operations]:
    """An engine with other runs in the background; afterwards, none was blocked and the lease is the first."""
    async with engine(store, lease_ttl=TTL, **settings) as operations:
        lease = operations.engine.keeper.lease
        assert lease is not None
        small = operations.load(
            {
                "plan": "other",
                "steps": [
                    {"id": "a", "noop": {}},
                    {"id": "b", "python": sleep_inputs(0)},
                    {"id": "c", "python": {"call": "support.engine_steps:quick"}},
                ],
            }
        )
        slowest, stop = 0.0, False

        async def run_others() -> int:
            nonlocal slowest
            count = 0
            while not stop:
                began = time.monotonic()
                snapshot = await wait_for_end(operations, await operations.start(small))
                assert snapshot.status == "COMPLETED"
                slowest = max(slowest, time.monotonic() - began)
                count += 1
                await asyncio.sleep(0.01)
            return count

        background = asyncio.create_task(run_others())
        yield operations
        stop = True
        assert await background >= 1
        after = operations.engine.keeper.lease
        assert after is not None
        assert after.epoch == lease.epoch, "the lease was lost"
        assert slowest < 5 * TTL, "other runs were blocked"
    assert "lease was lost" not in caplog.text


@pytest.mark.parametrize(
    "code",
    [
        "object()",
        "{1, 2}",
        "b'bytes'",
        "float('nan')",
        "{'deep': [{'a': float('inf')}]}",
        "'\\x00'",
        "'\\ud800'",
        "x = []\nx.append(x)\nresult = x",
        "x = {}\nfor n in range(100000): x = {'x': x}\nresult = x",
        "lambda: 1",
        "(n for n in range(3))",
    ],
)
async def test_result_that_cannot_be_stored_fails_the_step(store: str, code: str) -> None:
    step_class = "isolation" if code == "object()" else "light"
    async with engine(store) as operations:
        snapshot = await run_plan(
            operations, {"plan": "p", "steps": [{"id": "a", "class": step_class, "python": python_inputs(code)}]}
        )
    assert snapshot.status == "FAILED"
    assert snapshot.root_cause is not None
    assert snapshot.root_cause.code == "RESULT_NOT_STORABLE"


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("import sys\nsys.exit('bye')", "SystemExit: bye"),
        ("raise KeyboardInterrupt", "KeyboardInterrupt"),
        ("raise BaseException('x')", "BaseException: x"),
        ("import asyncio\nraise asyncio.CancelledError", "CancelledError"),
        ("raise GeneratorExit", "GeneratorExit"),
        ("raise MemoryError", "MemoryError"),
        ("def f(): f()\nf()", "RecursionError"),
        ("class E(Exception):\n  def __str__(self): raise ValueError\nraise E", "E"),
        ("raise ValueError('\\x00 and \\ud800')", "ValueError"),
        ("raise ValueError('x' * 5_000_000)", "ValueError"),
    ],
)
async def test_exception_of_any_type_fails_only_its_step(store: str, code: str, message: str) -> None:
    async with engine(store) as operations:
        snapshot = await run_plan(operations, {"plan": "p", "steps": [{"id": "a", "python": python_inputs(code)}]})
        assert (
            await run_plan(operations, {"plan": "q", "steps": [{"id": "a", "python": sleep_inputs(0)}]})
        ).status == "COMPLETED"
    assert snapshot.status == "FAILED"
    error = step_of(snapshot, "a").error
    assert error is not None
    assert error.code == "STEP_RAISED"
    assert (error.message or "").startswith(message)
    assert len(error.message or "") < 5000


@pytest.mark.parametrize("kind", ["thread", "shell", "isolation"])
@pytest.mark.slow
async def test_step_that_prints_100_mb_does_not_block_other_runs(
    store: str, tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    work: dict[str, Any] = {"shell": "head -c 100000000 /dev/zero | tr '\\0' 'x' | fold -w 999; echo; echo '{}'"}
    if kind != "shell":
        work = {"python": python_inputs("for n in range(100_000): print('x' * 999)")}
    if kind == "isolation":
        work["class"] = "isolation"
    async with engine_with_other_runs(store, caplog) as operations:
        snapshot = await run_plan(operations, {"plan": "p", "steps": [{"id": "a", **work}]})
        assert snapshot.status == "COMPLETED"
    stored_bytes = sum(file.stat().st_size for file in (tmp_path / "logs").rglob("*") if file.is_file())
    assert stored_bytes < 60_000_000  # The stored output is capped.


async def test_child_processes_of_a_step_are_stopped_with_it(
    store: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    alive = tmp_path / "alive"
    alive.touch()
    steps = [
        {
            "id": "shell",
            "shell": f"(while true; do echo x >> {alive}; sleep 0.02; done) & (setsid sleep 100 &) ; sleep 100",
            "timeout": "0.4s",
        },
        {
            "id": "isolated",
            "class": "isolation",
            "python": {"call": "support.engine_steps:fork_children", "args": {"file": str(alive)}},
        },
    ]
    async with engine_with_other_runs(store, caplog, stop_grace=0.3) as operations:
        snapshot = await run_plan(operations, {"plan": "p", "order": "graph", "onFailure": "continue", "steps": steps})
    assert step_of(snapshot, "shell").status == "FAILED"

    async def is_quiet() -> bool:
        before = alive.stat().st_size
        await asyncio.sleep(0.3)
        return alive.stat().st_size == before

    await until(is_quiet, "the end of the children")


@pytest.mark.parametrize("kind", ["shell", "isolation"])
async def test_process_that_ignores_sigterm_is_killed_on_timeout(
    store: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    step: dict[str, Any] = {"id": "a", "timeout": "1s", "shell": "trap '' TERM; while true; do sleep 0.05; done"}
    if kind == "isolation":
        step = {
            "id": "a",
            "timeout": "1s",
            "class": "isolation",
            "python": {"call": "support.engine_steps:ignore_sigterm", "args": {"file": str(tmp_path / "pid")}},
        }
    async with engine_with_other_runs(store, caplog, stop_grace=0.3) as operations:
        snapshot = await run_plan(operations, {"plan": "p", "steps": [step]})
    assert snapshot.root_cause is not None
    assert snapshot.root_cause.code == "STEP_TIMEOUT"


async def test_blocking_coroutine_delays_only_its_own_loop(store: str, caplog: pytest.LogCaptureFixture) -> None:
    step = {"id": "blocks", "python": {"call": "support.engine_steps:block_loop", "args": {"seconds": 2.5}}}
    async with engine_with_other_runs(store, caplog) as operations:
        snapshot = await run_plan(operations, {"plan": "p", "steps": [step, {"id": "after", "noop": {}}]})
    assert snapshot.status == "COMPLETED"
    assert "blocks" in caplog.text  # The warning names the step.


async def test_sleeping_threads_do_not_block_other_runs(store: str, caplog: pytest.LogCaptureFixture) -> None:
    steps = [{"id": f"s{n}", "python": sleep_inputs(1.5)} for n in range(60)]
    async with engine_with_other_runs(store, caplog) as operations:
        snapshot = await run_plan(operations, {"plan": "p", "order": "graph", "steps": steps})
    assert snapshot.status == "COMPLETED"


@pytest.mark.parametrize("size", [300_000, 3_000_000])
async def test_a_checkpoint_that_is_too_large_fails_its_step(store: str, size: int) -> None:
    step = {"id": "a", "python": {"call": "support.engine_steps:checkpoint", "args": {"state": "x" * 10}}}
    big = {
        "id": "a",
        "python": python_inputs("import runwright as rw\nrw.current_step().checkpoint('x' * size)", size=size),
    }
    async with engine(store) as operations:
        assert (await run_plan(operations, {"plan": "p", "steps": [step]})).status == "COMPLETED"
        snapshot = await run_plan(operations, {"plan": "p", "steps": [big]})
    assert snapshot.status == "FAILED"
    assert snapshot.root_cause is not None
    assert snapshot.root_cause.code == "PAYLOAD_TOO_LARGE"


async def test_abandoned_step_cannot_write_to_its_run(store: str) -> None:
    async with engine(store) as operations:
        run_id = await operations.start(
            operations.load(
                {"plan": "p", "steps": [{"id": "a", "python": {"call": "support.engine_steps:checkpoint_for_ever"}}]}
            )
        )
        await wait_for_event(operations, run_id, "CheckpointWritten", "a", 3)
        await operations.signal(run_id, "EMERGENCY_STOP", {"reason": "x"})
        snapshot = await wait_for_end(operations, run_id)
        lines = await event_lines(operations, run_id)
        await asyncio.sleep(0.3)
        assert (await operations.log.snapshot(run_id)).last_event_seq == snapshot.last_event_seq
    end = lines.index("StepFailed a KILLED")
    assert lines_of_types(lines[end:], "CheckpointWritten") == []


async def test_abandoned_step_thread_ends_at_its_next_checkpoint(store: str) -> None:
    """The thread would otherwise wait for an answer until the process ends."""
    import threading

    names = {thread.name for thread in threading.enumerate()}
    async with engine(store) as operations:
        run_id = await operations.start(
            operations.load(
                {"plan": "p", "steps": [{"id": "a", "python": {"call": "support.engine_steps:checkpoint_for_ever"}}]}
            )
        )
        await wait_for_event(operations, run_id, "CheckpointWritten", "a", 3)
        await operations.signal(run_id, "EMERGENCY_STOP", {"reason": "x"})
        await wait_for_end(operations, run_id)

    async def has_no_step_threads() -> bool:
        return not [t for t in threading.enumerate() if t.name.startswith("step thread") and t.name not in names]

    await until(has_no_step_threads, "the end of the thread")


async def test_function_that_cannot_be_found_fails_its_step(store: str) -> None:
    steps = [{"id": "a", "python": {"call": "support.engine_steps:nosuch"}}]
    async with engine(store) as operations:
        snapshot = await run_plan(operations, {"plan": "p", "steps": steps})
    assert snapshot.root_cause is not None
    assert snapshot.root_cause.code == "CALL_NOT_FOUND"


async def test_invalid_inputs_after_evaluation_fail_the_step(store: str) -> None:
    step = {"id": "a", "python": {"call": "support.engine_steps:echo", "args": "{{ params.c }}"}}
    async with engine(store) as operations:
        snapshot = await run_plan(operations, {"plan": "p", "params": {"c": 5}, "steps": [step]})
    assert snapshot.root_cause is not None
    assert (snapshot.root_cause.step_id, snapshot.root_cause.code) == ("a", "INVALID_STEP_SCHEMA")
