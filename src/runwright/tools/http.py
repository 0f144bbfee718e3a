"""The http step: sends one HTTP request."""

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
from runwright.contract.playbook import HTTP_IDLE_TIMEOUT
from runwright.plans.durations import parse_duration

from .base import Lane, StepContext, StepError, invalid_input, is_unresolved
from .connection_cache import get_cached

if TYPE_CHECKING:
    import httpx

METHODS = ("GET", "HEAD", "OPTIONS", "POST", "PUT", "PATCH", "DELETE")
SAFE = frozenset({"GET", "HEAD", "OPTIONS"})

MAX_BYTES = 16 * 1024 * 1024
CONNECT_SECONDS = 10.0
MAX_CONNECTIONS = 100
MAX_REDIRECTS = 10
MAX_EXCERPT_BYTES = 64 * 1024
MAX_RETRY_AFTER = 24 * 3600.0

RETRYABLE_STATUSES = frozenset({408, 425, 429, 500, 502, 503, 504})
"""Statuses of temporary conditions."""

CREDENTIALS = frozenset({"authorization", "cookie", "proxy-authorization"})
ORIGIN, HIDDEN_HEADERS = "runwright.origin", "runwright.hidden_headers"
"""Extensions of a request: where the step sent it, and the headers that only this origin may get."""
_CREDENTIAL_HEADERS = frozenset({"set-cookie", "set-cookie2"})
"""Response headers that are left out of the result."""


class HttpInputs(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    url: str
    method: str = "GET"
    headers: dict[str, Any] = {}
    query: dict[str, Any] = {}
    json: Any = msgspec.UNSET
    body: str | None = None
    expect: int | str | list[Any] = "2xx"
    idle_timeout: str | float = HTTP_IDLE_TIMEOUT
    max_bytes: int = MAX_BYTES
    redirects: bool = True


class HttpTool:
    kind = "http"
    inputs = HttpInputs
    main_input = "url"

    def __init__(self, allowed: list[str] | None = None) -> None:
        self._allowed = allowed  # patterns for `host` or `host:port`; None: all hosts

    def check(self, inputs: dict[str, Any], step: Step) -> str | None:  # noqa: ARG002
        if find_spec("httpx") is None:
            return "HTTP steps require `runwright[http]`. Install it."
        return _problem(inputs)

    def lane(self, inputs: HttpInputs, step: Step) -> Lane:  # noqa: ARG002
        return Lane.TOOL_LOOP

    async def run(self, inputs: HttpInputs, context: StepContext) -> Any:
        import httpx

        if (problem := _problem(cast("dict[str, Any]", msgspec.to_builtins(inputs)))) is not None:
            raise invalid_input(problem)
        client = get_cached((HttpTool, id(self)), self._client, lambda client: client.aclose())
        try:
            request = client.build_request(
                inputs.method.upper(),
                httpx.URL(inputs.url).copy_merge_params(_query(inputs.query)),
                headers=_request_headers(inputs, context),
                content=None if inputs.body is None else inputs.body.encode(),
                json=None if inputs.json is msgspec.UNSET else inputs.json,
                # No limit on waiting for a free connection of the pool: the timeout of the step bounds it.
                timeout=httpx.Timeout(_seconds(inputs.idle_timeout), connect=CONNECT_SECONDS, pool=None),
            )
            request.extensions[ORIGIN] = _origin(request.url)
            request.extensions[HIDDEN_HEADERS] = _hidden_headers(request, context)
            response = await client.send(request, stream=True, follow_redirects=inputs.redirects)
        except httpx.InvalidURL as error:
            raise invalid_input(f"Invalid `url`: {error}.") from None
        except httpx.TooManyRedirects:
            raise StepError(
                "HTTP_REDIRECTS", f"More than {MAX_REDIRECTS} redirects from {inputs.url}.", retryable=False
            ) from None
        except httpx.TransportError as error:
            raise _transport_error(error, inputs) from None
        try:
            return await _read_response(response, inputs, context)
        except httpx.TransportError as error:
            raise _transport_error(error, inputs) from None
        finally:
            await response.aclose()

    def _client(self) -> httpx.AsyncClient:
        import httpx

        limits = httpx.Limits(max_connections=MAX_CONNECTIONS, max_keepalive_connections=MAX_CONNECTIONS)
        return httpx.AsyncClient(
            max_redirects=MAX_REDIRECTS,
            limits=limits,
            event_hooks={"request": [_drop_secrets_at_other_origins, self._check_host]},
            cookies=CookieJar(DefaultCookiePolicy(allowed_domains=[])),  # cookies of one step must not reach another
        )

    async def _check_host(self, request: httpx.Request) -> None:
        """Refuse hosts that are not allowed. Also called for each redirect."""
        if self._allowed is None:
            return
        host, port = request.url.host, request.url.port or {"http": 80, "https": 443}.get(request.url.scheme)
        if not any(
            fnmatchcase(name, pattern.lower()) for pattern in self._allowed for name in (host, f"{host}:{port}")
        ):
            raise StepError(
                "HTTP_NOT_ALLOWED",
                f"Host {host} is not allowed. Add it to [http] allow in runwright.toml.",
                retryable=False,
            )


def _origin(url: httpx.URL) -> tuple[str, str, int | None]:
    return url.scheme, url.host, url.port


def _hidden_headers(request: httpx.Request, context: StepContext) -> list[str]:
    """Return the names of the headers that must not reach another origin: credentials, and those with a secret."""
    headers = request.headers.items()
    return [name for name, value in headers if name in CREDENTIALS or context.mask_text(value) != value]


async def _drop_secrets_at_other_origins(request: httpx.Request) -> None:
    """Called for each request, also for those that follow a redirect; these have the extensions of the first."""
    import httpx

    if _origin(request.url) == request.extensions[ORIGIN]:
        return
    for name in request.extensions[HIDDEN_HEADERS]:
        request.headers.pop(name, None)
    if request.headers.get("content-length", "0") != "0" or "transfer-encoding" in request.headers:
        for name in ("content-type", "transfer-encoding"):
            request.headers.pop(name, None)
        request.headers["content-length"] = "0"
        request.stream = httpx.ByteStream(b"")


def _problem(inputs: dict[str, Any]) -> str | None:
    url, method, expect = inputs.get("url"), inputs.get("method", "GET"), inputs.get("expect", "2xx")
    if isinstance(url, str) and not is_unresolved(url) and (problem := _url_problem(url)) is not None:
        return problem
    if not is_unresolved(method) and str(method).upper() not in METHODS:
        return f"`method` must be one of {', '.join(METHODS)}."
    if inputs.get("json") is not None and inputs.get("body") is not None:
        return "Set `json` or `body`, not both."
    if not is_unresolved(expect) and not all(is_unresolved(item) or _statuses(item) for item in _as_list(expect)):
        return "`expect` must be a status such as 200, a class such as 2xx, or a list of these."
    max_bytes = inputs.get("maxBytes", MAX_BYTES)
    if isinstance(max_bytes, int) and max_bytes < 1:
        return "`maxBytes` must be at least 1."
    idle = inputs.get("idleTimeout", HTTP_IDLE_TIMEOUT)
    if not is_unresolved(idle) and not _is_duration(idle):
        return "`idleTimeout` must be a duration such as 30s."
    headers = cast("dict[str, Any]", inputs.get("headers") or {})
    return None if is_unresolved(headers) else _header_problem(headers)


def _url_problem(url: str) -> str | None:
    if not url.lower().startswith(("http://", "https://")):
        return "`url` must begin with http:// or https://."
    try:
        parts = urlsplit(url)
        if not parts.hostname or parts.port == 0:  # reading the port validates it
            return "Invalid `url`: no host, or port 0."
    except ValueError as error:
        return f"Invalid `url`: {error}."
    return None


def _header_problem(headers: dict[str, Any]) -> str | None:
    for name, value in headers.items():
        if not name or not name.isascii() or any(char in name for char in " :\r\n\t\0"):
            return f"Invalid header name {name!r}."
        if not is_unresolved(value) and not isinstance(value, str | int | float):
            return f"Header {name} must be text."
        if isinstance(value, str) and not is_unresolved(value) and any(char in value for char in "\r\n\0"):
            return f"Header {name} contains a line break or NUL."
    return None


def _is_duration(value: Any) -> bool:
    try:
        return _seconds(value) > 0
    except ValueError:
        return False


def _seconds(value: str | float) -> float:
    return parse_duration(value)


def _as_list(expect: Any) -> list[Any]:
    return cast("list[Any]", expect) if isinstance(expect, list) else [expect]


def _statuses(item: Any) -> range | None:
    """Return the statuses that one item of `expect` accepts; None if it is invalid."""
    if isinstance(item, int) and not isinstance(item, bool) and 100 <= item <= 599:
        return range(item, item + 1)
    if isinstance(item, str) and item.isdecimal() and len(item) == 3:
        return _statuses(int(item))
    if isinstance(item, str) and len(item) == 3 and item[0] in "12345" and item[1:].lower() == "xx":
        first = 100 * int(item[0])
        return range(first, first + 100)
    return None


def _request_headers(inputs: HttpInputs, context: StepContext) -> list[tuple[bytes, bytes]]:
    headers = {name: _to_text(value) for name, value in inputs.headers.items()}
    present = {name.lower() for name in headers}
    if inputs.method.upper() not in SAFE and "idempotency-key" not in present:
        headers["Idempotency-Key"] = context.idempotency_token  # the same when the attempt is repeated after a crash
    if inputs.body is not None and "content-type" not in present:
        headers["Content-Type"] = "text/plain; charset=utf-8"
    return [(name.encode(), value.encode()) for name, value in headers.items()]


async def _read_response(response: httpx.Response, inputs: HttpInputs, context: StepContext) -> dict[str, Any]:
    body = bytearray()
    async for chunk in response.aiter_bytes():  # decompressed, because the limit protects our memory
        body += chunk
        if len(body) > inputs.max_bytes:
            raise StepError(
                "HTTP_TOO_LARGE",
                f"{_request_name(response, inputs)} returned more than {inputs.max_bytes:,} bytes. "
                "Raise `maxBytes` (in a playbook `max_bytes`), or download it in a python step and store an artifact.",
                retryable=False,
            )
    if not any(response.status_code in (_statuses(item) or ()) for item in _as_list(inputs.expect)):
        raise _status_error(response, bytes(body), inputs, context)
    headers = {name: value for name, value in response.headers.items() if name not in _CREDENTIAL_HEADERS}
    return {"status": response.status_code, "headers": headers, **_decode_body(response, bytes(body))}


def _decode_body(response: httpx.Response, body: bytes) -> dict[str, Any]:
    kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind == "application/json" or kind.endswith("+json"):
        try:
            return {"body": msgspec.json.decode(body) if body else None}
        except (msgspec.DecodeError, RecursionError):
            pass  # not JSON, in spite of its content type
    try:
        text = body.decode(response.charset_encoding or "utf-8")
    except (UnicodeError, LookupError):
        text = "\0"
    if "\0" in text:
        return {"body": base64.b64encode(body).decode(), "encoding": "base64"}
    return {"body": text}


def _status_error(response: httpx.Response, body: bytes, inputs: HttpInputs, context: StepContext) -> StepError:
    status = response.status_code
    try:
        phrase = f" {HTTPStatus(status).phrase}"
    except ValueError:
        phrase = ""
    text = context.mask_text(body[:MAX_EXCERPT_BYTES].decode(errors="replace"))
    excerpt = " ".join(text.replace("\0", " ").split())[:200]
    message = f"{_request_name(response, inputs)} returned {status}{phrase}" + (f": {excerpt}" if excerpt else ".")
    facts: dict[str, Any] = {"status": status}
    if (seconds := retry_after(response.headers)) is not None:
        facts["retryAfter"] = seconds
    return StepError("HTTP_STATUS", message, retryable=status in RETRYABLE_STATUSES, **facts)


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Return the seconds of the Retry-After header. A date is relative to the server's own clock (Date header)."""
    value = headers.get("retry-after", "").strip()
    try:
        seconds = float(value) if value.isdecimal() else _timestamp(value) - _timestamp(headers.get("date", ""))
    except (ValueError, TypeError, OverflowError):
        return None
    return min(max(seconds, 0.0), MAX_RETRY_AFTER)


def _timestamp(text: str) -> float:
    moment = parsedate_to_datetime(text)
    return moment.replace(tzinfo=moment.tzinfo or UTC).timestamp()


def _request_name(response: httpx.Response, inputs: HttpInputs) -> str:
    return f"{inputs.method.upper()} {response.url.copy_with(query=None, fragment=None, userinfo=b'')}"


def _transport_error(error: httpx.TransportError, inputs: HttpInputs) -> StepError:
    import httpx

    url = httpx.URL(inputs.url).copy_with(query=None, fragment=None, userinfo=b"")
    is_timeout = isinstance(error, httpx.TimeoutException)
    code, outcome = ("HTTP_TIMEOUT", "timed out") if is_timeout else ("HTTP_UNREACHABLE", "failed")
    reason = str(error) or type(error).__name__
    return StepError(code, f"{inputs.method.upper()} {url} {outcome}: {reason}.", category="network")


def _query(params: dict[str, Any]) -> dict[str, str | list[str]]:
    """Convert query parameters. A list repeats its name; null values are omitted."""
    return {
        name: [_to_text(item) for item in cast("list[Any]", value)] if isinstance(value, list) else _to_text(value)
        for name, value in params.items()
        if value is not None
    }


def _to_text(value: Any) -> str:
    if isinstance(value, dict | list):
        return msgspec.json.encode(value).decode()
    return str(value).lower() if isinstance(value, bool) else str(value)
