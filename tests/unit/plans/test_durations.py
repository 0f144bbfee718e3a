"""Durations: parsing and formatting."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runwright.plans.durations import MAX_SECONDS, InvalidDuration, format_duration, parse_duration


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (0, 0.0), (30, 30.0), (0.25, 0.25), ("500ms", 0.5), ("30s", 30.0), ("5m", 300.0), ("1h30m", 5400.0), ("2d", 172800.0),
        ("1d 2h 3m 4s 5ms", 93784.005), ("1.5h", 5400.0), (" 30s ", 30.0), ("0s", 0.0), ("5m500ms", 300.5),
    ],
)  # fmt: skip
def test_durations_are_parsed(value: Any, seconds: float) -> None:
    assert parse_duration(value) == seconds


NOT_DURATIONS = [
    "",
    "30",
    "s",
    "-5s",
    "5 parsecs",
    "30m1h",
    "1h1h",
    "1e3s",
    "5M",
    "½h",
    "٣s",
    "99999d",
    None,
    True,
    [],
    -1,
]


@pytest.mark.parametrize("value", [*NOT_DURATIONS, float("nan"), float("inf"), 10**400])
def test_invalid_durations_are_refused(value: Any) -> None:
    with pytest.raises(InvalidDuration, match="duration"):
        parse_duration(value)


@given(
    st.floats(0, MAX_SECONDS)
    | st.integers(0, 10**9).map(float)
    | st.integers(0, 10**9).map(lambda millis: millis / 1000)
)
def test_formatted_durations_parse_to_the_same_value(seconds: float) -> None:
    assert parse_duration(format_duration(seconds)) == seconds


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0, "0s"), (30.0, "30s"), (90.0, "1m30s"), (5400.0, "1h30m"), (86400.0, "1d"), (0.5, "500ms")],
)
def test_durations_are_formatted_in_short_form(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text
