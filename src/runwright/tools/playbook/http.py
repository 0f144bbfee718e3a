"""The `http` task of playbooks: the response body is `data`, and a status of 400 or above is an error."""

from __future__ import annotations

from typing import Any, cast
from urllib.parse import urlencode

import msgspec

from runwright.contract.plan import Step
from runwright.contract.playbook import HTTP, HTTP_IDLE_TIMEOUT
from runwright.tools.base import Lane, StepContext, StepError
from runwright.tools.http import MAX_BYTES, RETRYABLE_STATUSES, HttpInputs, HttpTool, retry_after

FORM = "application/x-www-form-urlencoded"
EVERY_STATUS = ["1xx", "2xx", "3xx", "4xx", "5xx"]


class PlaybookHttpInputs(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    url: str
    method: str = "GET"
    headers: dict[str, Any] = {}
    query: dict[str, Any] = {}
    json: Any = msgspec.UNSET
    content: Any = None
    """Text is sent unchanged, other values as JSON, or as a form if the Content-Type header requires it."""
    bearer: str | None = None
    idle_timeout: str | float = HTTP_IDLE_TIMEOUT
    max_bytes: int = MAX_BYTES


class PlaybookHttpTool:
    kind = HTTP
    inputs = PlaybookHttpInputs
    main_input = None

    def __init__(self, http: HttpTool) -> None:
        self._http = http  # shared, so that the allowed hosts are the same as for http steps

    def check(self, inputs: dict[str, Any], step: Step) -> str | None:
        common = {name: value for name, value in inputs.items() if name not in ("bearer", "content")}
        return self._http.check(common, step)

    def lane(self, inputs: PlaybookHttpInputs, step: Step) -> Lane:  # noqa: ARG002
        return Lane.TOOL_LOOP

    async def run(self, inputs: PlaybookHttpInputs, context: StepContext) -> Any:
        authorization = {} if inputs.bearer is None else {"Authorization": f"Bearer {inputs.bearer}"}
        request = HttpInputs(
            url=inputs.url,
            method=inputs.method,
            headers={**inputs.headers, **authorization},
            query=inputs.query,
            **_body(inputs),
            expect=list(EVERY_STATUS),
            idle_timeout=inputs.idle_timeout,
            max_bytes=inputs.max_bytes,
        )
        try:
            response = await self._http.run(request, context)
        except StepError as error:
            error.facts.setdefault("kind", "http")
            raise
        status, headers = response["status"], response["headers"]
        result = {"status": status, "headers": headers, "data": response.get("body")}
        result |= {"encoding": response["encoding"]} if "encoding" in response else {}
        if status < 400:
            return result
        facts: dict[str, Any] = {"kind": "http", "http": {"status": status, "headers": headers}, "result": result}
        if (seconds := retry_after(headers)) is not None:
            facts["retryAfter"] = seconds
        message = f"{inputs.method.upper()} {inputs.url.partition('?')[0]} returned {status}."
        raise StepError("HTTP_STATUS", message, retryable=status in RETRYABLE_STATUSES, category="http", **facts)


def _body(inputs: PlaybookHttpInputs) -> dict[str, Any]:
    content = inputs.content
    if content is None:
        return {"json": inputs.json}
    if isinstance(content, str):
        return {"body": content}
    content_types = [str(value) for name, value in inputs.headers.items() if name.lower() == "content-type"]
    if isinstance(content, dict) and any(content_type.lower().startswith(FORM) for content_type in content_types):
        return {"body": urlencode(cast("dict[str, Any]", content), doseq=True)}
    return {"json": content}
