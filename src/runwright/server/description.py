"""The description of the API at `/openapi.json`: what the framework knows of the routes, and what it cannot know."""

from __future__ import annotations

from typing import Any

import msgspec
from litestar import Litestar
from litestar.openapi.config import OpenAPIConfig
from litestar.openapi.spec import Components, SecurityScheme, Tag

from runwright._version import __version__
from runwright.contract.noetl import NoetlEvent

from .examples import ANSWERS, BODIES
from .gate import FRAMEWORK, OPEN_TO_ALL
from .problems import CODES, MEDIA_TYPE


def openapi_config() -> OpenAPIConfig:
    return OpenAPIConfig(
        title="Runwright",
        version=__version__,
        description="Runs, their events, and what may be done to them. Errors are RFC 9457 problems with a `code`.",
        path=FRAMEWORK,
        components=Components(security_schemes={"token": SecurityScheme(type="http", scheme="bearer")}),
        security=[{"token": []}],
        tags=[
            Tag("runs", "Start runs and look at them."),
            Tag("events", "The log itself: read it, follow it, add to it from another engine."),
            Tag("signals", "What an operator asks of a run."),
            Tag("workers", "Steps that are carried out elsewhere."),
            Tag("people", "Tokens, audit, alerts."),
            Tag("store", "Checks of the store as a whole."),
            Tag("health", "For whoever keeps this server alive."),
        ],
    )


def describe(app: Litestar) -> bytes:
    """The whole description, as it is sent."""
    document: dict[str, Any] = app.openapi_schema.to_schema()
    paths: dict[str, Any] = document["paths"]
    paths.update(_raw_path())
    for path, item in paths.items():
        for method, operation in item.items():
            if method in ("get", "post", "delete", "put"):
                _finish(path, operation)
    return msgspec.json.encode(document)


def _finish(path: str, operation: dict[str, Any]) -> None:
    if operation["operationId"] == "getPlan":
        operation["responses"]["200"]["content"]["application/yaml"] = {"schema": {}}
    if operation["operationId"] == "listEvents":
        _in_either_words(operation["responses"]["200"]["content"]["application/json"])
    if path in OPEN_TO_ALL:
        operation["security"] = []
    name = operation["operationId"]
    if name in BODIES:
        for content in operation["requestBody"]["content"].values():
            content["example"] = BODIES[name]
    for status, response in operation["responses"].items():
        if status in ANSWERS.get(name, {}):
            for content in response.get("content", {}).values():
                content["example"] = ANSWERS[name][status]
        if status == "304":
            response.pop("content", None)


def _in_either_words(content: dict[str, Any]) -> None:
    """A page of events is in our words, or with `format=noetl` in those of that model."""
    (event,), definitions = msgspec.json.schema_components([NoetlEvent])
    each: dict[str, Any] = definitions.get("NoetlEvent", event)
    page: dict[str, Any] = {
        "type": "object",
        "required": ["events", "lastEventSeq", "nextAfterSeq"],
        "properties": {
            "events": {"type": "array", "items": each},
            "lastEventSeq": {"type": "integer"},
            "nextAfterSeq": {"type": ["integer", "null"]},
        },
    }
    content["schema"] = {"anyOf": [content["schema"], page]}


def _raw_path() -> dict[str, Any]:
    """The route that goes past the framework, for speed."""
    receipts: dict[str, Any] = {
        "type": "object",
        "required": ["results", "appended", "deduped"],
        "properties": {
            "results": {"type": "array", "items": {"type": "object"}},
            "appended": {"type": "array", "items": {"type": "string"}},
            "deduped": {"type": "array", "items": {"type": "string"}},
        },
    }
    one = {"type": "object", "required": ["eventType"], "properties": {"eventType": {"type": "string"}}}
    batch = {
        "type": "object",
        "required": ["events"],
        "additionalProperties": False,
        "properties": {"events": {"type": "array", "items": {"type": "object"}}},
    }
    body: dict[str, Any] = {"oneOf": [one, {"type": "array", "items": {"type": "object"}}, batch]}

    def received(description: str) -> dict[str, Any]:
        return {"description": description, "content": {"application/json": {"schema": receipts}}}

    return {
        "/v1/events": {
            "post": {
                "operationId": "appendEvents",
                "tags": ["events"],
                "summary": "Append events from another engine: one, or many",
                "description": "Each gets its receipt or refusal, in order. Of each run, events go in up to the first "
                "that is refused. A single event that is refused is answered with a problem. With `format=noetl` they "
                "are in the words of the NoETL event model, each taken once by its execution_id and event_id; names of "
                "earlier models are brought to today's.",
                "parameters": [
                    _query("format", {"enum": ["runevents", "noetl"], "default": "runevents"}, "In whose words."),
                    *(
                        _query(name, {"type": "string", "minLength": 1}, f"{what} of events in NoETL's words.")
                        for name, what in (
                            ("tenant", "The tenant"),
                            ("project", "The project"),
                            ("environment", "The environment"),
                            ("plan", "The plan, where they name no playbook,"),
                        )
                    ),
                ],
                "requestBody": {
                    "required": True,
                    "content": {
                        "application/json": {"schema": body},
                        "application/x-ndjson": {"schema": {"type": "string"}},
                    },
                },
                "responses": {
                    "200": received("All are in the log, some perhaps since earlier."),
                    "201": received("The one event is in the log now."),
                    "207": received("Some were refused; the results say which."),
                    **_problems(400, 401, 403, 404, 405, 408, 409, 413, 415, 422, 429, 500, 503),
                },
            }
        },
    }


def _query(name: str, schema: dict[str, Any], description: str) -> dict[str, Any]:
    return {"name": name, "in": "query", "required": False, "schema": schema, "description": description}


def _problems(*statuses: int) -> dict[str, Any]:
    schema = {"$ref": "#/components/schemas/Problem"}
    return {
        str(status): {"description": ", ".join(CODES[status]), "content": {MEDIA_TYPE: {"schema": schema}}}
        for status in statuses
    }
