"""Masks the values of secrets in what a step prints, returns or raises, plain and encoded."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable
from typing import Any, cast
from urllib.parse import quote

import msgspec

from runwright.contract.refs import ErrorInfo

MASK = "***"


class Mask:
    """Replaces the values of secrets in output, results and errors of a step, also in common encodings."""

    def __init__(self, values: Iterable[str]) -> None:
        hidden: set[str] = set()
        for value in values:
            for part in {value, *(line for line in value.splitlines() if len(line) > 3)}:
                if part:
                    hidden |= {part, json.dumps(part)[1:-1], json.dumps(part, ensure_ascii=False)[1:-1]}
                    hidden |= {quote(part), quote(part, safe=""), base64.b64encode(part.encode()).decode()}
        self._texts = sorted(hidden, key=len, reverse=True)
        self._data = [text.encode() for text in self._texts]

    def mask_bytes(self, data: bytes) -> bytes:
        for hidden in self._data:
            if hidden in data:
                data = data.replace(hidden, MASK.encode())
        return data

    def mask_text(self, text: str) -> str:
        for hidden in self._texts:
            if hidden in text:
                text = text.replace(hidden, MASK)
        return text

    def mask_json(self, body: bytes) -> bytes:
        """Mask a JSON document, which stays JSON: a number that is a secret becomes a string."""
        if not any(hidden in body for hidden in self._data):
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
        if isinstance(value, int | float) and not isinstance(value, bool) and str(value) in self._texts:
            return MASK
        return value
