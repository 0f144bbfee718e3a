"""ASGI middleware that every request passes before it reaches a route.

Assigns a request id, authenticates the caller, enforces rate and size limits, sends every error as a problem document,
and records metrics and the access log.
"""

from __future__ import annotations

import asyncio
import logging
import re
import secrets
from codecs import getincrementaldecoder
from typing import Any
from urllib.parse import unquote

from runwright.auth.roles import Actor
from runwright.auth.tokens import actor_from_token
from runwright.contract.errors import ErrorCode, RunwrightError

from .compression import ResponseCompressor, accepts_gzip
from .local_peer import PEER_UID_KEY, is_own_user
from .problems import problem_from_error, send_problem
from .request_context import SCOPE_KEY, RequestContext
from .service import Service
from .settings import MAX_ARTIFACT_BYTES, MAX_BODY_BYTES, MAX_EVENTS_BYTES, MAX_OUTCOME_BYTES, is_loopback

access_log = logging.getLogger("runwright.server.access")
logger = logging.getLogger("runwright.server")

ENCODED_SLASH = "\ue02f"
"""Replaces an encoded slash (%2F) inside of a name until the router has split the path."""
UNLIMITED_SCOPES = frozenset({"events:server", "events:worker", "steps"})
"""Scopes without a rate limit: engines and workers send requests as fast as there is work."""
INTERNAL_ERROR_DETAIL = "Internal server error. The server's log has details under the request id."
PUBLIC_PATHS = frozenset({"/healthz", "/readyz", "/openapi.json"})
FRAMEWORK_PATH = "/schema"
"""Path of the framework's own documentation pages, which are not served."""
_REQUEST_ID = re.compile(rb"[A-Za-z0-9._:/+=@-]{1,128}")
_ANONYMOUS = Actor("", ())


class _RequestIds:
    """Random request ids, generated in blocks.

    A system call per id would release the GIL to the thread that writes, and the event loop would wait to get it back.
    """

    def __init__(self) -> None:
        self._block = ""

    def next(self) -> str:
        if not self._block:
            self._block = secrets.token_hex(4096)
        request_id, self._block = self._block[:16], self._block[16:]
        return request_id


_request_ids = _RequestIds()


class RequestMiddleware:
    def __init__(self, app: Any, service: Service) -> None:
        self._app = app
        self._service = service

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request = _GuardedRequest(self._service, scope, receive, send)
        try:
            await request.admit()
            await self._app(request.scope, request.receive, request.send)
        except RunwrightError as error:
            await request.fail(error)
        except Exception as error:
            logger.error("Request %s failed", request.request_id, exc_info=error)
            await request.fail(RunwrightError(ErrorCode.INTERNAL_ERROR, INTERNAL_ERROR_DETAIL))
        finally:
            request.finish()


class _GuardedRequest:
    """One request: admission, and the limits on what is received for it."""

    def __init__(self, service: Service, scope: Any, receive: Any, send: Any) -> None:
        self._service = service
        self.scope: Any = scope
        self._receive = receive
        self._send = send
        self._started_at = service.log.clock.monotonic()
        self._status = 0
        self._headers: dict[bytes, bytes] = dict(scope["headers"])
        if accepts_gzip(self._headers):
            self._send = ResponseCompressor(send).send
        provided_id = self._headers.get(b"x-request-id", b"")
        self.request_id = provided_id.decode() if _REQUEST_ID.fullmatch(provided_id) else _request_ids.next()
        self._max_body_bytes = _max_body_bytes(scope["path"])
        self._received_bytes = 0
        self._is_body_complete = False
        self._utf8 = getincrementaldecoder("utf-8")() if self._is_checked_json() else None
        self._counted_caller: str | None = None  # whose concurrent requests include this one
        self._body_deadline = self._started_at + service.settings.body_seconds

    async def admit(self) -> None:
        """Validate and authenticate the request, and put its context into the scope. Raises if it is rejected."""
        self._check_path()
        scope, service = self.scope, self._service
        if scope["path"] in PUBLIC_PATHS:
            scope[SCOPE_KEY] = RequestContext(service, _ANONYMOUS, self.request_id)
            return
        if service.is_closing:
            raise RunwrightError(
                ErrorCode.SERVER_CLOSING, "This server is shutting down. Use another one, or retry later."
            )
        self._check_body()
        actor = await self._authenticate()
        if not UNLIMITED_SCOPES & set(actor.scopes):
            caller = actor.token_id or actor.source_ip or ""
            service.rate_limiter.acquire(caller)
            service.concurrency_limiter.acquire(caller)
            self._counted_caller = caller
        scope[SCOPE_KEY] = RequestContext(service, actor, self.request_id, self._wait_for_disconnect)

    async def _wait_for_disconnect(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass

    def _check_path(self) -> None:
        scope = self.scope
        if b"%2f" in scope["raw_path"].lower():
            scope["path"] = unquote(
                re.sub("%2f", ENCODED_SLASH, scope["raw_path"].decode("ascii"), flags=re.IGNORECASE)
            )
        if ENCODED_SLASH in unquote(scope["raw_path"].decode("latin-1")):
            raise RunwrightError(ErrorCode.INVALID_ARGUMENT, "Path contains a private-use character.")
        if "\0" in scope["path"] or b"%00" in scope["query_string"]:
            raise RunwrightError(ErrorCode.INVALID_ARGUMENT, "Path or query contains a NUL character.")
        if scope["method"] == "HEAD" and not scope["path"].endswith("/stream"):
            scope = self.scope = {**scope, "method": "GET"}  # The HTTP server omits the body of the response.
        if scope["method"] == "OPTIONS":
            raise RunwrightError(ErrorCode.METHOD_NOT_ALLOWED, "CORS requests are not supported.")
        if scope["path"].startswith(FRAMEWORK_PATH):
            raise RunwrightError(ErrorCode.ROUTE_NOT_FOUND, "Not found. See /openapi.json.")

    def _check_body(self) -> None:
        if self.scope["method"] not in ("POST", "PUT", "PATCH"):
            return
        length = self._headers.get(b"content-length", b"")
        if length.isdigit() and int(length) > self._max_body_bytes:
            raise _too_large(self._max_body_bytes)
        if length == b"0" or (not length and b"transfer-encoding" not in self._headers):
            return
        content_type = self._headers.get(b"content-type", b"").split(b";")[0].strip().lower()
        allowed = _content_types(self.scope["path"])
        if content_type not in allowed:
            # This also stops cross-site requests: browsers send none of the allowed types without a CORS preflight.
            raise RunwrightError(
                ErrorCode.MEDIA_TYPE_NOT_SUPPORTED,
                f"Unsupported media type; send Content-Type: {allowed[0].decode()}.",
            )

    async def _authenticate(self) -> Actor:
        scope, service = self.scope, self._service
        source_ip = scope["client"][0] if scope.get("client") else None
        user_agent = self._headers.get(b"user-agent", b"").decode("latin-1")[:200] or None
        credentials = self._headers.get(b"authorization", b"")
        unknown = Actor("", (), "api", None, (), None, source_ip, user_agent)
        if not credentials:
            if await service.is_open_to_local_user():
                self._check_is_local()
                self._check_user()
                return service.local_user(source_ip, user_agent)
            message = "Authentication required: send Authorization: Bearer TOKEN."
            raise self._audit_failure(unknown, RunwrightError(ErrorCode.AUTHN_REQUIRED, message))
        scheme, _, token = credentials.decode("latin-1").partition(" ")
        try:
            if scheme.lower() != "bearer":
                message = "Unsupported authentication scheme; send Authorization: Bearer TOKEN."
                raise RunwrightError(ErrorCode.AUTHN_FAILED, message)
            if await self._is_local_token(token.strip()):
                self._check_is_local()
                return service.local_user(source_ip, user_agent)
            verified = await service.tokens.verify(token.strip())
            creators = await service.tokens.creators(verified.token_id)
            return actor_from_token(verified, creators, source_ip, user_agent)
        except RunwrightError as error:
            raise self._audit_failure(unknown, error) from None

    def _audit_failure(self, actor: Actor, error: RunwrightError) -> RunwrightError:
        """Audit a failed login and count it against its address. Returns the error to raise."""
        if error.code in (ErrorCode.AUTHN_REQUIRED, ErrorCode.AUTHN_FAILED):
            self._service.audit.count_denial(actor, "login", error.code, requestId=self.request_id)
            self._service.failed_login_limiter.acquire(actor.source_ip or "")
        return error

    def _check_is_local(self) -> None:
        """Reject requests that come through a proxy, from another machine's page or for another host name.

        Without tokens, a loopback connection is the only proof of identity. A web page that the local user opens must
        not be able to use it.
        """
        host = self._headers.get(b"host", b"").decode("latin-1")
        name = host.rpartition(":")[0] if not host.endswith("]") and ":" in host else host
        forwarded = [header for header in (b"forwarded", b"x-forwarded-for") if header in self._headers]
        origin = self._headers.get(b"origin", b"").decode("latin-1").partition("://")[2].rpartition(":")
        is_foreign_origin = b"origin" in self._headers and not is_loopback(origin[0] or origin[2])
        if forwarded or is_foreign_origin or not is_loopback(name):
            raise RunwrightError(
                ErrorCode.AUTHN_REQUIRED,
                "Without tokens this server accepts only local requests. Create a token: "
                "runwright token create NAME --role Admin",
            )

    def _check_user(self) -> None:
        """Reject other users of this machine: without tokens, the server is open to its own user only."""
        if self._service.local_token is not None:
            message = "Without tokens this server accepts only its own user: run the command as that user."
        elif is_own_user(self.scope[PEER_UID_KEY]()):
            return
        else:
            message = (
                "Without tokens this server accepts only its own user, who can create a token: runwright token create"
            )
        raise RunwrightError(ErrorCode.AUTHN_REQUIRED, message)

    async def _is_local_token(self, token: str) -> bool:
        expected = self._service.local_token
        if expected is None or not secrets.compare_digest(token.encode(), expected.encode()):
            return False
        return await self._service.is_open_to_local_user()

    async def receive(self) -> Any:
        if self._status or self._is_body_complete:
            return await self._receive()  # Streams wait here, without a time limit, for their caller to disconnect.
        try:
            async with asyncio.timeout(self._remaining_body_seconds()):
                message = await self._receive()
        except TimeoutError:
            raise RunwrightError(ErrorCode.REQUEST_TIMEOUT, "Timed out reading the request body.") from None
        self._received_bytes += len(message.get("body", b""))
        if self._received_bytes > self._max_body_bytes:
            raise _too_large(self._max_body_bytes)
        if not message.get("more_body"):
            self._is_body_complete = True
        self._check_utf8(message.get("body", b""))
        return message

    def _is_checked_json(self) -> bool:
        """Whether the framework decodes the body; it does not expect bytes that are not UTF-8."""
        is_json = self._headers.get(b"content-type", b"").lower().startswith(b"application/json")
        return is_json and self.scope["path"] != "/v1/events"

    def _check_utf8(self, body: bytes) -> None:
        if self._utf8 is None:
            return
        try:
            self._utf8.decode(body, self._is_body_complete)
        except UnicodeDecodeError:
            raise RunwrightError(ErrorCode.INVALID_ARGUMENT, "The request body is not valid UTF-8.") from None

    def _remaining_body_seconds(self) -> float:
        return max(self._body_deadline - self._service.log.clock.monotonic(), 0)

    async def send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self._status = message["status"]
            message["headers"] = [
                *message.get("headers", ()),
                (b"x-request-id", self.request_id.encode()),
                (b"x-content-type-options", b"nosniff"),
            ]
        await self._send(message)

    async def _drain_body(self) -> None:
        """Discard the rest of the body: most clients read the response only after they have sent all of it."""
        try:
            async with asyncio.timeout(self._remaining_body_seconds()):
                while (message := await self._receive())["type"] == "http.request" and message.get("more_body"):
                    pass
        except TimeoutError:
            pass

    async def fail(self, error: RunwrightError) -> None:
        if self._status:
            raise error  # The response has begun, so the connection can only be closed.
        problem = problem_from_error(error, self.request_id)
        if problem.status == 413:
            await self._drain_body()
        more = [(b"connection", b"close")] if problem.status in (408, 413) else []
        if problem.status == 405:
            more.append((b"allow", b"GET, HEAD, POST, DELETE"))
        await send_problem(self.send, problem, more)

    def finish(self) -> None:
        if self._counted_caller is not None:
            self._service.concurrency_limiter.release(self._counted_caller)
        scope = self.scope
        seconds = self._service.log.clock.monotonic() - self._started_at
        route = scope.get("path_template") or "other"  # Never a path from a caller: it would become a metric label.
        self._service.metrics.observe_request(scope["method"], route, self._status, seconds)
        if not access_log.isEnabledFor(logging.INFO):
            return
        context: RequestContext | None = scope.get(SCOPE_KEY)
        actor = _ANONYMOUS if context is None else context.actor
        facts = {
            "requestId": self.request_id,
            "method": scope["method"],
            "route": route,
            "status": self._status,
            "ms": round(seconds * 1000, 2),
            "actor": actor.actor_id or None,
            "tenant": actor.tenant_id,
            "run": None if context is None else context.run_id,
        }
        path = scope["raw_path"].decode("latin-1")
        access_log.info("%s %s %s", scope["method"], path, self._status, extra={"facts": facts})


def _content_types(path: str) -> tuple[bytes, ...]:
    """Content types that a path accepts; the first one is suggested in errors."""
    if path == "/v1/events":
        return (b"application/json", b"application/x-ndjson")
    if path.startswith("/v1/leases/") and path.endswith("/artifacts"):
        return (b"application/octet-stream",)
    return (b"application/json",)


def _max_body_bytes(path: str) -> int:
    if path == "/v1/events":
        return MAX_EVENTS_BYTES
    if path.startswith("/v1/leases/"):
        return {"artifacts": MAX_ARTIFACT_BYTES, "result": MAX_OUTCOME_BYTES}.get(
            path.rpartition("/")[2], MAX_EVENTS_BYTES
        )
    return MAX_BODY_BYTES


def _too_large(limit: int) -> RunwrightError:
    message = f"Request body too large: at most {limit:,} bytes are allowed. Split the request."
    return RunwrightError(ErrorCode.PAYLOAD_TOO_LARGE, message)
