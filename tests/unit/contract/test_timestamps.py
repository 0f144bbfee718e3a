"""Timestamps: RFC 3339 in UTC, and conversion from and to microseconds."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runwright.contract.timestamps import from_micros, is_utc, millis_between, to_micros

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
FIRST = (datetime(1, 1, 1, tzinfo=UTC) - EPOCH) // timedelta(microseconds=1)
LAST = (datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC) - EPOCH) // timedelta(microseconds=1)

moments = st.integers(FIRST, LAST)
datetimes = st.datetimes(timezones=st.just(UTC))

GOOD = [
    "2026-01-31T08:00:00Z",
    "2026-01-31T08:00:00.1Z",
    "2026-01-31T08:00:00.123456Z",
    "2026-01-31T08:00:00.123456789Z",
    "2026-01-31T08:00:00+00:00",
    "2026-01-31t08:00:00z",
    "2024-02-29T00:00:00Z",
    "2000-02-29T23:59:59Z",
    "2016-12-31T23:59:60Z",
    "2016-12-31T23:59:60.5Z",
    "0001-01-01T00:00:00Z",
    "9999-12-31T23:59:59.999999Z",
]
BAD = [
    "",
    "now",
    "2026-01-31",
    "2026-01-31T08:00:00",  # naive
    "2026-01-31T08:00Z",
    "2026-01-31T08Z",
    "2026-01-31 08:00:00Z",
    "2026-01-31T08:00:00 Z",
    " 2026-01-31T08:00:00Z",
    "2026-01-31T08:00:00Z\n",
    "2026-01-31T08:00:00.Z",
    "2026-01-31T08:00:00,5Z",
    "2026-01-31T08:00:00+01:00",
    "2026-01-31T08:00:00-00:00",  # The offset is unknown.
    "2026-01-31T08:00:00+0000",
    "2026-01-31T08:00:00+00",
    "2026-01-31T08:00:00UTC",
    "2026-01-31T08:00:00ZZ",
    "2026-02-30T08:00:00Z",
    "2025-02-29T08:00:00Z",
    "1900-02-29T08:00:00Z",
    "2026-04-31T08:00:00Z",
    "2026-00-10T08:00:00Z",
    "2026-13-10T08:00:00Z",
    "2026-01-00T08:00:00Z",
    "0000-01-01T00:00:00Z",
    "2026-01-31T24:00:00Z",
    "2026-01-31T08:60:00Z",
    "2026-01-31T08:00:60Z",  # A leap second is the last second of a day.
    "2026-01-31T23:59:61Z",
    "26-01-31T08:00:00Z",
    "+2026-01-31T08:00:00Z",
    "12026-01-31T08:00:00Z",
    "20260131T080000Z",
    "2026-W05-6T08:00:00Z",
    "２０２６-01-31T08:00:00Z",
    "2026-01-31T08:00:00.٣Z",
    "1769846400",
]


@pytest.mark.parametrize("text", GOOD)
def test_utc_timestamps_are_accepted(text: str) -> None:
    assert is_utc(text)
    to_micros(text)


@pytest.mark.parametrize("text", BAD)
def test_other_timestamps_are_refused(text: str) -> None:
    assert not is_utc(text)
    with pytest.raises(ValueError, match="RFC 3339"):
        to_micros(text)


@given(moments)
def test_microseconds_survive_formatting_and_parsing(micros: int) -> None:
    text = from_micros(micros)
    assert len(text) == 27
    assert text.endswith("Z")
    assert is_utc(text)
    assert to_micros(text) == micros


@given(datetimes)
def test_timestamps_agree_with_the_datetime_module(moment: datetime) -> None:
    micros = (moment - EPOCH) // timedelta(microseconds=1)
    assert to_micros(moment.isoformat()) == micros
    assert from_micros(micros) == moment.replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"


@given(moments, moments)
def test_formatted_timestamps_sort_by_time(one: int, two: int) -> None:
    assert (from_micros(one) < from_micros(two)) == (one < two)


@given(datetimes, st.text("0123456789", min_size=6, max_size=30))
def test_fractions_below_a_microsecond_are_truncated(moment: datetime, digits: str) -> None:
    second = moment.replace(microsecond=0, tzinfo=None).isoformat()
    assert to_micros(f"{second}.{digits}Z") == to_micros(f"{second}.{digits[:6]}Z")
    assert to_micros(f"{second}.{digits}Z") // 1_000_000 == to_micros(f"{second}Z") // 1_000_000


@given(datetimes)
def test_equivalent_forms_parse_to_the_same_number(moment: datetime) -> None:
    text = moment.replace(tzinfo=None).isoformat(timespec="microseconds")
    forms = [text + "Z", text + "z", text.replace("T", "t") + "Z", text + "+00:00", text + "000Z"]
    assert len({to_micros(form) for form in forms}) == 1


@given(st.text(max_size=40) | st.from_regex(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,9})?(Z|\+00:00)", fullmatch=True))
def test_any_text_is_parsed_or_refused_with_value_error(text: str) -> None:
    if is_utc(text):
        to_micros(text)
    else:
        with pytest.raises(ValueError, match="RFC 3339"):
            to_micros(text)


def test_a_leap_second_equals_the_first_second_of_the_next_day() -> None:
    assert to_micros("2016-12-31T23:59:60Z") == to_micros("2017-01-01T00:00:00Z")
    assert to_micros("2016-12-31T23:59:60.25Z") == to_micros("2017-01-01T00:00:00.25Z")


def test_a_duration_is_never_negative() -> None:
    assert millis_between("2026-01-31T08:00:00Z", "2026-01-31T08:00:01.2345Z") == 1234
    assert millis_between("2026-01-31T08:00:01Z", "2026-01-31T08:00:00Z") == 0


@given(moments, moments)
def test_a_duration_is_rounded_down_to_milliseconds(start: int, end: int) -> None:
    assert millis_between(from_micros(start), from_micros(end)) == max(0, end - start) // 1000
