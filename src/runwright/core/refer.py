"""Values too large for an event are named by their content; whoever appends the event keeps them first."""

from __future__ import annotations

import hashlib
from typing import Any, cast

import msgspec

from .loopwork import StoredResult

INLINE_LIMIT = 64 * 1024


def reference(body: bytes) -> dict[str, Any]:
    """The reference under which this JSON is kept."""
    digest = hashlib.sha256(body).hexdigest()
    return {"uri": f"result:sha256:{digest}", "sha256": digest, "sizeBytes": len(body)}


def placed(name: str, body: bytes, blobs: dict[Any, bytes]) -> tuple[str, bytes]:
    """A payload field for this JSON: the value itself, or a reference with the value put into `blobs`."""
    if len(body) <= INLINE_LIMIT:
        return name, body
    ref = reference(body)
    blobs[ref["sha256"]] = body
    return f"{name}Ref", msgspec.json.encode(ref)


def placed_stored(stored: StoredResult) -> dict[str, Any]:
    """The same for a result that is where it belongs already."""
    if stored.ref is not None:
        return {"resultRef": stored.ref}
    extracted = {"extracted": stored.extracted} if stored.extracted else {}
    return {"result": msgspec.Raw(stored.raw or b"null"), **extracted}


_REF, _INLINE = "resultRef", "resultInline"
_TOO_ALIKE = tuple(f'{{"{name}":'.encode() for name in (_REF, _INLINE))


def gathered_part(stored: StoredResult) -> bytes:
    """One of a loop's results in the list of all: itself, or a reference. A result that looks like one is wrapped."""
    if stored.ref is not None:
        return msgspec.json.encode({_REF: stored.ref})
    raw = stored.raw or b"null"
    return b'{"resultInline":' + raw + b"}" if raw.startswith(_TOO_ALIKE) else raw


def part_of(part: Any) -> StoredResult | None:
    """What such a part stands for; None if it is the result itself."""
    if not isinstance(part, dict) or len(part) != 1:  # pyright: ignore[reportUnknownArgumentType]
        return None
    mapping = cast("dict[str, Any]", part)
    if _INLINE in mapping:
        return StoredResult(msgspec.json.encode(mapping[_INLINE]))
    ref = cast("dict[str, Any] | None", mapping.get(_REF) if isinstance(mapping.get(_REF), dict) else None)
    return None if ref is None or not is_reference(ref) else StoredResult(ref=ref)


def is_reference(ref: dict[str, Any]) -> bool:
    return str(ref.get("uri")).startswith("result:sha256:") or ref.get("kind") == "result_ref"
