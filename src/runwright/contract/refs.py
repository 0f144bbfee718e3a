"""References to data outside of the log: artifacts, plans, runs in another engine."""

from __future__ import annotations

from hashlib import sha256 as _sha256
from typing import Annotated, Any, Literal
from urllib.parse import quote, unquote

import msgspec

Name = Annotated[str, msgspec.Meta(max_length=1024)]

DEFAULT_TENANT = "default"


def tenant_scoped_name(tenant_id: str, sha256: str) -> str:
    """Return the name under which content of a tenant is stored.

    The same bytes of two tenants have different names, so that knowing a hash gives no access to the content of
    another tenant. Content of the default tenant is stored under the plain hash.
    """
    if tenant_id == DEFAULT_TENANT:
        return sha256
    return _sha256(f"{tenant_id}|{sha256}".encode()).hexdigest()


class ArtifactRef(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    uri: str
    kind: str
    sha256: str | None = None
    size_bytes: int | None = None
    expires_at: str | None = None


class PlanRef(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    uri: str
    sha256: str
    schema_version: str
    plan_id: str
    plan_version: str
    size_bytes: int | None = None
    expires_at: str | None = None
    compression: str | None = None


class EngineRun(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """The ids of a run in its engine: the structured form of `engineRunRef`."""

    provider: Name
    workflow_id: Name
    run_id: Name
    namespace: str | None = None
    task_queue: str | None = None
    conductor_url: str | None = None

    @property
    def scope(self) -> str | None:
        """Where the ids are unique: the namespace of Temporal, the address of Conductor."""
        return self.namespace or self.conductor_url


def parse_engine_run_ref(uri: str) -> EngineRun | None:
    """Parse a reference in text form; None if it is incomplete. Parts may be percent-encoded.

    `temporal://<namespace>/<workflow type>/<workflow id>/<run id>`; any other provider:
    `<provider>://<workflow id>/<run id>`.
    """
    provider, separator, rest = uri.partition("://")
    parts = [unquote(part) for part in rest.split("/")]
    if not separator or not provider or not all(parts) or max(map(len, parts)) > 1024:
        return None
    if provider == "temporal" and len(parts) == 4:
        namespace, _, workflow_id, run_id = parts
        return EngineRun(provider, workflow_id, run_id, namespace=namespace)
    if provider != "temporal" and len(parts) == 2:
        return EngineRun(provider, parts[0], parts[1])
    return None


def format_engine_run_ref(run: EngineRun) -> str:
    """Return the text form of a reference, without the type of a workflow of Temporal, which it does not contain."""
    parts = [run.workflow_id, run.run_id]
    if run.provider == "temporal":
        parts = [run.namespace or "-", "-", *parts]
    return f"{run.provider}://" + "/".join(quote(part, safe="") for part in parts)


class ErrorInfo(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """The error of a step. Other keys are stored in the log and ignored here."""

    code: str | None = None
    message: str | None = None
    retryable: bool | None = None
    category: str | None = None
    facts: dict[str, Any] | None = None
    """Structured details. `retryAfter`, in seconds, is the minimum delay of a retry by policy."""


class StepOutput(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A step's return value with a status, artifacts and an error, instead of a plain result."""

    status: Literal["SUCCESS", "FAILED"] = "SUCCESS"
    artifact_refs: list[ArtifactRef] = []
    error: ErrorInfo | None = None
    result: Any = None


JsonObject = dict[str, Any]
