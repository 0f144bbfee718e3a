"""The Litestar application: routes, injection of the request context, and exception handlers."""

from __future__ import annotations

import asyncio
import logging
from functools import cache, partial
from typing import Any, cast

from litestar import Litestar, Request, Response, asgi, get
from litestar.di import Provide
from litestar.exceptions import HTTPException, MethodNotAllowedException, NotFoundException, ValidationException
from litestar.handlers import HTTPRouteHandler
from litestar.params import HeaderParameter, PathParameter, QueryParameter
from litestar.types import ControllerRouterHandler

from runwright.contract.errors import ErrorCode, RunwrightError
from runwright.server.routes import admin, run_details, runs, signals, streams, worker_tasks
from runwright.server.routes.events import post_events

from .middleware import INTERNAL_ERROR_DETAIL, RequestMiddleware
from .openapi import encode_openapi, openapi_config
from .problems import MEDIA_TYPE, problem_from_error, problem_headers
from .request_context import RequestContext, get_request_context
from .responses import json_response
from .service import Service

logger = logging.getLogger("runwright.server")


def _provide_context(request: Request[Any, Any, Any]) -> RequestContext:
    return get_request_context(request.scope)


def _on_runwright_error(request: Request[Any, Any, Any], error: RunwrightError) -> Response[Any]:
    problem = problem_from_error(error, get_request_context(request.scope).request_id)
    body = json_response(problem).content
    headers = problem_headers(problem)
    if "allow" in error.facts:
        headers["allow"] = error.facts["allow"]
    return Response(body, status_code=problem.status, media_type=MEDIA_TYPE, headers=headers)


def _on_framework_error(request: Request[Any, Any, Any], error: HTTPException) -> Response[Any]:
    match error:
        case NotFoundException():
            converted = RunwrightError(ErrorCode.ROUTE_NOT_FOUND, "Not found. See /openapi.json.")
        case MethodNotAllowedException():
            converted = RunwrightError(ErrorCode.METHOD_NOT_ALLOWED, "Method not allowed.")
        case ValidationException():
            converted = RunwrightError(ErrorCode.INVALID_ARGUMENT, _validation_message(error))
        case _:
            is_client_error = error.status_code < 500
            code = ErrorCode.INVALID_ARGUMENT if is_client_error else ErrorCode.INTERNAL_ERROR
            converted = RunwrightError(code, error.detail or "Invalid request.")
    response = _on_runwright_error(request, converted)
    response.headers.update(error.headers or {})
    return response


def _on_unexpected_error(request: Request[Any, Any, Any], error: Exception) -> Response[Any]:
    """Log a bug with its traceback. Callers get only the request id."""
    if isinstance(error, RecursionError):
        too_deep = RunwrightError(ErrorCode.INVALID_ARGUMENT, "Invalid body: nested too deeply.")
        return _on_runwright_error(request, too_deep)
    request_id = get_request_context(request.scope).request_id
    logger.error("Request %s failed", request_id, exc_info=error)
    return _on_runwright_error(request, RunwrightError(ErrorCode.INTERNAL_ERROR, INTERNAL_ERROR_DETAIL))


def _validation_message(error: HTTPException) -> str:
    extra: Any = error.extra
    failures = cast("list[dict[str, Any]]", extra) if isinstance(extra, list) else []
    messages = [f"{_wire_name(str(failure.get('key') or 'body'))}: {failure.get('message')}" for failure in failures]
    return "; ".join(messages) or error.detail or "Invalid request."


def _wire_name(name: str) -> str:
    """The name of a handler's parameter in the API."""
    first, *rest = name.split("_")
    return "body" if name == "data" else first + "".join(part.capitalize() for part in rest)


async def _reject_unknown_queries(request: Request[Any, Any, Any]) -> None:
    """Reject query parameters that the handler does not have: a misspelt filter must not go unnoticed."""
    handler = request.scope["route_handler"]
    if not isinstance(handler, HTTPRouteHandler) or not request.scope["query_string"]:
        return
    allowed = _QUERIES.setdefault(str(handler), _query_names(handler))
    for name in request.query_params:
        if name not in allowed:
            names = ", ".join(sorted(allowed)) or "none"
            raise RunwrightError(ErrorCode.INVALID_ARGUMENT, f"Unknown query parameter {name!r}. Allowed: {names}.")


_QUERIES: dict[str, frozenset[str]] = {}  # by handler


def _query_names(handler: HTTPRouteHandler) -> frozenset[str]:
    names: set[str] = set()
    for name, field in handler.parsed_fn_signature.parameters.items():
        if name in ("request_context", "data") or isinstance(field.kwarg_definition, HeaderParameter | PathParameter):
            continue
        definition = field.kwarg_definition
        names.add((definition.name if isinstance(definition, QueryParameter) else None) or name)
    return frozenset(names)


def build_app(service: Service, *more: ControllerRouterHandler) -> RequestMiddleware:
    """Build the application with all routes, and with `more` ones, inside of the middleware."""
    events = asgi("/v1/events", copy_scope=False)(post_events)
    app = Litestar(
        route_handlers=[
            *runs.ROUTES,
            *run_details.ROUTES,
            *signals.ROUTES,
            *admin.ROUTES,
            *streams.ROUTES,
            *worker_tasks.ROUTES,
            events,
            *more,
        ],
        dependencies={"request_context": Provide(_provide_context, sync_to_thread=False)},
        exception_handlers={
            RunwrightError: _on_runwright_error,
            HTTPException: _on_framework_error,
            Exception: _on_unexpected_error,
        },
        before_request=_reject_unknown_queries,
        openapi_config=openapi_config(),
        request_max_body_size=None,
        logging_config=None,
        signature_types=[RequestContext],
        middleware=[],
    )
    app.register(_openapi_route(app))
    return RequestMiddleware(app, service)


def _openapi_route(app: Litestar) -> HTTPRouteHandler:
    """Build the document at the first request: that is as slow as the rest of the start of a server."""
    document = cache(partial(encode_openapi, app))

    @get("/openapi.json", include_in_schema=False)
    async def openapi() -> Response[Any]:
        return json_response(await asyncio.to_thread(document))

    return openapi
