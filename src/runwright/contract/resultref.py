"""References to the results of a playbook's tasks that are kept outside the log.

A reference is an address that stays the same wherever the bytes lie, and says enough of them to be of use unread:
how large they are, their hash, the fields that the playbook selects, and how they begin.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any
from urllib.parse import quote, unquote

import msgspec

from .paths import EntityPath
from .playbook import Compression, Scope

_ADDRESS = re.compile(
    r"noetl://execution/([^/]+)/step/([^/]+)/task/([^/]+)/run/(\d{1,18})((?:\.\d{1,18})*)\.(\d{1,18})/attempt/(\d{1,18})",
    re.ASCII,
)


class ResultMeta(msgspec.Struct, frozen=True):
    """What is known of the value. Hash and size are those of its JSON, before compression."""

    bytes: int
    sha256: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]
    content_type: str = "application/json"
    compression: Compression = Compression.NONE


class ResultPreview(msgspec.Struct, frozen=True):
    """How a value begins."""

    truncated: bool
    bytes: int
    sample: str


class ResultRef(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="kind", tag="result_ref"):
    ref: str
    store: str
    scope: Scope
    expires_at: str | None = None
    meta: ResultMeta
    extracted: dict[str, Any] = {}
    preview: ResultPreview | None = None


def result_address(run_id: str, place: EntityPath, attempt: int) -> str:
    """`run` counts visits of the step, iterations, and visits of the task: 1.57.2 is the task's second in iteration 57
    of the step's first."""
    run = ".".join(map(str, (place.visit, *place.indexes, place.task_visit)))
    parts = (quote(run_id, safe=""), quote(place.step, safe=""), quote(place.task or "", safe=""), run, attempt)
    return "noetl://execution/{}/step/{}/task/{}/run/{}/attempt/{}".format(*parts)


class ResultAddress(msgspec.Struct, frozen=True):
    run_id: str
    place: EntityPath
    attempt: int


def parse_result_address(text: str) -> ResultAddress | None:
    match = _ADDRESS.fullmatch(text)
    if match is None:
        return None
    run_id, step, task, visit, indexes, task_visit, attempt = match.groups()
    iterations = tuple(int(index) for index in indexes.split(".")[1:])
    place = EntityPath(unquote(step), int(visit), 1, iterations, unquote(task), int(task_visit))
    return ResultAddress(unquote(run_id), place, int(attempt))


def digest_in(ref: Mapping[str, Any]) -> str:
    """The SHA-256 of what a reference names, whichever kind it is."""
    meta = ref.get("meta")
    return str(meta.get("sha256") if isinstance(meta, dict) else ref.get("sha256"))  # pyright: ignore[reportUnknownMemberType, reportUnknownArgumentType]
