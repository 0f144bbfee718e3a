"""Strict JSON encoding of step results. Errors name the part of the value that cannot be stored.

An encoded result is also accepted by the log: NUL characters, NaN and infinities, and too deeply nested values are
refused. The encoder of the standard library is used because it refuses bytes, sets and NaN, which msgspec would
silently convert.
"""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import json
import math
import uuid
from collections.abc import Iterator
from typing import Any, cast

import msgspec

from runwright.contract.errors import ErrorCode, RunwrightError

MAX_RESULT_DEPTH = 200
"""Less than the log allows (256): a result is wrapped in a payload, and collected with others into a list."""

MAX_RESULT_BYTES = 64 * 1024 * 1024
MAX_CHECKPOINT_BYTES = 256 * 1024

_AS_TEXT = (datetime.date, datetime.time, datetime.timedelta, uuid.UUID, decimal.Decimal, enum.Enum)
_RAW = (bytes, bytearray, memoryview)
_DECODER = msgspec.json.Decoder()


def encode_result(value: Any) -> bytes:
    """Encode a value as JSON. Raises RESULT_NOT_STORABLE with the path of the part that cannot be encoded."""
    if value is None:
        return b"null"
    try:
        body = _ENCODER.encode(value).encode()
    except RecursionError:
        raise _not_storable(_find_problem(value) or "it is nested too deeply, or contains itself") from None
    except Exception as error:
        # A user-defined object may raise any exception while it is inspected.
        raise _not_storable(_find_problem(value) or f"{type(error).__name__}: {error}") from None
    if len(body) > MAX_RESULT_BYTES:
        raise _not_storable(
            f"it has {len(body):,} bytes of JSON; the limit is {MAX_RESULT_BYTES:,}. "
            "Write it to a file and return its path"
        )
    if b"\\u0000" in body:
        problem = _find_problem(value)
        if problem:
            raise _not_storable(problem)
    if body.count(b"[") + body.count(b"{") > MAX_RESULT_DEPTH and _is_too_deep(body):
        raise _not_storable(f"it is nested more than {MAX_RESULT_DEPTH} levels deep")
    return body


def _not_storable(problem: str) -> RunwrightError:
    text = problem.encode(errors="replace").decode().replace("\0", "\\0")
    return RunwrightError(ErrorCode.RESULT_NOT_STORABLE, f"The result cannot be stored: {text}.")


def _plain(value: Any) -> Any:
    """Convert an object that has no JSON form of its own."""
    if isinstance(value, _AS_TEXT):
        return msgspec.to_builtins(value)
    if isinstance(value, msgspec.Struct) or _is_record(value):
        return msgspec.to_builtins(value, builtin_types=_RAW, str_keys=True, order="deterministic")
    raise TypeError(type(value).__name__)


_ENCODER = json.JSONEncoder(allow_nan=False, ensure_ascii=False, separators=(",", ":"), default=_plain)


def _is_record(value: Any) -> bool:
    """Whether this is an instance of a dataclass or of an attrs class."""
    kind = cast("type[Any]", type(value))
    return dataclasses.is_dataclass(kind) or hasattr(kind, "__attrs_attrs__")


def _is_too_deep(body: bytes) -> bool:
    try:
        level: list[Any] = [_DECODER.decode(body)]
    except RecursionError:
        return True
    for _ in range(MAX_RESULT_DEPTH + 1):
        level = [part for whole in level for part in _parts(whole)]
        if not level:
            return False
    return True


def _parts(value: Any) -> Any:
    if type(value) is list:
        return cast("list[Any]", value)
    return cast("dict[str, Any]", value).values() if type(value) is dict else ()


def _find_problem(value: Any) -> str | None:
    """Find the part of a value that cannot be stored, and the reason. Slow: called only after encoding has failed."""
    try:
        for path, part in _walk(value):
            problem = _part_problem(part)
            if problem:
                return f"`{path}` {problem}"
    except Exception as error:
        return f"{type(error).__name__} while it was inspected: {error}"
    return None


def _walk(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield every part of a value with its path. A part that contains itself is yielded as `_Cycle`."""
    pending: list[tuple[str, Any, tuple[int, ...]]] = [("result", value, ())]
    while pending:
        path, part, ancestors = pending.pop()
        if id(part) in ancestors:
            yield path, _Cycle()
            return
        yield path, part
        if len(ancestors) > MAX_RESULT_DEPTH:
            continue
        chain = (*ancestors, id(part))
        children = [(f"{path}{name}", child, chain) for name, child in _children(part)]
        pending += reversed(children)


def _children(part: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(part, dict):
        for key, child in cast("dict[Any, Any]", part).items():
            if not isinstance(key, str | int | float | None):
                yield f" key {key!r}", _NonTextKey()
            elif isinstance(key, str) and _part_problem(key):
                yield f" key {key!r}", key
            else:
                yield f".{key}", child
    elif isinstance(part, list | tuple):
        for index, child in enumerate(cast("list[Any]", part)):
            yield f"[{index}]", child
    elif isinstance(part, msgspec.Struct):
        for name in part.__struct_fields__:
            yield f".{name}", getattr(part, name)
    elif _is_record(part) and dataclasses.is_dataclass(part):
        for field in dataclasses.fields(part):
            yield f".{field.name}", getattr(part, field.name)


class _Cycle:
    """Placeholder for a part that contains itself."""


class _NonTextKey:
    """Placeholder for a key that is not text."""


def _part_problem(part: Any) -> str | None:
    if isinstance(part, str):
        return _text_problem(part)
    if isinstance(part, float):
        return None if math.isfinite(part) else f"is {part}, which JSON cannot represent"
    if part is None or isinstance(part, (bool, int, list, tuple, dict, msgspec.Struct, *_AS_TEXT)):
        return None
    if _is_record(part):
        return None
    if isinstance(part, _Cycle):
        return "contains itself"
    if isinstance(part, _NonTextKey):
        return "is not text"
    if isinstance(part, _RAW):
        return "is raw bytes. Decode them to text, or write them to a file and return its path"
    if isinstance(part, set | frozenset):
        return "is a set, which has no order. Return a list"
    kind = cast("type[Any]", type(part))
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    return f"is of type {name}. Return text, numbers, lists, mappings or dataclasses of these"


def _text_problem(text: str) -> str | None:
    if "\0" in text:
        return "contains a NUL character"
    if text.isascii() or not any("\ud800" <= char <= "\udfff" for char in text):
        return None
    return "contains half a surrogate pair, which is not valid Unicode"


def check_checkpoint(body: bytes) -> None:
    """Raise PAYLOAD_TOO_LARGE for a checkpoint that is too large for the log."""
    if len(body) > MAX_CHECKPOINT_BYTES:
        raise RunwrightError(
            ErrorCode.PAYLOAD_TOO_LARGE,
            f"A checkpoint must have at most {MAX_CHECKPOINT_BYTES:,} bytes; this one has {len(body):,}. "
            "Store the rest elsewhere.",
        )
