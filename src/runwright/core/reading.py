"""What a fold reads of a payload, and how much of a text it keeps."""

from __future__ import annotations

from functools import cache
from typing import TypeVar

import msgspec

from runwright.contract.catalog import CATALOG, schema_version_of
from runwright.contract.events import FoldableEvent
from runwright.contract.upcasts import upcast

LONGEST_TEXT = 1000
"""What a summary keeps of a message: it must stay small, whatever producers write."""

P = TypeVar("P", bound=msgspec.Struct)


def read_payload(kind: type[P], event: FoldableEvent) -> P:
    """The fields a fold needs. A payload from elsewhere that does not fit counts as an empty one."""
    raw = event.raw_payload
    data = b"" if raw is None else bytes(raw)
    if not data:
        return kind()
    try:
        version = event.schema_version
        if event.event_type in _RENEWED and version is not None and 0 < version < schema_version_of(event.event_type):
            return msgspec.convert(upcast(event.event_type, version, msgspec.json.decode(data)), kind)
        return _decoder(kind).decode(data)
    except (msgspec.MsgspecError, UnicodeError, RecursionError, TypeError, AttributeError):
        return kind()


_RENEWED = frozenset(name for name, kind in CATALOG.items() if kind.schema_version > 1)


@cache
def _decoder(kind: type[P]) -> msgspec.json.Decoder[P]:
    return msgspec.json.Decoder(kind)


def may_name(event: FoldableEvent, name: bytes) -> bool:
    """Whether a payload can hold this field. Spares decoding those that surely do not."""
    raw = event.raw_payload
    if raw is None:
        return False
    data = bytes(raw)
    return name in data or b"\\u" in data  # a name may be spelled with escapes


def shortened(text: str | None) -> str | None:
    return text if text is None or len(text) <= LONGEST_TEXT else text[: LONGEST_TEXT - 1] + "…"
