"""Responses of routes: JSON, ETags, documented problems; and validation of request values."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from typing import Any, NamedTuple

import msgspec
from litestar import Response
from litestar.openapi.datastructures import ResponseSpec

from runwright.contract.errors import ErrorCode, RunwrightError

from .problems import CODES_BY_STATUS, MEDIA_TYPE, ProblemDocument

_encoder = msgspec.json.Encoder()
IMMUTABLE = "private, max-age=31536000, immutable"


def json_response(document: Any, *, status: int = 200, headers: Mapping[str, str] | None = None) -> Response[Any]:
    body = document if isinstance(document, bytes) else _encoder.encode(document)
    return Response(
        content=body,
        status_code=status,
        media_type="application/json",
        headers={"cache-control": "no-store", **(headers or {})},
    )


class EtagCheck(NamedTuple):
    headers: dict[str, str]
    """Headers of the response."""
    not_modified: Response[Any] | None
    """The 304 response, if the caller has this version already."""


def check_etag(if_none_match: str | None, version: str, *, immutable: bool) -> EtagCheck:
    """Compare the header If-None-Match with the ETag of a version: a text that changes with the content."""
    etag = f'"{sha256(version.encode(errors="replace")).hexdigest()[:32]}"'
    headers = {"etag": etag, "cache-control": IMMUTABLE if immutable else "private, no-cache"}
    if if_none_match is None:
        return EtagCheck(headers, None)
    etags = [each.strip().removeprefix("W/") for each in if_none_match.split(",")]
    if if_none_match.strip() != "*" and etag not in etags:
        return EtagCheck(headers, None)
    not_modified = Response[Any](content=b"", status_code=304, headers=headers, media_type="application/json")
    return EtagCheck(headers, not_modified)


def problem_responses(*statuses: int) -> dict[int, ResponseSpec]:
    """Problem responses for the OpenAPI description of a route: the given statuses, and those of every route."""
    return {
        status: ResponseSpec(
            data_container=ProblemDocument,
            description=", ".join(CODES_BY_STATUS[status]),
            media_type=MEDIA_TYPE,
            generate_examples=False,
        )
        for status in sorted({400, 401, 403, 429, 500, 503, *statuses})
    }


def validate_storable(value: Any) -> None:
    """Raise INVALID_ARGUMENT for values that stores cannot hold: text with NUL, infinite numbers, NaN."""
    if isinstance(value, str):
        if "\0" in value:
            raise RunwrightError(ErrorCode.INVALID_ARGUMENT, "Text contains a NUL character.")
    elif isinstance(value, float):
        if value - value != 0:
            raise RunwrightError(ErrorCode.INVALID_ARGUMENT, "Number out of range.")
    elif isinstance(value, dict):
        for key, each in value.items():  # pyright: ignore[reportUnknownVariableType]
            validate_storable(key)
            validate_storable(each)
    elif isinstance(value, list | tuple):
        for each in value:  # pyright: ignore[reportUnknownVariableType]
            validate_storable(each)
