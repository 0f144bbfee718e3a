"""Messages between the parent and the process of an isolated step: one JSON document per line, over a socket.

The parent sends one StepRequest. The child sends any number of ChildMessages; the last one is the outcome, and each
of the others is answered with a ParentReply.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from runwright.contract.refs import ArtifactRef, ErrorInfo

RequestKind = Literal["checkpoint", "store", "fetch"]


class StepRequest(msgspec.Struct):
    """The step that the child executes."""

    kind: str
    inputs: msgspec.Raw
    sys_path: list[str]
    run_id: str
    step_id: str
    attempt: int
    engine_attempt: int
    restored: Any = None
    secrets: dict[str, str] = {}


class ChildMessage(msgspec.Struct, omit_defaults=True):
    """A request to the parent, such as writing a checkpoint, or the outcome of the step."""

    kind: RequestKind | Literal["result", "error"]
    body: msgspec.Raw
    artifacts: list[ArtifactRef] = []


class ParentReply(msgspec.Struct, omit_defaults=True):
    """The result of a request of the child."""

    error: ErrorInfo | None = None
    result: Any = None
