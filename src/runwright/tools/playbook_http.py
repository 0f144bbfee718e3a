"""The `http` of playbooks: the answer's body is at `data`, and an answer of 400 or above is an error."""

from __future__ import annotations

from typing import Any, cast
from urllib.parse import urlencode

import msgspec

from runwright.contract.plan import Step
from runwright.contract.playbook import HTTP, HTTP_IDLE

from .base import Lane, StepContext, StepError
from .http import MOST_BYTES, PASSING, HttpInputs, HttpTool, retry_after

FORM = "application/x-www-form-urlencoded"
EVERY_STATUS = ["1xx", "2xx", "3xx", "4xx", "5xx"]


class PlaybookHttpInputs(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    url: str
    method: str = "GET"
    headers: dict[str, Any] = {}
    query: dict[str, Any] = {}
    json: Any = msgspec.UNSET
    content: Any = None
    """Text is sent as it is, anything else as JSON, or as a form where the headers say that it is one."""
    bearer: str | None = None
    idle_timeout: str | float = HTTP_IDLE
    max_bytes: int = MOST_BYTES


class PlaybookHttpTool:
    kind = HTTP
    inputs = PlaybookHttpInputs
    main_input = None

    def __init__(self, http: HttpTool) -> None:
        self._http = http  # what may be called is the same, whoever asks

    def check(self, inputs: dict[str, Any], step: Step) -> str | None:
        plain = {name: value for name, value in inputs.items() if name not in ("bearer", "content")}
        return self._http.check(plain, step)

    def lane(self, inputs: PlaybookHttpInputs, step: Step) -> Lane:  # noqa: ARG002
        return Lane.TOOL_LOOP

    async def run(self, inputs: PlaybookHttpInputs, context: StepContext) -> Any:
        own = {} if inputs.bearer is None else {"Authorization": f"Bearer {inputs.bearer}"}
        request = HttpInputs(
            url=inputs.url,
            method=inputs.method,
            headers={**inputs.headers, **own},
            query=inputs.query,
            **_body(inputs),
            expect=list(EVERY_STATUS),
            idle_timeout=inputs.idle_timeout,
            max_bytes=inputs.max_bytes,
        )
        try:
            answer = await self._http.run(request, context)
        except StepError as error:
            error.facts.setdefault("kind", "http")
            raise
        status, told = answer["status"], answer["headers"]
        result = {"status": status, "headers": told, "data": answer.get("body")}
        result |= {"encoding": answer["encoding"]} if "encoding" in answer else {}
        if status < 400:
            return result
        facts: dict[str, Any] = {"kind": "http", "http": {"status": status, "headers": told}, "result": result}
        if (wait := retry_after(told)) is not None:
            facts["retryAfter"] = wait
        message = f"{inputs.method.upper()} {inputs.url.partition('?')[0]} answered {status}."
        raise StepError("HTTP_STATUS", message, retryable=status in PASSING, category="http", **facts)


def _body(inputs: PlaybookHttpInputs) -> dict[str, Any]:
    content = inputs.content
    if content is None:
        return {"json": inputs.json}
    if isinstance(content, str):
        return {"body": content}
    kinds = [str(value) for name, value in inputs.headers.items() if name.lower() == "content-type"]
    if isinstance(content, dict) and any(kind.lower().startswith(FORM) for kind in kinds):
        return {"body": urlencode(cast("dict[str, Any]", content), doseq=True)}
    return {"json": content}
