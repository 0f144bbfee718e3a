"""Steps that misbehave: they fail, and do no harm to other runs, to the engine or to its lease."""

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
"""Seconds of a lease: whatever holds up the engine for longer loses it."""


@pytest.fixture
def store(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/runs.db"


@asynccontextmanager
async def bystanders(store: str, caplog: pytest.LogCaptureFixture, **settings: Any) -> AsyncGenerator[Operations]:
    """An engine on which other runs go on all the time; afterwards, none of them was held up, and the lease is the first."""
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

        async def others() -> int:
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

        going_on = asyncio.create_task(others())
        yield operations
        stop = True
        assert await going_on >= 1
        after = operations.engine.keeper.lease
        assert after is not None
        assert after.epoch == lease.epoch, "the lease was lost"
        assert slowest < 5 * TTL, "others were held up"
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
async def test_what_cannot_be_stored_fails_the_step(store: str, code: str) -> None:
    where = "isolation" if code == "object()" else "light"
    async with engine(store) as operations:
        snapshot = await run_plan(
            operations, {"plan": "p", "steps": [{"id": "a", "class": where, "python": python_inputs(code)}]}
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
async def test_whatever_a_step_raises_only_the_step_fails(store: str, code: str, message: str) -> None:
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
async def test_a_step_that_prints_100_mb_harms_nobody(
    store: str, tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    work: dict[str, Any] = {"shell": "head -c 100000000 /dev/zero | tr '\\0' 'x' | fold -w 999"}
    if kind != "shell":
        work = {"python": python_inputs("for n in range(100_000): print('x' * 999)")}
    if kind == "isolation":
        work["class"] = "isolation"
    async with bystanders(store, caplog) as operations:
        snapshot = await run_plan(operations, {"plan": "p", "steps": [{"id": "a", **work}]})
        assert snapshot.status == "COMPLETED"
    kept = sum(file.stat().st_size for file in (tmp_path / "logs").rglob("*") if file.is_file())
    assert kept < 60_000_000  # capped


async def test_children_that_a_step_leaves_behind_are_stopped_with_it(
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
    async with bystanders(store, caplog, stop_grace=0.3) as operations:
        snapshot = await run_plan(operations, {"plan": "p", "order": "graph", "onFailure": "continue", "steps": steps})
    assert step_of(snapshot, "shell").status == "FAILED"

    async def quiet() -> bool:
        before = alive.stat().st_size
        await asyncio.sleep(0.3)
        return alive.stat().st_size == before

    await until(quiet, "the end of the children")


@pytest.mark.parametrize("kind", ["shell", "isolation"])
async def test_a_process_that_ignores_sigterm_is_killed_when_its_time_is_up(
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
    async with bystanders(store, caplog, stop_grace=0.3) as operations:
        snapshot = await run_plan(operations, {"plan": "p", "steps": [step]})
    assert snapshot.root_cause is not None
    assert snapshot.root_cause.code == "STEP_TIMEOUT"


async def test_a_coroutine_that_blocks_its_loop_holds_up_only_what_is_on_it(
    store: str, caplog: pytest.LogCaptureFixture
) -> None:
    step = {"id": "blocks", "python": {"call": "support.engine_steps:block_loop", "args": {"seconds": 2.5}}}
    async with bystanders(store, caplog) as operations:
        snapshot = await run_plan(operations, {"plan": "p", "steps": [step, {"id": "after", "noop": {}}]})
    assert snapshot.status == "COMPLETED"
    assert "blocks" in caplog.text  # it is named


async def test_threads_that_sleep_hold_up_nobody(store: str, caplog: pytest.LogCaptureFixture) -> None:
    steps = [{"id": f"s{n}", "python": sleep_inputs(1.5)} for n in range(60)]
    async with bystanders(store, caplog) as operations:
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


async def test_a_step_that_was_given_up_cannot_write_into_its_run_any_more(store: str) -> None:
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


async def test_a_step_that_was_given_up_is_told_so_when_it_next_asks_for_something(store: str) -> None:
    """Otherwise its thread would wait for an answer as long as the process lives."""
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

    async def none_left() -> bool:
        return not [t for t in threading.enumerate() if t.name.startswith("step thread") and t.name not in names]

    await until(none_left, "the end of the thread")


async def test_a_tool_that_cannot_be_found_fails_its_step(store: str) -> None:
    steps = [{"id": "a", "python": {"call": "support.engine_steps:nosuch"}}]
    async with engine(store) as operations:
        snapshot = await run_plan(operations, {"plan": "p", "steps": steps})
    assert snapshot.root_cause is not None
    assert snapshot.root_cause.code == "CALL_NOT_FOUND"


async def test_inputs_that_do_not_fit_once_filled_in_fail_their_step(store: str) -> None:
    step = {"id": "a", "python": {"call": "support.engine_steps:echo", "args": "{{ params.c }}"}}
    async with engine(store) as operations:
        snapshot = await run_plan(operations, {"plan": "p", "params": {"c": 5}, "steps": [step]})
    assert snapshot.root_cause is not None
    assert (snapshot.root_cause.step_id, snapshot.root_cause.code) == ("a", "INVALID_STEP_SCHEMA")
