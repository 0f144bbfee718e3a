"""Tolerant decoding of payloads: only the fields that a fold needs, and never an error."""

from __future__ import annotations

from functools import cache
from typing import Any, TypeVar

import msgspec

from runwright.contract import payloads
from runwright.contract.catalog import CATALOG, schema_version_of
from runwright.contract.events import FoldableEvent
from runwright.contract.timestamps import is_utc, to_micros
from runwright.contract.upcasts import upcast

MAX_TEXT_LENGTH = 1000
"""Characters of a message that a summary stores: it must stay small, however long the texts of producers are."""

NOTHING = msgspec.Raw()

P = TypeVar("P", bound=msgspec.Struct)


def read_payload(payload_type: type[P], event: FoldableEvent) -> P:
    """Decode the fields that a fold needs. A foreign payload that does not fit the type counts as an empty one."""
    raw = event.raw_payload
    data = b"" if raw is None else bytes(raw)
    if not data:
        return payload_type()
    try:
        version = event.schema_version
        if event.event_type in _VERSIONED and version is not None and 0 < version < schema_version_of(event.event_type):
            return msgspec.convert(upcast(event.event_type, version, msgspec.json.decode(data)), payload_type)
        return _decoder(payload_type).decode(data)
    except (msgspec.MsgspecError, UnicodeError, RecursionError, TypeError, AttributeError):
        return payload_type()


_VERSIONED = frozenset(name for name, event_type in CATALOG.items() if event_type.schema_version > 1)
"""Event types that have more than one payload version; only these may need an upcast."""


@cache
def _decoder(payload_type: type[P]) -> msgspec.json.Decoder[P]:
    return msgspec.json.Decoder(payload_type)


def may_contain_field(event: FoldableEvent, name: bytes) -> bool:
    """Return False if the payload certainly lacks this field, which spares decoding it."""
    raw = event.raw_payload
    if raw is None:
        return False
    data = bytes(raw)
    return name in data or b"\\u" in data  # a field name may be spelled with escapes


def micros_or_zero(timestamp: str | None) -> int:
    """Convert a timestamp to microseconds since 1970; 0 if there is none or it is not a UTC timestamp."""
    return to_micros(timestamp) if timestamp is not None and is_utc(timestamp) else 0


def truncated(text: str | None) -> str | None:
    return text if text is None or len(text) <= MAX_TEXT_LENGTH else text[: MAX_TEXT_LENGTH - 1] + "…"


# Results


class StoredResult(msgspec.Struct, frozen=True):
    """A result as an event holds it: the value's JSON, or a reference to where it is stored."""

    raw: bytes | None = None
    ref: dict[str, Any] | None = None
    extracted: dict[str, Any] = {}
    """Fields of it that a playbook selects; of a stored value, those in the reference."""


class _ResultPayload(payloads.Payload, frozen=True):
    """The result fields of an end event, with the value left undecoded."""

    result: msgspec.Raw = NOTHING
    result_ref: dict[str, Any] | None = None
    extracted: dict[str, Any] = msgspec.field(default_factory=dict[str, Any])


def result_of(event: FoldableEvent) -> StoredResult:
    payload = read_payload(_ResultPayload, event)
    return stored_result(bytes(payload.result) or None, payload.result_ref, payload.extracted)


def stored_result(raw: bytes | None, ref: dict[str, Any] | None, extracted: dict[str, Any]) -> StoredResult:
    if ref is None:
        return StoredResult(raw, None, extracted)
    in_ref: Any = ref.get("extracted")
    return StoredResult(raw, ref, in_ref if isinstance(in_ref, dict) else {})  # pyright: ignore[reportUnknownArgumentType]
