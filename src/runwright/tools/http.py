"""A step that calls an address on the web."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from datetime import UTC
from email.utils import parsedate_to_datetime
from fnmatch import fnmatchcase
from http import HTTPStatus
from http.cookiejar import CookieJar, DefaultCookiePolicy
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import urlsplit

import msgspec

from runwright.contract.plan import Step
from runwright.contract.playbook import HTTP_IDLE
from runwright.plans.durations import read_duration

from .base import Lane, StepContext, StepError, is_open
from .pooled import pooled

if TYPE_CHECKING:
    import httpx

METHODS = ("GET", "HEAD", "OPTIONS", "POST", "PUT", "PATCH", "DELETE")
SAFE = frozenset({"GET", "HEAD", "OPTIONS"})

MOST_BYTES = 16 * 1024 * 1024
CONNECT_SECONDS = 10.0
CONNECTIONS = 100
MOST_REDIRECTS = 10
LONGEST_RETRY_AFTER = 24 * 3600.0

PASSING = frozenset({408, 425, 429, 500, 502, 503, 504})
"""Answers that may be others next time."""

_UNTOLD = frozenset({"set-cookie", "set-cookie2"})
"""Response headers that carry credentials: they do not become part of the result."""


class HttpInputs(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    url: str
    method: str = "GET"
    headers: dict[str, Any] = {}
    query: dict[str, Any] = {}
    json: Any = msgspec.UNSET
    body: str | None = None
    expect: int | str | list[Any] = "2xx"
    idle_timeout: str | float = HTTP_IDLE
    max_bytes: int = MOST_BYTES


class HttpTool:
    kind = "http"
    inputs = HttpInputs
    main_input = "url"

    def __init__(self, allowed: list[str] | None = None) -> None:
        self._allowed = allowed  # patterns for `host` or `host:port`; None: anything

    def check(self, inputs: dict[str, Any], step: Step) -> str | None:  # noqa: ARG002
        if find_spec("httpx") is None:
            return "This installation cannot call addresses: install `runwright[http]`."
        return _trouble(inputs)

    def lane(self, inputs: HttpInputs, step: Step) -> Lane:  # noqa: ARG002
        return Lane.TOOL_LOOP

    async def run(self, inputs: HttpInputs, context: StepContext) -> Any:
        import httpx

        given = cast("dict[str, Any]", msgspec.to_builtins(inputs))
        if (trouble := _trouble(given)) is not None:
            raise _bad(trouble)
        client = pooled((HttpTool, id(self)), self._client, lambda client: client.aclose())
        try:
            request = client.build_request(
                inputs.method.upper(),
                httpx.URL(inputs.url).copy_merge_params(_query(inputs.query)),
                headers=_headers(inputs, context),
                content=None if inputs.body is None else inputs.body.encode(),
                json=None if inputs.json is msgspec.UNSET else inputs.json,
                # Waiting for a connection of ours to be free is nobody's fault; the step's own timeout bounds it.
                timeout=httpx.Timeout(_seconds(inputs.idle_timeout), connect=CONNECT_SECONDS, pool=None),
            )
            response = await client.send(request, stream=True)
        except httpx.InvalidURL as error:
            raise _bad(f"`url` is no address: {error}.") from None
        except httpx.TooManyRedirects:
            raise StepError(
                "HTTP_REDIRECTS", f"{inputs.url} led to more than {MOST_REDIRECTS} others.", retryable=False
            ) from None
        except httpx.TransportError as error:
            raise _no_answer(error, inputs) from None
        try:
            return await _answer(response, inputs)
        except httpx.TransportError as error:
            raise _no_answer(error, inputs) from None
        finally:
            await response.aclose()

    def _client(self) -> httpx.AsyncClient:
        import httpx

        limits = httpx.Limits(max_connections=CONNECTIONS, max_keepalive_connections=CONNECTIONS)
        return httpx.AsyncClient(
            follow_redirects=True,
            max_redirects=MOST_REDIRECTS,
            limits=limits,
            event_hooks={"request": [self._look_where]},
            cookies=CookieJar(DefaultCookiePolicy(allowed_domains=[])),  # what one step is given is not for others
        )

    async def _look_where(self, request: httpx.Request) -> None:
        """Also for each redirect: what may not be called directly may not be reached in a roundabout way."""
        if self._allowed is None:
            return
        host, port = request.url.host, request.url.port or {"http": 80, "https": 443}.get(request.url.scheme)
        if not any(
            fnmatchcase(name, pattern.lower()) for pattern in self._allowed for name in (host, f"{host}:{port}")
        ):
            raise StepError(
                "HTTP_NOT_ALLOWED",
                f"{host} is none of the hosts that [http] allow in runwright.toml lists.",
                retryable=False,
            )


def _trouble(inputs: dict[str, Any]) -> str | None:
    url, method, expect = inputs.get("url"), inputs.get("method", "GET"), inputs.get("expect", "2xx")
    if isinstance(url, str) and not is_open(url) and (trouble := _url_trouble(url)) is not None:
        return trouble
    if not is_open(method) and str(method).upper() not in METHODS:
        return f"`method` is one of {', '.join(METHODS)}."
    if inputs.get("json") is not None and inputs.get("body") is not None:
        return "Give `json` or `body`, not both."
    if not is_open(expect) and not all(is_open(item) or _statuses(item) for item in _listed(expect)):
        return "`expect` is a status such as 200, a class such as 2xx, or a list of these."
    most = inputs.get("maxBytes", MOST_BYTES)
    if isinstance(most, int) and most < 1:
        return "`maxBytes` is at least 1."
    idle = inputs.get("idleTimeout", HTTP_IDLE)
    if not is_open(idle) and not _is_duration(idle):
        return "`idleTimeout` is a time such as 30s."
    headers = cast("dict[str, Any]", inputs.get("headers") or {})
    return None if is_open(headers) else _header_trouble(headers)


def _url_trouble(url: str) -> str | None:
    if not url.lower().startswith(("http://", "https://")):
        return "`url` begins with http:// or https://."
    try:
        parts = urlsplit(url)
        if not parts.hostname or parts.port == 0:  # reading the port checks it
            return "`url` names no host, or no port that there can be."
    except ValueError as error:
        return f"`url` is no address: {error}."
    return None


def _header_trouble(headers: dict[str, Any]) -> str | None:
    for name, value in headers.items():
        if not name or not name.isascii() or any(char in name for char in " :\r\n\t\0"):
            return f"{name!r} cannot be the name of a header."
        if not is_open(value) and not isinstance(value, str | int | float):
            return f"The header {name} is to be text."
        if isinstance(value, str) and not is_open(value) and any(char in value for char in "\r\n\0"):
            return f"The header {name} holds a line break."
    return None


def _is_duration(value: Any) -> bool:
    try:
        return _seconds(value) > 0
    except ValueError:
        return False


def _seconds(value: str | float) -> float:
    return read_duration(value)


def _listed(expect: Any) -> list[Any]:
    return cast("list[Any]", expect) if isinstance(expect, list) else [expect]


def _statuses(item: Any) -> range | None:
    """The answers that one item of `expect` takes."""
    if isinstance(item, int) and not isinstance(item, bool) and 100 <= item <= 599:
        return range(item, item + 1)
    if isinstance(item, str) and item.isdecimal() and len(item) == 3:
        return _statuses(int(item))
    if isinstance(item, str) and len(item) == 3 and item[0] in "12345" and item[1:].lower() == "xx":
        first = 100 * int(item[0])
        return range(first, first + 100)
    return None


def _headers(inputs: HttpInputs, context: StepContext) -> list[tuple[bytes, bytes]]:
    headers = {name: _text(value) for name, value in inputs.headers.items()}
    known = {name.lower() for name in headers}
    if inputs.method.upper() not in SAFE and "idempotency-key" not in known:
        headers["Idempotency-Key"] = context.idempotency_token  # the same when the attempt is run anew after a crash
    if inputs.body is not None and "content-type" not in known:
        headers["Content-Type"] = "text/plain; charset=utf-8"
    return [(name.encode(), value.encode()) for name, value in headers.items()]


async def _answer(response: httpx.Response, inputs: HttpInputs) -> dict[str, Any]:
    body = bytearray()
    async for chunk in response.aiter_bytes():  # as sent, or as unpacked: the cap is on what we would have to hold
        body += chunk
        if len(body) > inputs.max_bytes:
            raise StepError(
                "HTTP_TOO_LARGE",
                f"{_name(response, inputs)} answered with more than {inputs.max_bytes:,} bytes. "
                "Raise `maxBytes` (in a playbook `max_bytes`), or fetch it with code of your own and keep an artifact.",
                retryable=False,
            )
    if not any(response.status_code in (_statuses(item) or ()) for item in _listed(inputs.expect)):
        raise _unexpected(response, bytes(body), inputs)
    headers = {name: value for name, value in response.headers.items() if name not in _UNTOLD}
    return {"status": response.status_code, "headers": headers, **_body(response, bytes(body))}


def _body(response: httpx.Response, body: bytes) -> dict[str, Any]:
    kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind == "application/json" or kind.endswith("+json"):
        try:
            return {"body": msgspec.json.decode(body) if body else None}
        except (msgspec.DecodeError, RecursionError):
            pass  # it is not what it says it is
    try:
        text = body.decode(response.charset_encoding or "utf-8")
    except (UnicodeError, LookupError):
        text = "\0"
    if "\0" in text:
        return {"body": base64.b64encode(body).decode(), "encoding": "base64"}
    return {"body": text}


def _unexpected(response: httpx.Response, body: bytes, inputs: HttpInputs) -> StepError:
    status = response.status_code
    try:
        phrase = f" {HTTPStatus(status).phrase}"
    except ValueError:
        phrase = ""
    said = " ".join(body[:2000].decode(errors="replace").replace("\0", " ").split())[:200]
    message = f"{_name(response, inputs)} answered {status}{phrase}" + (f": {said}" if said else ".")
    facts: dict[str, Any] = {"status": status}
    if (seconds := retry_after(response.headers)) is not None:
        facts["retryAfter"] = seconds
    return StepError("HTTP_STATUS", message, retryable=status in PASSING, **facts)


def retry_after(headers: Mapping[str, str]) -> float | None:
    """How long the server wants to be left alone, in seconds. A time that it names is one of its own clock."""
    value = headers.get("retry-after", "").strip()
    try:
        seconds = float(value) if value.isdecimal() else _time(value) - _time(headers.get("date", ""))
    except (ValueError, TypeError, OverflowError):
        return None
    return min(max(seconds, 0.0), LONGEST_RETRY_AFTER)


def _time(text: str) -> float:
    moment = parsedate_to_datetime(text)
    return moment.replace(tzinfo=moment.tzinfo or UTC).timestamp()


def _name(response: httpx.Response, inputs: HttpInputs) -> str:
    return f"{inputs.method.upper()} {response.url.copy_with(query=None, fragment=None, userinfo=b'')}"


def _no_answer(error: httpx.TransportError, inputs: HttpInputs) -> StepError:
    import httpx

    where = httpx.URL(inputs.url).copy_with(query=None, fragment=None, userinfo=b"")
    what = "did not answer in time" if isinstance(error, httpx.TimeoutException) else "cannot be reached"
    code = "HTTP_TIMEOUT" if isinstance(error, httpx.TimeoutException) else "HTTP_UNREACHABLE"
    why = str(error) or type(error).__name__
    return StepError(code, f"{inputs.method.upper()} {where} {what}: {why}.", category="network")


def _query(given: dict[str, Any]) -> dict[str, str | list[str]]:
    """A list is the same name several times; what is null is left out."""
    return {
        name: [_text(item) for item in cast("list[Any]", value)] if isinstance(value, list) else _text(value)
        for name, value in given.items()
        if value is not None
    }


def _text(value: Any) -> str:
    if isinstance(value, dict | list):
        return msgspec.json.encode(value).decode()
    return str(value).lower() if isinstance(value, bool) else str(value)


def _bad(detail: str) -> StepError:
    return StepError("INVALID_INPUT", detail, retryable=False)
