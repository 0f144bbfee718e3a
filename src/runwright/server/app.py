"""The application: routes, how they find out who asks, and what their errors become."""

from __future__ import annotations

import asyncio
import logging
from functools import cache, partial
from typing import Any, cast

from litestar import Litestar, Request, Response, asgi, get
from litestar.config.compression import CompressionConfig
from litestar.di import Provide
from litestar.exceptions import HTTPException, MethodNotAllowedException, NotFoundException, ValidationException
from litestar.handlers import HTTPRouteHandler
from litestar.params import HeaderParameter, PathParameter, QueryParameter
from litestar.types import ControllerRouterHandler

from runwright.contract.errors import ErrorCode, RunwrightError

from . import leases, office, parts, runs, steering, streams
from .answers import answer
from .call import Call, call_of
from .description import describe, openapi_config
from .gate import FAULT, Gate
from .ingest import post_events
from .problems import MEDIA_TYPE, headers_of, problem_of
from .service import Service

logger = logging.getLogger("runwright.server")


def _provide_call(request: Request[Any, Any, Any]) -> Call:
    return call_of(request.scope)


def _from_us(request: Request[Any, Any, Any], error: RunwrightError) -> Response[Any]:
    problem = problem_of(error, call_of(request.scope).request_id)
    body = answer(problem).content
    more = {"allow": error.facts["allow"]} if "allow" in error.facts else {}
    return Response(body, status_code=problem.status, media_type=MEDIA_TYPE, headers={**headers_of(problem), **more})


def _from_framework(request: Request[Any, Any, Any], error: HTTPException) -> Response[Any]:
    match error:
        case NotFoundException():
            ours = RunwrightError(ErrorCode.ROUTE_NOT_FOUND, "There is nothing at this address. See /openapi.json.")
        case MethodNotAllowedException():
            ours = RunwrightError(ErrorCode.METHOD_NOT_ALLOWED, "This address does not take that method.")
        case ValidationException():
            ours = RunwrightError(ErrorCode.INVALID_ARGUMENT, _sentence(error))
        case _:
            known = error.status_code < 500
            code = ErrorCode.INVALID_ARGUMENT if known else ErrorCode.INTERNAL_ERROR
            ours = RunwrightError(code, error.detail or "This cannot be used.")
    answered = _from_us(request, ours)
    answered.headers.update(error.headers or {})
    return answered


def _from_nowhere(request: Request[Any, Any, Any], error: Exception) -> Response[Any]:
    """A fault of ours. Callers learn its id; what it was is in our log."""
    if isinstance(error, RecursionError):
        return _from_us(request, RunwrightError(ErrorCode.INVALID_ARGUMENT, "The body is nested too deeply."))
    request_id = call_of(request.scope).request_id
    logger.error("Request %s failed", request_id, exc_info=error)
    return _from_us(request, RunwrightError(ErrorCode.INTERNAL_ERROR, FAULT))


def _sentence(error: HTTPException) -> str:
    extra: Any = error.extra
    told = cast("list[dict[str, Any]]", extra) if isinstance(extra, list) else []
    sentences = [f"{_wire_name(str(each.get('key') or 'body'))}: {each.get('message')}" for each in told]
    return "; ".join(sentences) or error.detail or "The request is not what it should be."


def _wire_name(name: str) -> str:
    """A parameter as callers know it."""
    first, *rest = name.split("_")
    return "body" if name == "data" else first + "".join(part.capitalize() for part in rest)


async def _known_queries(request: Request[Any, Any, Any]) -> None:
    """Refuse a query that nobody looks at: it is a mistake that would go unnoticed."""
    handler = request.scope["route_handler"]
    if not isinstance(handler, HTTPRouteHandler) or not request.scope["query_string"]:
        return
    known = QUERIES.setdefault(str(handler), _queries_of(handler))
    for name in request.query_params:
        if name not in known:
            takes = f"It takes {', '.join(sorted(known))}." if known else "It takes none."
            raise RunwrightError(ErrorCode.INVALID_ARGUMENT, f"This address takes no {name!r}. {takes}")


QUERIES: dict[str, frozenset[str]] = {}


def _queries_of(handler: HTTPRouteHandler) -> frozenset[str]:
    names: set[str] = set()
    for name, field in handler.parsed_fn_signature.parameters.items():
        if name in ("call", "data") or isinstance(field.kwarg_definition, HeaderParameter | PathParameter):
            continue
        given = field.kwarg_definition
        names.add((given.name if isinstance(given, QueryParameter) else None) or name)
    return frozenset(names)


def build_app(service: Service, *more: ControllerRouterHandler) -> Gate:
    """All of it, and what else is to be served, behind the gate."""
    events = asgi("/v1/events", copy_scope=False)(post_events)
    app = Litestar(
        route_handlers=[
            *runs.ROUTES,
            *parts.ROUTES,
            *steering.ROUTES,
            *office.ROUTES,
            *streams.ROUTES,
            *leases.ROUTES,
            events,
            *more,
        ],
        dependencies={"call": Provide(_provide_call, sync_to_thread=False)},
        exception_handlers={RunwrightError: _from_us, HTTPException: _from_framework, Exception: _from_nowhere},
        before_request=_known_queries,
        compression_config=CompressionConfig(backend="gzip", gzip_compress_level=5, minimum_size=1024),
        openapi_config=openapi_config(),
        request_max_body_size=None,
        logging_config=None,
        signature_types=[Call],
        middleware=[],
    )
    app.register(_description(app))
    return Gate(app, service)


def _description(app: Litestar) -> HTTPRouteHandler:
    """Made when somebody first asks for it: that takes as long as the rest of a server's start."""
    document = cache(partial(describe, app))

    @get("/openapi.json", include_in_schema=False)
    async def openapi() -> Response[Any]:
        return answer(await asyncio.to_thread(document))

    return openapi
