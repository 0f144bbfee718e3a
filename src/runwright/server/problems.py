"""Errors over HTTP: RFC 9457 problem documents with the error codes of the contract."""

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
STORE_UNAVAILABLE_DETAIL = "The store is unavailable. Retry later; see the log of the server for the cause."

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
        ErrorCode.EVENT_NOT_EXPECTED,
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
        ErrorCode.TOKEN_NAME_TAKEN,
    ),
    413: (ErrorCode.PAYLOAD_TOO_LARGE,),
    415: (ErrorCode.MEDIA_TYPE_NOT_SUPPORTED,),
    422: (
        ErrorCode.INVALID_PLAN_SCHEMA,
        ErrorCode.INVALID_STEP_SCHEMA,
        ErrorCode.EXPRESSION_ERROR,
        ErrorCode.UNQUOTED_EXPRESSION,
        ErrorCode.PLAN_NEEDS_VALUE,
        ErrorCode.OPEN_DURING_IMPORT,
        ErrorCode.SECRET_NOT_AVAILABLE,
        ErrorCode.CAPABILITY_NOT_SUPPORTED,
        ErrorCode.SCHEMA_VERSION_UNKNOWN,
    ),
    429: (ErrorCode.RATE_LIMITED, ErrorCode.SIGNAL_RATE_LIMITED),
    500: (ErrorCode.INTERNAL_ERROR, ErrorCode.STORE_CORRUPT),
    503: (ErrorCode.SERVER_CLOSING, ErrorCode.SERVER_BUSY, *sorted(STORE_CODES - {ErrorCode.STORE_CORRUPT})),
}
STATUS_BY_CODE = {code: status for status, codes in _STATUS.items() for code in codes}
"""HTTP status of an error code; 400 for codes that are not listed."""

CODES_BY_STATUS = {400: tuple(code for code in ErrorCode if code not in STATUS_BY_CODE), **_STATUS}

RETRY_AFTER = {ErrorCode.RATE_LIMITED: 1, ErrorCode.SIGNAL_RATE_LIMITED: 10}
"""Seconds for the header Retry-After; one second for other codes, such as an unavailable store."""


class FieldProblem(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """One of several errors in a document."""

    code: str
    detail: str
    path: str | None = None
    line: int | None = None
    column: int | None = None


class ProblemDocument(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """RFC 9457 problem, with a stable code and the id of the request in the server's log."""

    type: str
    title: str
    status: int
    code: str
    detail: str
    request_id: str
    errors: list[FieldProblem] = []
    decision: dict[str, Any] | None = None
    """The decision on a rejected signal."""


def http_status(code: ErrorCode) -> int:
    return STATUS_BY_CODE.get(code, 400)


def problem_from_error(
    error: RunwrightError, request_id: str, decision: dict[str, Any] | None = None
) -> ProblemDocument:
    """Convert an error. Details of store errors stay in the log: they may contain addresses and credentials."""
    is_transient = error.facts.get("passing") is True  # The value may exist, but its store is unavailable.
    status = 503 if is_transient else http_status(error.code)
    detail = error.detail
    if error.code in STORE_CODES or is_transient:
        logger.warning("Request %s: %s", request_id, error)
        detail = STORE_UNAVAILABLE_DETAIL
    errors: list[FieldProblem] = []
    if isinstance(error, PlanInvalid):
        errors = [
            FieldProblem(each.code, each.sentence, each.path or None, each.line, each.column) for each in error.problems
        ]
    return ProblemDocument(
        type=f"urn:runwright:problem:{error.code}",
        title=HTTPStatus(status).phrase,
        status=status,
        code=error.code,
        detail=detail,
        request_id=request_id,
        errors=errors,
        decision=decision,
    )


def problem_headers(problem: ProblemDocument) -> dict[str, str]:
    headers = {"cache-control": "no-store"}
    code = ErrorCode(problem.code)
    if problem.status == 401:
        headers["www-authenticate"] = 'Bearer realm="runwright"'
    if problem.status in (429, 503):
        headers["retry-after"] = str(RETRY_AFTER.get(code, 1))
    return headers


async def send_problem(send: Any, problem: ProblemDocument, more: Iterable[tuple[bytes, bytes]] = ()) -> None:
    """Send a problem as ASGI messages, outside of the framework."""
    body = msgspec.json.encode(problem)
    headers = [(name.encode(), value.encode()) for name, value in problem_headers(problem).items()]
    headers += [(b"content-type", MEDIA_TYPE.encode()), (b"content-length", str(len(body)).encode()), *more]
    await send({"type": "http.response.start", "status": problem.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
