"""Values in payloads: inline, or by a reference to their content. Referenced values are stored before the append.

A decision never fetches. It raises `MissingValues`; the runtime fetches the references and decides again.
"""

from __future__ import annotations

import hashlib
from typing import Any, cast

import msgspec

from runwright.contract.errors import ErrorCode, RunwrightError
from runwright.contract.playbook import ResultScope
from runwright.contract.result_ref import ref_digest
from runwright.contract.timestamps import is_utc, to_micros
from runwright.core.expressions.value_types import with_extra_fields
from runwright.core.fold.payload_reader import StoredResult

INLINE_LIMIT = 64 * 1024
CACHE_BYTES = 32 * 1024 * 1024
"""Bytes of JSON; decoded they take several times as much memory."""


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


def may_be_stored_item(body: bytes) -> bool:
    """Whether the JSON of an item may represent a stored result."""
    return body.startswith(_AMBIGUOUS)


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


class MissingValues(Exception):
    """Referenced values are needed: fetch `refs` into the cache, and decide again."""

    def __init__(self, *refs: dict[str, Any]) -> None:
        super().__init__(*refs)
        self.refs = {reference_name(ref): ref for ref in refs}


def reference_name(ref: dict[str, Any]) -> str:
    """A name that is unique per reference: two references may name the same bytes, and one of them have expired."""
    return str(ref.get("ref") or ref_digest(ref))


class ValueCache:
    """Fetched values by SHA-256, bounded in bytes."""

    def __init__(self) -> None:
        self._values: dict[str, tuple[Any, int]] = {}
        self._size = 0

    def __contains__(self, digest: str) -> bool:
        return digest in self._values

    def __getitem__(self, digest: str) -> Any:
        return self._values[digest][0]

    def add(self, digest: str, value: Any, size: int) -> None:
        if digest not in self._values:
            self._values[digest] = (value, size)
            self._size += size

    def clear(self) -> None:
        self._values.clear()
        self._size = 0

    def trim(self) -> None:
        """Evict the oldest values. Only between decisions: one decision may need several values at once."""
        while self._size > CACHE_BYTES:
            digest = next(iter(self._values))
            self._size -= self._values.pop(digest)[1]


class StoredValues:
    """Decodes results that are stored inline, and looks up referenced ones in the cache."""

    def __init__(self) -> None:
        self.now = 0  # microseconds since 1970
        self.cache = ValueCache()
        self.unavailable: dict[str, RunwrightError] = {}  # why a reference could not be fetched, by its name

    def load(self, stored: StoredResult) -> Any:
        """The value. Raises MissingValues if it must be fetched, RunwrightError if it cannot be."""
        if stored.ref is None:
            return None if stored.raw is None else msgspec.json.decode(stored.raw)
        digest, name = ref_digest(stored.ref), reference_name(stored.ref)
        if name in self.unavailable:
            raise self.unavailable[name]
        if digest not in self.cache or self._has_expired(stored.ref):
            raise MissingValues(stored.ref)
        return self.cache[digest]

    def _has_expired(self, ref: dict[str, Any]) -> bool:
        """Checked also for cached values: after a recovery they would not be available either."""
        until = ref.get("expires_at")
        return isinstance(until, str) and is_utc(until) and to_micros(until) <= self.now

    def playbook_view(self, stored: StoredResult, fields: frozenset[str] | None, *, step_ended: bool = False) -> Any:
        """A result as the expressions of a playbook see it: the value, with its selected fields and its reference as
        extra attributes. If the expressions read only these, the value itself is not loaded."""
        known = dict(stored.extracted)
        if stored.ref is not None:
            ref, preview = stored.ref, stored.ref.get("preview")
            known |= {"_ref": ref, "_preview": preview, "_store": ref.get("store")}
            known |= {"__ref__": ref, "__preview__": preview}
        if known and fields is not None and fields <= known.keys():
            return known
        if step_ended:
            _check_scope(stored)
        value = self.load(stored)
        return with_extra_fields(value, known) if known else value

    def load_item(self, part: Any) -> Any:
        """One of a loop's collected results: the value itself, or the value that its reference names."""
        stored = stored_item(part)
        return part if stored is None else self.load(stored)

    def load_items(self, value: Any, *, step_ended: bool = False) -> Any:
        """All collected results of a loop. MissingValues names every reference that must be fetched."""
        if not isinstance(value, list):
            return value
        found: list[Any] = []
        missing = MissingValues()
        for part in cast("list[Any]", value):
            if step_ended and (stored := stored_item(part)) is not None:
                _check_scope(stored)
            try:
                found.append(self.load_item(part))
            except MissingValues as one:
                missing.refs |= one.refs
        if missing.refs:
            raise missing
        return found


def _check_scope(stored: StoredResult) -> None:
    """Refuse a result that is deleted with its step, also while it is cached: after a recovery it would be gone."""
    if stored.ref is not None and stored.ref.get("scope") == ResultScope.STEP:
        raise RunwrightError(
            ErrorCode.REFERENCE_NOT_AVAILABLE,
            "The result was stored with scope `step`, and its step has ended. Choose a wider scope for its store.",
        )
