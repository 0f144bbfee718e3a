"""Values too large for an event are named by their content; whoever appends the event keeps them first."""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec

INLINE_LIMIT = 64 * 1024


def reference(body: bytes) -> dict[str, Any]:
    """The reference under which this JSON is kept."""
    digest = hashlib.sha256(body).hexdigest()
    return {"uri": f"result:sha256:{digest}", "sha256": digest, "sizeBytes": len(body)}


def placed(name: str, body: bytes, blobs: dict[str, bytes]) -> tuple[str, bytes]:
    """A payload field for this JSON: the value itself, or a reference with the value put into `blobs`."""
    if len(body) <= INLINE_LIMIT:
        return name, body
    ref = reference(body)
    blobs[ref["sha256"]] = body
    return f"{name}Ref", msgspec.json.encode(ref)
