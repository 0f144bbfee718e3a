"""References to results of playbook tasks that are stored outside of the log.

A reference contains an address, which does not depend on where the bytes are stored, and enough to use the result
without fetching it: size, hash, the fields that the playbook selects, and a preview.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any
from urllib.parse import quote, unquote

import msgspec

from .paths import EntityPath
from .playbook import Compression, ResultScope

_ADDRESS = re.compile(
    r"noetl://execution/([^/]+)/step/([^/]+)/task/([^/]+)/run/(\d{1,18})((?:\.\d{1,18})*)\.(\d{1,18})/attempt/(\d{1,18})",
    re.ASCII,
)


class ResultMeta(msgspec.Struct, frozen=True):
    """Metadata of the value. Hash and size are those of its JSON before compression."""

    bytes: int
    sha256: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]
    content_type: str = "application/json"
    compression: Compression = Compression.NONE


class ResultPreview(msgspec.Struct, frozen=True):
    """The beginning of a value."""

    truncated: bool
    bytes: int
    sample: str


class ResultRef(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="kind", tag="result_ref"):
    ref: str
    store: str
    scope: ResultScope
    expires_at: str | None = None
    meta: ResultMeta
    extracted: dict[str, Any] = {}
    preview: ResultPreview | None = None


def result_address(run_id: str, path: EntityPath, attempt: int) -> str:
    """Return the address of a task's result.

    `run` consists of the visit of the step, the iterations, and the visit of the task: 1.57.2 is the second visit of
    the task in iteration 57 of the first visit of the step.
    """
    run = ".".join(map(str, (path.visit, *path.indexes, path.task_visit)))
    parts = (quote(run_id, safe=""), quote(path.step, safe=""), quote(path.task or "", safe=""), run, attempt)
    return "noetl://execution/{}/step/{}/task/{}/run/{}/attempt/{}".format(*parts)


class ResultAddress(msgspec.Struct, frozen=True):
    run_id: str
    path: EntityPath
    attempt: int


def parse_result_address(text: str) -> ResultAddress | None:
    match = _ADDRESS.fullmatch(text)
    if match is None:
        return None
    run_id, step, task, visit, indexes, task_visit, attempt = match.groups()
    iterations = tuple(int(index) for index in indexes.split(".")[1:])
    path = EntityPath(unquote(step), int(visit), 1, iterations, unquote(task), int(task_visit))
    return ResultAddress(unquote(run_id), path, int(attempt))


def ref_digest(ref: Mapping[str, Any]) -> str:
    """Return the SHA-256 of the referenced value, for both kinds of references."""
    meta = ref.get("meta")
    return str(meta.get("sha256") if isinstance(meta, dict) else ref.get("sha256"))  # pyright: ignore[reportUnknownMemberType, reportUnknownArgumentType]
