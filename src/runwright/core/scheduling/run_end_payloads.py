"""Payloads of the events that end a run, with a bounded list of artifacts."""

from __future__ import annotations

import msgspec

from runwright.contract import payloads
from runwright.contract.refs import ArtifactRef, ErrorInfo

MAX_ARTIFACT_LIST_BYTES = 512 * 1024  # bytes of artifact references in the end of a run


def completed_payload(artifacts: list[ArtifactRef], duration_ms: float | None) -> payloads.RunEnded:
    """A successful end. Artifacts that exceed the limit of an event are counted; the ends of steps list them."""
    listed, size = 0, 0
    for artifact in artifacts:
        size += len(msgspec.json.encode(artifact)) + 1
        if size > MAX_ARTIFACT_LIST_BYTES:
            break
        listed += 1
    left_out = len(artifacts) - listed
    return payloads.RunEnded(
        artifact_refs=artifacts[:listed] or None, artifacts_left_out=left_out or None, duration_ms=duration_ms
    )


def failed_payload(path: str | None, error: ErrorInfo | None, duration_ms: float | None) -> payloads.RunEnded:
    cause = payloads.RootCause(path, *((None, None) if error is None else (error.code, error.message)))
    return payloads.RunEnded(root_cause=cause, error=error, duration_ms=duration_ms)
