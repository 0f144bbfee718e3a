"""Values in payloads: inline, or by a reference to their content. Referenced values are stored before the append."""

from __future__ import annotations

import hashlib
from typing import Any, cast

import msgspec

from runwright.core.fold.loop_state import StoredResult

INLINE_LIMIT = 64 * 1024


def reference(body: bytes) -> dict[str, Any]:
    """The reference of this JSON value."""
    digest = hashlib.sha256(body).hexdigest()
    return {"uri": f"result:sha256:{digest}", "sha256": digest, "sizeBytes": len(body)}


def inline_or_ref(name: str, body: bytes, pending: dict[Any, bytes]) -> tuple[str, bytes]:
    """A payload field for this JSON: the value itself, or a reference with the value added to `pending`."""
    if len(body) <= INLINE_LIMIT:
        return name, body
    ref = reference(body)
    pending[ref["sha256"]] = body
    return f"{name}Ref", msgspec.json.encode(ref)


def stored_result_field(stored: StoredResult) -> dict[str, Any]:
    """A payload field for a result that is stored already."""
    if stored.ref is not None:
        return {"resultRef": stored.ref}
    extracted = {"extracted": stored.extracted} if stored.extracted else {}
    return {"result": msgspec.Raw(stored.raw or b"null"), **extracted}


_REF, _INLINE = "resultRef", "resultInline"
_AMBIGUOUS = tuple(f'{{"{name}":'.encode() for name in (_REF, _INLINE))


def encode_item(stored: StoredResult) -> bytes:
    """A result in the list of all results of a loop: itself, or a reference. One that looks like those is wrapped."""
    if stored.ref is not None:
        return msgspec.json.encode({_REF: stored.ref})
    raw = stored.raw or b"null"
    return b'{"resultInline":' + raw + b"}" if raw.startswith(_AMBIGUOUS) else raw


def stored_item(part: Any) -> StoredResult | None:
    """The stored result that an item of such a list represents; None if it is the result itself."""
    if not isinstance(part, dict) or len(part) != 1:  # pyright: ignore[reportUnknownArgumentType]
        return None
    mapping = cast("dict[str, Any]", part)
    if _INLINE in mapping:
        return StoredResult(msgspec.json.encode(mapping[_INLINE]))
    ref = cast("dict[str, Any] | None", mapping.get(_REF) if isinstance(mapping.get(_REF), dict) else None)
    return None if ref is None or not is_reference(ref) else StoredResult(ref=ref)


def is_reference(ref: dict[str, Any]) -> bool:
    return str(ref.get("uri")).startswith("result:sha256:") or ref.get("kind") == "result_ref"
