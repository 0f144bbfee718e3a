"""The OpenAPI document at `/openapi.json`.

The framework generates it from the routes. Added here: examples, formats that a route returns besides its declared
type, and `POST /v1/events`, which bypasses the framework.
"""

from __future__ import annotations

from typing import Any, cast

import msgspec
from litestar import Litestar
from litestar.openapi.config import OpenAPIConfig
from litestar.openapi.spec import Components, SecurityScheme, Tag

from runwright._version import __version__
from runwright.contract.noetl.view import NoetlEvent

from .middleware import FRAMEWORK_PATH, PUBLIC_PATHS
from .problems import CODES_BY_STATUS, MEDIA_TYPE

SCHEMA_NAMES = {
    "ArcMode": "Mode",
    "ManifestStrategy": "Strategy",
    "PolicyRule": "Rule",
    "ProblemDocument": "Problem",
    "ResultScope": "Scope",
    "SelectedField": "Select",
    "StepLease": "Lease",
    "StepOutputUpload": "Output",
}
"""Published schema names of classes that are named differently in the code. Clients are generated from them."""

_RUN = "5f0c2f0e-6c1e-4b7a-9a53-3c1c8f0a7d11"
_SIGNAL = "9b2d6c1e-8f44-4c0b-9a57-0d6a1f1c2e33"

EXAMPLE_REQUESTS: dict[str, Any] = {
    "startRun": {
        "plan": {"plan": "hello", "steps": [{"id": "greet", "shell": "echo hello"}]},
        "context": {"environmentId": "prod"},
        "params": {},
        "runRequestId": "order-4711",
    },
    "rerun": {"fromStep": "load"},
    "sendSignal": {"signalId": _SIGNAL, "signalType": "PAUSE", "reason": "The warehouse is down."},
    "confirmSignal": {"decision": "ACCEPTED", "reason": "I looked at it."},
    "sendEvent": {"key": "order-4711", "payload": {"amount": 12}},
    "createToken": {"name": "jane", "tenantId": "acme", "roles": ["Operator"], "expiresIn": "30d"},
    "appendEvents": {
        "eventId": "0e9d2f86-2d6a-4c3f-8f7a-61d5e1a0b9c4",
        "eventType": "RunStarted",
        "runId": _RUN,
        "tenantId": "default",
        "projectId": "default",
        "environmentId": "default",
        "planId": "orders",
        "planVersion": "3",
        "engineAttemptId": 1,
        "logicalAttemptId": 1,
        "idempotencyKey": "b0a1d1f2c8b6b6a9a53a2f2f4c4f7d1f0f5a8a1c2d3e4f5061728394a5b6c7d8",
        "emittedAt": "2026-01-31T08:00:00Z",
    },
}
"""Example bodies by operation. A test validates every example against the schema."""

EXAMPLE_RESPONSES: dict[str, dict[str, Any]] = {
    "startRun": {
        "201": {
            "runId": _RUN,
            "created": True,
            "status": "RUNNING",
            "tenantId": "default",
            "projectId": "default",
            "environmentId": "prod",
            "planId": "hello",
            "planVersion": "22cdffd3808806980a10be240061281730003f81ca8e353fef16fea64dbe3e2b",
            "engineRunRef": {"provider": "embedded", "workflowId": _RUN, "runId": _RUN},
        }
    },
    "getRunStatus": {
        "200": {
            "runId": _RUN,
            "status": "PAUSED",
            "substatus": "DRAINING",
            "message": "Workflow paused. Waiting for 3 in-flight tasks to complete.",
            "startedAt": "2026-01-31T08:00:00Z",
        }
    },
    "sendSignal": {
        "200": {
            "signalDecisionId": "4c1f7a52-6a0e-4c55-8b1c-1f6f2a7b9d00",
            "signalId": _SIGNAL,
            "signalType": "PAUSE",
            "decision": "ACCEPTED",
            "reason": "The warehouse is down.",
            "policyDecisionId": "role/Operator",
            "audit": {
                "actorId": "jane",
                "actorRole": "Operator",
                "tenantId": "acme",
                "timestamp": "2026-01-31T08:00:05Z",
                "source": "api",
                "sourceIp": "192.0.2.7",
            },
            "engineProcessedAt": "2026-01-31T08:00:05.2Z",
            "engineResult": "PAUSED",
        }
    },
    "whoAmI": {
        "200": {
            "actorId": "jane",
            "roles": ["Operator"],
            "scopes": [],
            "tenantId": "acme",
            "tokenId": "0a1b2c3d4e5f6071",
        }
    },
    "healthz": {"200": {"status": "ok", "detail": None}},
}
"""Example responses by operation and status."""


def openapi_config() -> OpenAPIConfig:
    return OpenAPIConfig(
        title="Runwright",
        version=__version__,
        description="Runs, their events and signals to them. Errors are RFC 9457 problems with a `code`.",
        path=FRAMEWORK_PATH,
        components=Components(security_schemes={"token": SecurityScheme(type="http", scheme="bearer")}),
        security=[{"token": []}],
        tags=[
            Tag("runs", "Start, list and inspect runs."),
            Tag("events", "The event log: read it, follow it, append events of another engine."),
            Tag("signals", "Signals from operators, and decisions on them."),
            Tag("workers", "Steps executed by workers."),
            Tag("people", "Tokens, audit, alerts."),
            Tag("store", "Checks of the whole store."),
            Tag("health", "Health checks and metrics."),
        ],
    )


def encode_openapi(app: Litestar) -> bytes:
    """Build the OpenAPI document and encode it as JSON."""
    document: dict[str, Any] = app.openapi_schema.to_schema()
    _rename_schemas(document)
    paths: dict[str, Any] = document["paths"]
    paths.update(_events_path())
    for path, item in paths.items():
        for method, operation in item.items():
            if method in ("get", "post", "delete", "put"):
                _complete_operation(path, operation)
    return msgspec.json.encode(document)


def _rename_schemas(document: Any) -> None:
    """Replace the names of SCHEMA_NAMES in components, titles and references."""
    schemas: dict[str, Any] = document["components"]["schemas"]
    for class_name, name in SCHEMA_NAMES.items():
        schemas[name] = {**schemas.pop(class_name), "title": name}
    _rename_references(document)


def _rename_references(node: Any) -> None:
    if isinstance(node, list):
        for item in cast("list[Any]", node):
            _rename_references(item)
    elif isinstance(node, dict):
        fields = cast("dict[str, Any]", node)
        prefix, _, class_name = str(fields.get("$ref", "")).rpartition("/")
        if class_name in SCHEMA_NAMES:
            fields["$ref"] = f"{prefix}/{SCHEMA_NAMES[class_name]}"
        for value in fields.values():
            _rename_references(value)


def _complete_operation(path: str, operation: dict[str, Any]) -> None:
    if operation["operationId"] == "getPlan":
        operation["responses"]["200"]["content"]["application/yaml"] = {"schema": {}}
    if operation["operationId"] == "listEvents":
        _add_noetl_page(operation["responses"]["200"]["content"]["application/json"])
    if path in PUBLIC_PATHS:
        operation["security"] = []
    name = operation["operationId"]
    if name in EXAMPLE_REQUESTS:
        for content in operation["requestBody"]["content"].values():
            content["example"] = EXAMPLE_REQUESTS[name]
    for status, response in operation["responses"].items():
        if status in EXAMPLE_RESPONSES.get(name, {}):
            for content in response.get("content", {}).values():
                content["example"] = EXAMPLE_RESPONSES[name][status]
        if status == "304":
            response.pop("content", None)


def _add_noetl_page(content: dict[str, Any]) -> None:
    """Add the page of events that `format=noetl` returns, in the NoETL event model."""
    (event,), definitions = msgspec.json.schema_components([NoetlEvent])
    noetl_event: dict[str, Any] = definitions.get("NoetlEvent", event)
    page: dict[str, Any] = {
        "type": "object",
        "required": ["events", "lastEventSeq", "nextAfterSeq"],
        "properties": {
            "events": {"type": "array", "items": noetl_event},
            "lastEventSeq": {"type": "integer"},
            "nextAfterSeq": {"type": ["integer", "null"]},
        },
    }
    content["schema"] = {"anyOf": [content["schema"], page]}


def _events_path() -> dict[str, Any]:
    """Describe `POST /v1/events`, which bypasses the framework for speed."""
    return {
        "/v1/events": {
            "post": {
                "operationId": "appendEvents",
                "tags": ["events"],
                "summary": "Append one or many events of another engine",
                "description": "Each event gets a receipt or a refusal, in the order of the request. For each run, "
                "events are appended up to the first that is refused. A single event that is refused is answered with "
                "a problem. With `format=noetl` the events are in the NoETL event model: each is imported once by its "
                "execution_id and event_id, and names of earlier models are converted to current ones.",
                "parameters": _events_parameters(),
                "requestBody": _events_body(),
                "responses": _events_responses(),
            }
        },
    }


def _events_parameters() -> list[dict[str, Any]]:
    scope_parameters = (
        ("tenant", "Tenant"),
        ("project", "Project"),
        ("environment", "Environment"),
        ("plan", "Plan, if they name no playbook,"),
    )
    formats = {"enum": ["runevents", "noetl"], "default": "runevents"}
    return [
        _query("format", formats, "Event model of the request."),
        *(
            _query(name, {"type": "string", "minLength": 1}, f"{title} of events in the NoETL event model.")
            for name, title in scope_parameters
        ),
    ]


def _events_body() -> dict[str, Any]:
    one = {"type": "object", "required": ["eventType"], "properties": {"eventType": {"type": "string"}}}
    batch = {
        "type": "object",
        "required": ["events"],
        "additionalProperties": False,
        "properties": {"events": {"type": "array", "items": {"type": "object"}}},
    }
    body: dict[str, Any] = {"oneOf": [one, {"type": "array", "items": {"type": "object"}}, batch]}
    return {
        "required": True,
        "content": {
            "application/json": {"schema": body},
            "application/x-ndjson": {"schema": {"type": "string"}},
        },
    }


def _events_responses() -> dict[str, Any]:
    receipts: dict[str, Any] = {
        "type": "object",
        "required": ["results", "appended", "deduped"],
        "properties": {
            "results": {"type": "array", "items": {"type": "object"}},
            "appended": {"type": "array", "items": {"type": "string"}},
            "deduped": {"type": "array", "items": {"type": "string"}},
        },
    }

    def received(description: str) -> dict[str, Any]:
        return {"description": description, "content": {"application/json": {"schema": receipts}}}

    return {
        "200": received("All events are in the log; some may have been there before."),
        "201": received("The single event was appended."),
        "207": received("Some events were refused; see the results."),
        **_problems(400, 401, 403, 404, 405, 408, 409, 413, 415, 422, 429, 500, 503),
    }


def _query(name: str, schema: dict[str, Any], description: str) -> dict[str, Any]:
    return {"name": name, "in": "query", "required": False, "schema": schema, "description": description}


def _problems(*statuses: int) -> dict[str, Any]:
    schema = {"$ref": "#/components/schemas/Problem"}
    return {
        str(status): {"description": ", ".join(CODES_BY_STATUS[status]), "content": {MEDIA_TYPE: {"schema": schema}}}
        for status in statuses
    }
