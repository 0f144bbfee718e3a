"""Masks the values of secrets in what a step prints, returns or raises, plain and encoded."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable, Iterator
from typing import Any, cast
from urllib.parse import quote, quote_plus

import msgspec

from runwright.contract.refs import ErrorInfo

MASK = "***"
MIN_LINE_LENGTH = 4
"""Characters of a line of a secret that is masked by itself."""
MIN_BASE64_LENGTH = 8
"""Characters of base64 that are masked inside of other base64; shorter ones would match by chance."""

_PERCENT_ENCODED = re.compile("%[0-9A-F]{2}")


class Mask:
    """Replaces the values of secrets in output, results and errors of a step, also in common encodings."""

    def __init__(self, values: Iterable[str]) -> None:
        hidden: set[str] = set()
        for value in values:
            for part in {value, *(line for line in value.splitlines() if len(line) >= MIN_LINE_LENGTH)}:
                if part:
                    hidden.update(_forms(part))
        texts = sorted(hidden, key=len, reverse=True)
        self._exact = frozenset(texts)
        self._text_pattern = re.compile("|".join(map(re.escape, texts)) or r"(?!)")
        encoded = [text.encode(errors="surrogateescape") for text in texts]
        self._byte_pattern = re.compile(b"|".join(map(re.escape, encoded)) or rb"(?!)")
        self.longest = max(map(len, encoded), default=0)
        """Bytes of the longest form: so many must be read together to find it."""

    def mask_bytes(self, data: bytes) -> bytes:
        return self._byte_pattern.sub(MASK.encode(), data)

    def mask_text(self, text: str) -> str:
        return self._text_pattern.sub(MASK, text)

    def mask_json(self, body: bytes) -> bytes:
        """Mask a JSON document, which stays JSON: a number that is a secret becomes a string."""
        if self._byte_pattern.search(body) is None:
            return body
        return msgspec.json.encode(self._value(msgspec.json.decode(body)))

    def mask_error(self, error: ErrorInfo) -> ErrorInfo:
        """Mask the texts of an error, but not the names of its fields."""
        texts = (None if text is None else self.mask_text(text) for text in (error.code, error.message, error.category))
        code, message, category = texts
        return ErrorInfo(code, message, error.retryable, category, self._value(error.facts))

    def _value(self, value: Any) -> Any:
        if isinstance(value, str):
            return self.mask_text(value)
        if isinstance(value, dict):
            return {self.mask_text(str(key)): self._value(item) for key, item in cast("dict[Any, Any]", value).items()}
        if isinstance(value, list):
            return [self._value(item) for item in cast("list[Any]", value)]
        if isinstance(value, int | float) and not isinstance(value, bool) and str(value) in self._exact:
            return MASK
        return value


def _forms(text: str) -> Iterator[str]:
    """Yield the ways in which programs write a text: as it is, quoted, percent-encoded, in base64."""
    yield text
    for as_json in (_json(text), _json(text, ensure_ascii=False)):
        yield as_json
        yield _json(as_json)  # a document inside of a document
        yield _json(as_json, ensure_ascii=False)
    yield repr(text)[1:-1]
    data = text.encode(errors="surrogateescape")
    yield repr(data)[2:-1]
    for encoded in (quote(data), quote(data, safe=""), quote_plus(data)):
        yield encoded
        yield _PERCENT_ENCODED.sub(lambda match: match[0].lower(), encoded)
    yield from _base64_forms(data)


def _json(text: str, *, ensure_ascii: bool = True) -> str:
    return json.dumps(text, ensure_ascii=ensure_ascii)[1:-1]


def _base64_forms(data: bytes) -> Iterator[str]:
    """Yield the base64 of a text, alone and at any position of a longer text, as in `Authorization: Basic`.

    Three bytes become four characters, so there are three positions. Characters that also depend on the bytes before
    or after the text are left out.
    """
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        yield encode(data).decode()
        for before in range(3):
            first = -(-before * 8 // 6)
            last = (before + len(data)) * 8 // 6
            inside = encode(b"\0" * before + data).decode()[first:last]
            if len(inside) >= MIN_BASE64_LENGTH:
                yield inside
