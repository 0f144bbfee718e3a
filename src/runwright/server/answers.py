"""How routes answer: bytes that were encoded once, with the headers that go with them."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from typing import Any

import msgspec
from litestar import Response
from litestar.openapi.datastructures import ResponseSpec

from runwright.contract.errors import ErrorCode, RunwrightError

from .problems import CODES, MEDIA_TYPE, Problem

_encoder = msgspec.json.Encoder()
IMMUTABLE = "private, max-age=31536000, immutable"


def answer(document: Any, *, status: int = 200, headers: Mapping[str, str] | None = None) -> Response[Any]:
    body = document if isinstance(document, bytes) else _encoder.encode(document)
    return Response(
        content=body,
        status_code=status,
        media_type="application/json",
        headers={"cache-control": "no-store", **(headers or {})},
    )


def tagged(asked: str | None, name: str, *, immutable: bool) -> tuple[dict[str, str], Response[Any] | None]:
    """The headers of something that is named by its content, and the whole answer if the caller has it already."""
    tag = f'"{sha256(name.encode(errors="replace")).hexdigest()[:32]}"'
    headers = {"etag": tag, "cache-control": IMMUTABLE if immutable else "private, no-cache"}
    known = asked is not None and (
        asked.strip() == "*" or tag in [each.strip().removeprefix("W/") for each in asked.split(",")]
    )
    return headers, Response(
        content=b"", status_code=304, headers=headers, media_type="application/json"
    ) if known else None


def problems(*statuses: int) -> dict[int, ResponseSpec]:
    """What may go wrong, for the description of a route; some of it may go wrong anywhere."""
    return {
        status: ResponseSpec(
            data_container=Problem,
            description=", ".join(CODES[status]),
            media_type=MEDIA_TYPE,
            generate_examples=False,
        )
        for status in sorted({400, 401, 403, 429, 500, 503, *statuses})
    }


def check_text(value: Any) -> None:
    """Refuse what no store takes: a NUL in a text, a number that is none."""
    if isinstance(value, str):
        if "\0" in value:
            raise RunwrightError(ErrorCode.INVALID_ARGUMENT, "A text has a NUL in it, which cannot be stored.")
    elif isinstance(value, float):
        if value - value != 0:
            raise RunwrightError(ErrorCode.INVALID_ARGUMENT, "A number is too large.")
    elif isinstance(value, dict):
        for key, each in value.items():  # pyright: ignore[reportUnknownVariableType]
            check_text(key)
            check_text(each)
    elif isinstance(value, list | tuple):
        for each in value:  # pyright: ignore[reportUnknownVariableType]
            check_text(each)
