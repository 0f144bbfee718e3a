"""The gate: every request comes through here, before any route knows of it.

It gives the request an id, finds out who asks, holds them to their limits, and sees that whatever goes wrong is
answered with a problem, counted and logged.
"""

from __future__ import annotations

import asyncio
import logging
import re
import secrets
from typing import Any
from urllib.parse import unquote

from runwright.contract.errors import ErrorCode, RunwrightError
from runwright.control.access import Actor
from runwright.control.tokens import actor_of

from .call import KEY, Call
from .problems import Problem, problem_of, send_problem
from .service import Service
from .settings import LARGEST_ARTIFACT, LARGEST_BODY, LARGEST_EVENTS, LARGEST_OUTCOME, is_loopback

access_log = logging.getLogger("runwright.access")
logger = logging.getLogger("runwright.server")

SLASH = "\ue02f"
"""Stands for a slash inside of a name while a path is taken apart."""
MACHINES = frozenset({"events:server", "events:worker", "steps"})
"""Scopes of callers that are not held to a rate: they come as fast as there is work."""
FAULT = "Something is wrong with this server; its log has more under the request's id."
OPEN_TO_ALL = frozenset({"/healthz", "/readyz", "/openapi.json"})
FRAMEWORK = "/schema"
"""Where the framework keeps pages of its own, which are nobody's business."""
_REQUEST_ID = re.compile(rb"[A-Za-z0-9._:/+=@-]{1,128}")
_ANONYMOUS = Actor("", ())


class _Names:
    """Names for requests, drawn many at a time: asking the system for each one lets the thread that writes in between,
    and the loop waits for its turn again."""

    def __init__(self) -> None:
        self._drawn = ""

    def draw(self) -> str:
        if not self._drawn:
            self._drawn = secrets.token_hex(4096)
        name, self._drawn = self._drawn[:16], self._drawn[16:]
        return name


_names = _Names()


class Gate:
    def __init__(self, app: Any, service: Service) -> None:
        self._app = app
        self._service = service

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        passage = _Passage(self._service, scope, receive, send)
        try:
            await passage.enter()
            await self._app(passage.scope, passage.receive, passage.send)
        except RunwrightError as error:
            await passage.fail(error)
        except Exception as error:
            logger.error("Request %s failed", passage.request_id, exc_info=error)
            await passage.fail(RunwrightError(ErrorCode.INTERNAL_ERROR, FAULT))
        finally:
            passage.leave()


class _Passage:
    """One request on its way through."""

    def __init__(self, service: Service, scope: Any, receive: Any, send: Any) -> None:
        self._service = service
        self.scope: Any = scope
        self._receive = receive
        self._send = send
        self._began = service.log.clock.monotonic()
        self._status = 0
        self._headers: dict[bytes, bytes] = dict(scope["headers"])
        given = self._headers.get(b"x-request-id", b"")
        self.request_id = given.decode() if _REQUEST_ID.fullmatch(given) else _names.draw()
        self._largest = _largest(scope["path"])
        self._taken = 0
        self._body_until = self._began + service.settings.body_seconds

    async def enter(self) -> None:
        """Refuse what may not come in; else say who it is."""
        scope, service = self.scope, self._service
        if b"%2f" in scope["raw_path"].lower():
            scope["path"] = unquote(re.sub("%2f", SLASH, scope["raw_path"].decode("ascii"), flags=re.IGNORECASE))
        if SLASH in unquote(scope["raw_path"].decode("latin-1")):
            raise RunwrightError(ErrorCode.INVALID_ARGUMENT, "A name has a character in it that is for private use.")
        if "\0" in scope["path"] or b"%00" in scope["query_string"]:
            raise RunwrightError(ErrorCode.INVALID_ARGUMENT, "No name has a NUL in it.")
        if scope["method"] == "HEAD" and not scope["path"].endswith("/stream"):
            scope = self.scope = {**scope, "method": "GET"}  # whoever sends the answer leaves the body out
        if scope["method"] == "OPTIONS":
            raise RunwrightError(ErrorCode.METHOD_NOT_ALLOWED, "Pages of other servers have no business here.")
        if scope["path"].startswith(FRAMEWORK):
            raise RunwrightError(ErrorCode.ROUTE_NOT_FOUND, "There is nothing at this address. See /openapi.json.")
        if scope["path"] in OPEN_TO_ALL:
            scope[KEY] = Call(service, _ANONYMOUS, self.request_id)
            return
        if service.is_closing:
            raise RunwrightError(
                ErrorCode.SERVER_CLOSING, "This server is stopping. Ask another, or again in a moment."
            )
        self._check_body()
        actor = await self._who()
        if not MACHINES & set(actor.scopes):
            service.rates.take(actor.token_id or actor.source_ip or "")
        scope[KEY] = Call(service, actor, self.request_id)

    def _check_body(self) -> None:
        if self.scope["method"] not in ("POST", "PUT", "PATCH"):
            return
        length = self._headers.get(b"content-length", b"")
        if length.isdigit() and int(length) > self._largest:
            raise _too_large(self._largest)
        if length == b"0" or (not length and b"transfer-encoding" not in self._headers):
            return
        kind = self._headers.get(b"content-type", b"").split(b";")[0].strip().lower()
        path = self.scope["path"]
        if kind not in _kinds(path):
            # What a page elsewhere may send without asking is never one of these.
            raise RunwrightError(
                ErrorCode.MEDIA_TYPE_NOT_SUPPORTED,
                f"Say what you send: Content-Type: {_kinds(path)[0].decode()}.",
            )

    async def _who(self) -> Actor:
        scope, service = self.scope, self._service
        source_ip = scope["client"][0] if scope.get("client") else None
        user_agent = self._headers.get(b"user-agent", b"").decode("latin-1")[:200] or None
        shown = self._headers.get(b"authorization", b"")
        if not shown:
            if await service.is_open():
                self._check_is_local()
                return service.local(source_ip, user_agent)
            return self._turn_away(
                Actor("", (), "api", None, (), None, source_ip, user_agent),
                RunwrightError(ErrorCode.AUTHN_REQUIRED, "Show who you are: Authorization: Bearer TOKEN."),
            )
        kind, _, text = shown.decode("latin-1").partition(" ")
        try:
            if kind.lower() != "bearer":
                raise RunwrightError(ErrorCode.AUTHN_FAILED, "Show a token: Authorization: Bearer TOKEN.")
            return actor_of(await service.tokens.verify(text.strip()), source_ip, user_agent)
        except RunwrightError as error:
            return self._turn_away(Actor("", (), "api", None, (), None, source_ip, user_agent), error)

    def _turn_away(self, actor: Actor, error: RunwrightError) -> Actor:
        if error.code in (ErrorCode.AUTHN_REQUIRED, ErrorCode.AUTHN_FAILED):
            self._service.audit.denied(actor, "login", error.code, requestId=self.request_id)
            self._service.failed_logins.take(actor.source_ip or "")
        raise error

    def _check_is_local(self) -> None:
        """While the door stands open: only for who is really at this machine, and no page that pretends to be."""
        host = self._headers.get(b"host", b"").decode("latin-1")
        name = host.rpartition(":")[0] if not host.endswith("]") and ":" in host else host
        forwarded = [header for header in (b"forwarded", b"x-forwarded-for") if header in self._headers]
        origin = self._headers.get(b"origin", b"").decode("latin-1").partition("://")[2].rpartition(":")
        elsewhere = b"origin" in self._headers and not is_loopback(origin[0] or origin[2])
        if forwarded or elsewhere or not is_loopback(name):
            raise RunwrightError(
                ErrorCode.AUTHN_REQUIRED,
                "This server is open to the local user only, and this came from elsewhere. Make a token: "
                "runwright token create NAME --role Admin",
            )

    async def receive(self) -> Any:
        left = self._body_until - self._service.log.clock.monotonic()
        if self._status or self._taken < 0:
            return await self._receive()  # a stream waits here for its caller to leave
        try:
            async with asyncio.timeout(max(left, 0)):
                message = await self._receive()
        except TimeoutError:
            raise RunwrightError(ErrorCode.REQUEST_TIMEOUT, "The rest of the request did not come.") from None
        self._taken += len(message.get("body", b""))
        if self._taken > self._largest:
            raise _too_large(self._largest)
        if not message.get("more_body"):
            self._taken = -1
        return message

    async def send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self._status = message["status"]
            message["headers"] = [
                *message.get("headers", ()),
                (b"x-request-id", self.request_id.encode()),
                (b"x-content-type-options", b"nosniff"),
            ]
        await self._send(message)

    async def _read_off(self) -> None:
        """Take what is still being sent, for a while: most callers listen only once they have said everything."""
        left = self._body_until - self._service.log.clock.monotonic()
        try:
            async with asyncio.timeout(max(left, 0)):
                while (message := await self._receive())["type"] == "http.request" and message.get("more_body"):
                    pass
        except TimeoutError:
            pass

    async def fail(self, error: RunwrightError) -> None:
        if self._status:
            raise error  # too late to say so: the connection is cut
        problem: Problem = problem_of(error, self.request_id)
        if problem.status == 413:
            await self._read_off()
        more = [(b"connection", b"close")] if problem.status in (408, 413) else []
        if problem.status == 405:
            more.append((b"allow", b"GET, HEAD, POST, DELETE"))
        await send_problem(self.send, problem, more)

    def leave(self) -> None:
        scope = self.scope
        took = self._service.log.clock.monotonic() - self._began
        route = scope.get("path_template") or "other"  # never a name that a caller made up
        self._service.measures.answered(scope["method"], route, self._status, took)
        if not access_log.isEnabledFor(logging.INFO):
            return
        call: Call | None = scope.get(KEY)
        actor = _ANONYMOUS if call is None else call.actor
        facts = {
            "requestId": self.request_id,
            "method": scope["method"],
            "route": route,
            "status": self._status,
            "ms": round(took * 1000, 2),
            "actor": actor.actor_id or None,
            "tenant": actor.tenant_id,
            "run": None if call is None else call.run_id,
        }
        address = scope["raw_path"].decode("latin-1")
        access_log.info("%s %s %s", scope["method"], address, self._status, extra={"facts": facts})


def _kinds(path: str) -> tuple[bytes, ...]:
    """What may be sent to an address."""
    if path == "/v1/events":
        return (b"application/json", b"application/x-ndjson")
    if path.startswith("/v1/leases/") and path.endswith("/artifacts"):
        return (b"application/octet-stream",)
    return (b"application/json",)


def _largest(path: str) -> int:
    if path == "/v1/events":
        return LARGEST_EVENTS
    if path.startswith("/v1/leases/"):
        return {"artifacts": LARGEST_ARTIFACT, "result": LARGEST_OUTCOME}.get(path.rpartition("/")[2], LARGEST_EVENTS)
    return LARGEST_BODY


def _too_large(most: int) -> RunwrightError:
    return RunwrightError(ErrorCode.PAYLOAD_TOO_LARGE, f"A request may have {most:,} bytes. Send it in parts.")
