"""Results of steps: the values that can be stored, and the errors for others."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import uuid
from collections import OrderedDict, deque, namedtuple
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import runwright as rw
from runwright.contract.envelope import MAX_DEPTH, check_payload
from runwright.storage.json_encoding import MAX_RESULT_BYTES, MAX_RESULT_DEPTH, encode_result


class Colour(enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    HIGH = 3


class Kind(enum.StrEnum):
    A = "a"


class Row(msgspec.Struct, rename="camel"):
    order_id: int
    body: Any = None


@dataclasses.dataclass
class Order:
    number: int
    body: Any = None


Point = namedtuple("Point", "x y")


@pytest.mark.parametrize(
    ("value", "json"),
    [
        (None, "null"),
        (True, "true"),
        (0, "0"),
        (-1.5, "-1.5"),
        ("grün ", '"grün "'),
        ([1, (2, 3)], "[1,[2,3]]"),
        ({"b": 1, "a": 2}, '{"b":1,"a":2}'),
        ({1: "one"}, '{"1":"one"}'),
        (OrderedDict(a=1), '{"a":1}'),
        (Point(1, 2), "[1,2]"),
        (2**70, "1180591620717411303424"),
        (Colour.RED, '"red"'),
        ([Level.HIGH, Kind.A], '[3,"a"]'),
        (datetime.date(2026, 1, 31), '"2026-01-31"'),
        (datetime.datetime(2026, 1, 31, 8, tzinfo=datetime.UTC), '"2026-01-31T08:00:00Z"'),
        (uuid.UUID(int=5), '"00000000-0000-0000-0000-000000000005"'),
        (decimal.Decimal("1.50"), '"1.50"'),
        (Row(1), '{"orderId":1,"body":null}'),
        ([Order(1, Order(2))], '[{"number":1,"body":{"number":2,"body":null}}]'),
        ("a\\u0000b", '"a\\\\u0000b"'),
    ],
)
def test_supported_values_are_encoded_as_json(value: Any, json: str) -> None:
    assert encode_result(value).decode() == json


class Weird:
    pass


class Hostile(dict[str, Any]):
    def items(self) -> Any:
        raise ZeroDivisionError("gotcha")


def cyclic_list() -> Any:
    loop: list[Any] = [1]
    loop.append({"again": loop})
    return loop


def nested(depth: int) -> Any:
    value: Any = 0
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        (float("nan"), "`result` is nan"),
        ({"rows": [1, {"share": float("inf")}]}, "`result.rows[1].share` is inf"),
        (b"raw", "`result` is raw bytes"),
        ({"a": bytearray(b"x")}, "`result.a` is raw bytes"),
        ([{1, 2}], "`result[0]` is a set"),
        ({"f": open}, "`result.f` is of type builtin_function_or_method"),
        (Weird(), "Weird"),
        ((n for n in [1]), "of type generator"),
        (deque([1]), "of type collections.deque"),
        ({"x": "a\0b"}, "`result.x` contains a NUL"),
        ({"a\0b": 1}, "NUL"),
        ({"x": "a\ud800"}, "`result.x` contains half a surrogate"),
        ({"\udfff": 1}, "half a surrogate"),
        ({(1, 2): 3}, "key (1, 2)` is not text"),
        ({uuid.UUID(int=1): 3}, "is not text"),
        (Order(1, body=Weird()), "`result.body` is of type"),
        (Order(1, body=b"x"), "`result.body` is raw bytes"),
        (Row(1, body=float("nan")), "`result.body` is nan"),
        (cyclic_list(), "contains itself"),
        (nested(MAX_RESULT_DEPTH + 1), "nested more than"),
        (nested(100_000), "nested"),
        (Hostile(a=1), "ZeroDivisionError"),
        (lambda: 10**5000, "limit"),
        (lambda: "x" * (MAX_RESULT_BYTES + 1), "the limit is"),
    ],
)
def test_unsupported_values_are_refused_with_their_path(value: Any, sentence: str) -> None:
    with pytest.raises(rw.RunwrightError) as caught:
        encode_result(value() if callable(value) else value)
    assert caught.value.code == "RESULT_NOT_STORABLE"
    assert sentence in caught.value.detail
    caught.value.detail.encode()
    assert "\0" not in caught.value.detail


def test_a_deep_value_within_the_limit_is_stored() -> None:
    encode_result(nested(MAX_RESULT_DEPTH))
    assert MAX_RESULT_DEPTH + 10 < MAX_DEPTH


def test_many_brackets_are_not_counted_as_depth() -> None:
    encode_result([{"a": [1]} for _ in range(1000)])
    encode_result("[" * 1000)


scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(max_size=3) | st.characters()
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4) | st.integers(), inner, max_size=4),
    max_leaves=20,
)


@given(value=values)
def test_every_encoded_value_is_accepted_by_the_log(value: Any) -> None:
    write = rw.new_event("StepCompleted", rw.new_run("r", "p", "1"), step_id="s")
    try:
        body = encode_result(value)
    except rw.RunwrightError as error:
        assert error.code == "RESULT_NOT_STORABLE"
        return
    check_payload(write.event_type, write.schema_version, b'{"result":' + body + b"}")
