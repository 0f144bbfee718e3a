"""Values too large for an event are named by their content; whoever appends the event keeps them first."""

from __future__ import annotations

import hashlib
from typing import Any

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


def gathered_ref(part: Any) -> dict[str, Any] | None:
    """The reference that stands for one of a loop's gathered results; None if it is the result itself."""
    if not isinstance(part, dict) or part.keys() != {"resultRef"}:  # pyright: ignore[reportUnknownMemberType]
        return None
    ref: Any = part["resultRef"]  # pyright: ignore[reportUnknownVariableType]
    return ref if isinstance(ref, dict) and is_reference(ref) else None  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]


def is_reference(ref: dict[str, Any]) -> bool:
    return str(ref.get("uri")).startswith("result:sha256:") or ref.get("kind") == "result_ref"
