"""noop and wait steps, and the registry of tools."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from runwright.contract.plan import Step
from runwright.tools.base import Lane, StepError
from runwright.tools.noop import NoopInputs, NoopTool
from runwright.tools.registry import builtin_tools
from runwright.tools.wait import WaitInputs, WaitTool, due_at

STEP = Step(step_id="s", kind="wait")
NOW = 1_767_225_600_000_000  # 2026-01-01T00:00:00Z


def test_every_tool_is_known_by_its_kind() -> None:
    tools = builtin_tools()
    own = {"approval", "artifact", "dbt", "http", "noop", "plan", "python", "shell", "sql", "wait"}
    assert set(tools) == own | {f"noetl.{kind}" for kind in ("artifact", "http", "nats", "python", "secrets", "sql")}
    assert all(tool.kind == kind for kind, tool in tools.items())


@pytest.mark.parametrize("kind", list(builtin_tools()))
def test_an_unknown_input_of_a_tool_is_refused(kind: str) -> None:
    with pytest.raises(msgspec.ValidationError, match="unknown field"):
        msgspec.convert({"command": "x", "bogus": 1}, builtin_tools()[kind].inputs)


def test_noop_returns_its_input() -> None:
    tool = NoopTool()
    assert tool.lane(NoopInputs(), STEP) is Lane.INLINE
    assert tool.run(msgspec.convert({"result": {"rows": 3}}, NoopInputs), None) == {"rows": 3}  # type: ignore[arg-type]
    assert tool.run(NoopInputs(), None) is None  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("30s", 30),
        ("500ms", 0.5),
        ("5m", 300),
        ("1h30m", 5400),
        ("1.5h", 5400),
        ("2d", 172800),
        (30, 30),
        (0.25, 0.25),
        ("0s", 0),
    ],
)
def test_a_wait_is_over_after_its_duration(text: Any, seconds: float) -> None:
    inputs = msgspec.convert({"duration": text}, WaitInputs)
    assert WaitTool().check({"duration": text}, STEP) is None
    assert due_at(inputs, NOW) == NOW + round(seconds * 1_000_000)
    assert WaitTool().due_at(inputs, NOW) == due_at(inputs, NOW)


def test_wait_until_a_past_time_is_due_at_once() -> None:
    assert due_at(WaitInputs(until="2026-01-01T00:00:10Z"), NOW) == NOW + 10_000_000
    assert due_at(WaitInputs(until="2020-01-01T00:00:00Z"), NOW) == NOW


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({}, "exactly one"),
        ({"duration": "1s", "until": "2026-01-01T00:00:00Z"}, "exactly one"),
        ({"duration": "soon"}, "such as 500ms, 30s"),
        ({"duration": ""}, "such as 500ms, 30s"),
        ({"duration": "1 h"}, None),
        ({"duration": -1}, "between 0 and a hundred years"),
        ({"duration": "1000000d"}, "between 0 and a hundred years"),
        ({"duration": float("inf")}, "between 0 and a hundred years"),
        ({"duration": float("nan")}, "between"),
        ({"duration": 10**400}, "between 0 and a hundred years"),
        ({"duration": "١s"}, "such as"),
        ({"until": "tomorrow"}, "Invalid UTC time"),
        ({"until": "2026-01-01T00:00:00+01:00"}, "Invalid UTC time"),
        ({"until": "2026-02-30T00:00:00Z"}, "Invalid UTC time"),
        ({"until": "{{ params.when }}"}, None),
        ({"duration": "{{ params.delay }}"}, None),
    ],
)
def test_invalid_wait_is_found_before_anything_runs(inputs: dict[str, Any], message: str | None) -> None:
    problem = WaitTool().check(inputs, STEP)
    assert (problem is None) if message is None else message in (problem or "")


def test_invalid_evaluated_duration_is_not_retryable() -> None:
    with pytest.raises(StepError) as caught:
        due_at(WaitInputs(duration="whenever"), NOW)
    assert (caught.value.code, caught.value.retryable) == ("INVALID_INPUT", False)


def test_wait_uses_the_timer_lane() -> None:
    assert WaitTool().lane(WaitInputs(duration="1s"), STEP) is Lane.TIMER
    assert WaitTool.main_input == "duration"
