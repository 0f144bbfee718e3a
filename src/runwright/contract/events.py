"""The two forms of an event: RunEventWrite, which a producer appends, and RunEventRecord, which the log returns.

Python names are snake_case, wire names camelCase. The envelope is closed: an unknown field is refused. The payload
remains the bytes that the producer sent.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import msgspec

from .upcasts import upcast

NO_PAYLOAD = msgspec.Raw()
"""The value of `raw_payload` of an event without a payload."""


def wire_name(name: str) -> str:
    if name == "raw_payload":
        return "payload"
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


class RunEventWrite(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True, rename=wire_name
):
    """An event as a producer appends it."""

    event_id: str
    event_type: str
    run_id: str
    tenant_id: str
    project_id: str
    environment_id: str
    plan_id: str
    plan_version: str
    engine_attempt_id: int
    logical_attempt_id: int
    idempotency_key: str
    emitted_at: str
    step_id: str | None = None
    schema_version: int | None = None
    emitted_by: str | None = None
    foreign_event_id: str | None = None
    traceparent: str | None = None
    raw_payload: msgspec.Raw = NO_PAYLOAD

    @property
    def payload(self) -> dict[str, Any] | None:
        """The decoded payload in the newest version of its type; None if there is none."""
        raw = bytes(self.raw_payload)
        if not raw or raw == b"null":
            return None
        content = msgspec.json.decode(raw)
        return content if self.schema_version is None else upcast(self.event_type, self.schema_version, content)


class RunEventRecord(RunEventWrite, frozen=True, kw_only=True):
    """An event as the log returns it: as written, with the fields that the Append Authority assigns."""

    run_seq: int
    persisted_at: str
    hash: str
    redacted: bool = False  # the payload was erased; its digest remains in the hash chain


class RunConstants(NamedTuple):
    """The constants of a run as a tuple, to be compared and stored."""

    run_id: str
    tenant_id: str
    project_id: str
    environment_id: str
    plan_id: str
    plan_version: str


class RunIdentity(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The constants of a run. Every event of the run repeats them; the stores store them once."""

    run_id: str
    tenant_id: str
    project_id: str
    environment_id: str
    plan_id: str
    plan_version: str

    @property
    def context(self) -> RunConstants:
        plan = (self.plan_id, self.plan_version)
        return RunConstants(self.run_id, self.tenant_id, self.project_id, self.environment_id, *plan)


class FoldableEvent(Protocol):
    """The fields of an event that a fold needs. Records and rows of the stores have them."""

    @property
    def run_seq(self) -> int: ...
    @property
    def event_type(self) -> str: ...
    @property
    def step_id(self) -> str | None: ...
    @property
    def logical_attempt_id(self) -> int: ...
    @property
    def engine_attempt_id(self) -> int: ...
    @property
    def emitted_at(self) -> str: ...
    @property
    def schema_version(self) -> int | None: ...
    @property
    def raw_payload(self) -> bytes | msgspec.Raw | None: ...


class Receipt(msgspec.Struct, frozen=True, rename="camel", gc=False):
    """The event is in the log: appended now (`appended`) or before (`duplicate`)."""

    status: str
    event_id: str
    run_seq: int
    persisted_at: str
    idempotent: bool
    persisted: bool


class Refusal(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """The event is not in the log. Deterministic: the same event and the same log give the same refusal."""

    status: str
    code: str
    detail: str
    facts: dict[str, Any] = {}
