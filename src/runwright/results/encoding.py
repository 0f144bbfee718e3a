"""A step's result as JSON, or a sentence that says which part of it is none.

What passes here passes the log too: it refuses NUL characters, numbers that JSON has no words for, and
values nested too deeply. The standard library's encoder does the work, for it refuses bytes, sets and NaN
where msgspec would quietly write something else.
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
"""Less than the log allows (256): a result is wrapped in a payload, and gathered with others into a list."""

MAX_RESULT_BYTES = 64 * 1024 * 1024
MAX_CHECKPOINT_BYTES = 256 * 1024

_AS_TEXT = (datetime.date, datetime.time, datetime.timedelta, uuid.UUID, decimal.Decimal, enum.Enum)
_RAW = (bytes, bytearray, memoryview)
_DECODER = msgspec.json.Decoder()


def encode_result(value: Any) -> bytes:
    """The JSON text of a value. Raises RESULT_NOT_STORABLE, and says where the trouble is."""
    if value is None:
        return b"null"
    try:
        body = _ENCODER.encode(value).encode()
    except RecursionError:
        raise _refused(_where(value) or "it is nested too deeply, or holds itself") from None
    except Exception as error:
        # An object of the user's may raise anything while it is looked at.
        raise _refused(_where(value) or f"{type(error).__name__}: {error}") from None
    if len(body) > MAX_RESULT_BYTES:
        raise _refused(
            f"it has {len(body):,} bytes of JSON, and the limit is {MAX_RESULT_BYTES:,}. "
            "Write it to a file and give back where that is"
        )
    if b"\\u0000" in body:
        trouble = _where(value)
        if trouble:
            raise _refused(trouble)
    if body.count(b"[") + body.count(b"{") > MAX_RESULT_DEPTH and _is_too_deep(body):
        raise _refused(f"it is nested more than {MAX_RESULT_DEPTH} deep")
    return body


def _refused(trouble: str) -> RunwrightError:
    text = trouble.encode(errors="replace").decode().replace("\0", "\\0")
    return RunwrightError(ErrorCode.RESULT_NOT_STORABLE, f"The result cannot be stored: {text}.")


def _plain(value: Any) -> Any:
    """What stands for an object that JSON has no form of its own for."""
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


def _where(value: Any) -> str | None:
    """Which part of a value cannot be stored, and why. Slow, and only asked once it is known that one cannot."""
    try:
        for path, part in _walk(value):
            trouble = _trouble(part)
            if trouble:
                return f"`{path}` {trouble}"
    except Exception as error:
        return f"{type(error).__name__} while it was looked at: {error}"
    return None


def _walk(value: Any) -> Iterator[tuple[str, Any]]:
    """Every part of a value, with its path. A part that holds itself comes as a `_Circle`."""
    waiting: list[tuple[str, Any, tuple[int, ...]]] = [("result", value, ())]
    while waiting:
        path, part, above = waiting.pop()
        if id(part) in above:
            yield path, _Circle()
            return
        yield path, part
        if len(above) > MAX_RESULT_DEPTH:
            continue
        inside = (*above, id(part))
        children = [(f"{path}{name}", child, inside) for name, child in _children(part)]
        waiting += reversed(children)


def _children(part: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(part, dict):
        for key, child in cast("dict[Any, Any]", part).items():
            if not isinstance(key, str | int | float | None):
                yield f" key {key!r}", _Key()
            elif isinstance(key, str) and _trouble(key):
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


class _Circle:
    """Stands for a part that holds itself."""


class _Key:
    """Stands for a key that is no text."""


def _trouble(part: Any) -> str | None:
    if isinstance(part, str):
        return _text_trouble(part)
    if isinstance(part, float):
        return None if math.isfinite(part) else f"is {part}, which JSON has no word for"
    if part is None or isinstance(part, (bool, int, list, tuple, dict, msgspec.Struct, *_AS_TEXT)):
        return None
    if _is_record(part):
        return None
    if isinstance(part, _Circle):
        return "holds itself"
    if isinstance(part, _Key):
        return "is no text"
    if isinstance(part, _RAW):
        return "is raw bytes. Decode them to text, or write them to a file and give back its path"
    if isinstance(part, set | frozenset):
        return "is a set, which has no order. Give back a list"
    kind = cast("type[Any]", type(part))
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    return f"is of type {name}. Give back text, numbers, lists, mappings or dataclasses of such"


def _text_trouble(text: str) -> str | None:
    if "\0" in text:
        return "holds a NUL character"
    if text.isascii() or not any("\ud800" <= char <= "\udfff" for char in text):
        return None
    return "holds half a surrogate pair, which is no Unicode text"


def check_checkpoint(body: bytes) -> None:
    """Refuse a mark of progress that is too large for the log."""
    if len(body) > MAX_CHECKPOINT_BYTES:
        raise RunwrightError(
            ErrorCode.PAYLOAD_TOO_LARGE,
            f"A checkpoint may have {MAX_CHECKPOINT_BYTES:,} bytes; this has {len(body):,}. Keep the rest elsewhere.",
        )
