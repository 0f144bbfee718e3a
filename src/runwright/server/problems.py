"""Errors as people and programs get them over HTTP: RFC 9457, with the code that every other edge uses too."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from http import HTTPStatus
from typing import Any

import msgspec

from runwright.contract.errors import STORE_CODES, ErrorCode, RunwrightError
from runwright.plans.problems import PlanInvalid

logger = logging.getLogger("runwright.server")

MEDIA_TYPE = "application/problem+json"
AWAY = "The store cannot be used for now. Try again in a moment; the server's log says more."

_STATUS: dict[int, tuple[ErrorCode, ...]] = {
    401: (ErrorCode.AUTHN_REQUIRED, ErrorCode.AUTHN_FAILED),
    403: (ErrorCode.AUTHZ_DENIED, ErrorCode.AUTHZ_TENANT_FORBIDDEN, ErrorCode.AUTHZ_REASON_REQUIRED),
    404: (
        ErrorCode.RUN_NOT_FOUND,
        ErrorCode.STEP_NOT_FOUND,
        ErrorCode.PLAN_NOT_FOUND,
        ErrorCode.SIGNAL_NOT_FOUND,
        ErrorCode.TOKEN_NOT_FOUND,
        ErrorCode.REFERENCE_NOT_AVAILABLE,
        ErrorCode.ROUTE_NOT_FOUND,
    ),
    405: (ErrorCode.METHOD_NOT_ALLOWED,),
    408: (ErrorCode.REQUEST_TIMEOUT,),
    409: (
        ErrorCode.RUN_ALREADY_EXISTS,
        ErrorCode.PLAN_MISMATCH,
        ErrorCode.PLAN_REF_MISMATCH,
        ErrorCode.RUN_TERMINAL,
        ErrorCode.RUN_NOT_TERMINAL,
        ErrorCode.STEP_TERMINAL,
        ErrorCode.STEP_NOT_TERMINAL,
        ErrorCode.SIGNAL_DUPLICATE,
        ErrorCode.RUN_CONTEXT_MISMATCH,
        ErrorCode.EVENT_ID_REUSED,
        ErrorCode.INVALID_TRANSITION,
        ErrorCode.SEQ_CONFLICT,
        ErrorCode.STALE_FENCE,
        ErrorCode.RUN_OWNED,
        ErrorCode.LEASE_LOST,
    ),
    413: (ErrorCode.PAYLOAD_TOO_LARGE,),
    415: (ErrorCode.MEDIA_TYPE_NOT_SUPPORTED,),
    422: (
        ErrorCode.INVALID_PLAN_SCHEMA,
        ErrorCode.INVALID_STEP_SCHEMA,
        ErrorCode.EXPRESSION_ERROR,
        ErrorCode.PLAN_NEEDS_VALUE,
        ErrorCode.SECRET_NOT_AVAILABLE,
        ErrorCode.CAPABILITY_NOT_SUPPORTED,
        ErrorCode.SCHEMA_VERSION_UNKNOWN,
    ),
    429: (ErrorCode.RATE_LIMITED, ErrorCode.SIGNAL_RATE_LIMITED),
    500: (ErrorCode.INTERNAL_ERROR, ErrorCode.STORE_CORRUPT),
    503: (ErrorCode.SERVER_CLOSING, *sorted(STORE_CODES - {ErrorCode.STORE_CORRUPT})),
}
STATUS = {code: status for status, codes in _STATUS.items() for code in codes}
"""The status that goes with a code; 400 for all that is not here."""

CODES = {400: tuple(code for code in ErrorCode if code not in STATUS), **_STATUS}

RETRY_AFTER = {ErrorCode.RATE_LIMITED: 1, ErrorCode.SIGNAL_RATE_LIMITED: 10}
"""Seconds after which it is worth another try; a store that is away is worth one after a second."""


class FieldProblem(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """One of several things that are wrong."""

    code: str
    detail: str
    path: str | None = None
    line: int | None = None
    column: int | None = None


class Problem(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """RFC 9457, with a code that does not change and the id under which the server's log knows the request."""

    type: str
    title: str
    status: int
    code: str
    detail: str
    request_id: str
    errors: list[FieldProblem] = []
    decision: dict[str, Any] | None = None
    """The record of a signal that was refused."""


def status_of(code: ErrorCode) -> int:
    return STATUS.get(code, 400)


def problem_of(error: RunwrightError, request_id: str, decision: dict[str, Any] | None = None) -> Problem:
    is_passing = error.facts.get("passing") is True  # what is asked for is there, and its store does not answer
    status = 503 if is_passing else status_of(error.code)
    detail = error.detail
    if error.code in STORE_CODES or is_passing:  # where the store is, and what it says, is nobody's business out there
        logger.warning("Request %s: %s", request_id, error)
        detail = AWAY
    errors: list[FieldProblem] = []
    if isinstance(error, PlanInvalid):
        errors = [
            FieldProblem(each.code, each.sentence, each.path or None, each.line, each.column) for each in error.problems
        ]
    return Problem(
        type=f"urn:runwright:problem:{error.code}",
        title=HTTPStatus(status).phrase,
        status=status,
        code=error.code,
        detail=detail,
        request_id=request_id,
        errors=errors,
        decision=decision,
    )


def headers_of(problem: Problem) -> dict[str, str]:
    headers = {"cache-control": "no-store"}
    code = ErrorCode(problem.code)
    if problem.status == 401:
        headers["www-authenticate"] = 'Bearer realm="runwright"'
    if problem.status in (429, 503):
        headers["retry-after"] = str(RETRY_AFTER.get(code, 1))
    return headers


async def send_problem(send: Any, problem: Problem, more: Iterable[tuple[bytes, bytes]] = ()) -> None:
    """Answer with a problem, from outside of any framework."""
    body = msgspec.json.encode(problem)
    headers = [(name.encode(), value.encode()) for name, value in headers_of(problem).items()]
    headers += [(b"content-type", MEDIA_TYPE.encode()), (b"content-length", str(len(body)).encode()), *more]
    await send({"type": "http.response.start", "status": problem.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
