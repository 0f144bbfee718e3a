"""One error type for the whole project: a machine-readable code and a sentence that says what to do."""

from __future__ import annotations

from enum import StrEnum
from typing import Any


class ErrorCode(StrEnum):
    # What a producer is told about an event.
    SCHEMA_VALIDATION_FAILED = "SCHEMA_VALIDATION_FAILED"
    SCHEMA_VERSION_UNKNOWN = "SCHEMA_VERSION_UNKNOWN"
    PAYLOAD_TOO_LARGE = "PAYLOAD_TOO_LARGE"
    RUN_CONTEXT_MISMATCH = "RUN_CONTEXT_MISMATCH"
    EVENT_ID_REUSED = "EVENT_ID_REUSED"
    INVALID_TRANSITION = "INVALID_TRANSITION"
    SEQ_CONFLICT = "SEQ_CONFLICT"
    STALE_FENCE = "STALE_FENCE"
    RUN_OWNED = "RUN_OWNED"
    NOT_ATTEMPTED = "NOT_ATTEMPTED"
    # What a caller is told about a run, a lease or a request.
    RUN_ALREADY_EXISTS = "RUN_ALREADY_EXISTS"
    RUN_NOT_FOUND = "RUN_NOT_FOUND"
    LEASE_LOST = "LEASE_LOST"
    INVALID_ARGUMENT = "INVALID_ARGUMENT"
    INVALID_CURSOR = "INVALID_CURSOR"
    ANCHOR_INVALID = "ANCHOR_INVALID"
    # What the author of a plan is told.
    INVALID_PLAN_SCHEMA = "INVALID_PLAN_SCHEMA"
    INVALID_STEP_SCHEMA = "INVALID_STEP_SCHEMA"
    EXPRESSION_ERROR = "EXPRESSION_ERROR"
    PLAN_NOT_FOUND = "PLAN_NOT_FOUND"
    PLAN_NEEDS_VALUE = "PLAN_NEEDS_VALUE"
    PLAN_MISMATCH = "PLAN_MISMATCH"
    PLAN_REF_MISMATCH = "PLAN_REF_MISMATCH"
    PLAN_INTEGRITY_VALIDATION_FAILED = "PLAN_INTEGRITY_VALIDATION_FAILED"
    CAPABILITY_NOT_SUPPORTED = "CAPABILITY_NOT_SUPPORTED"
    # What is said about a value that lives outside the log.
    SECRET_NOT_AVAILABLE = "SECRET_NOT_AVAILABLE"  # noqa: S105 - a code
    REFERENCE_NOT_AVAILABLE = "REFERENCE_NOT_AVAILABLE"
    RESULT_NOT_STORABLE = "RESULT_NOT_STORABLE"
    # What a caller is told about who they are, and how much they ask.
    AUTHN_REQUIRED = "AUTHN_REQUIRED"
    AUTHN_FAILED = "AUTHN_FAILED"
    TOKEN_NOT_FOUND = "TOKEN_NOT_FOUND"  # noqa: S105 - a code
    RATE_LIMITED = "RATE_LIMITED"
    ROUTE_NOT_FOUND = "ROUTE_NOT_FOUND"
    METHOD_NOT_ALLOWED = "METHOD_NOT_ALLOWED"
    MEDIA_TYPE_NOT_SUPPORTED = "MEDIA_TYPE_NOT_SUPPORTED"
    REQUEST_TIMEOUT = "REQUEST_TIMEOUT"
    SERVER_CLOSING = "SERVER_CLOSING"
    SERVER_UNREACHABLE = "SERVER_UNREACHABLE"
    INTERNAL_ERROR = "INTERNAL_ERROR"
    # What an operator is told about a signal.
    AUTHZ_DENIED = "AUTHZ_DENIED"
    AUTHZ_TENANT_FORBIDDEN = "AUTHZ_TENANT_FORBIDDEN"
    AUTHZ_REASON_REQUIRED = "AUTHZ_REASON_REQUIRED"
    SIGNAL_NOT_FOUND = "SIGNAL_NOT_FOUND"
    SIGNAL_DUPLICATE = "SIGNAL_DUPLICATE"
    SIGNAL_INVALID_PAYLOAD = "SIGNAL_INVALID_PAYLOAD"
    SIGNAL_RATE_LIMITED = "SIGNAL_RATE_LIMITED"
    RUN_TERMINAL = "RUN_TERMINAL"
    RUN_NOT_TERMINAL = "RUN_NOT_TERMINAL"
    STEP_NOT_FOUND = "STEP_NOT_FOUND"
    STEP_NOT_TERMINAL = "STEP_NOT_TERMINAL"
    STEP_TERMINAL = "STEP_TERMINAL"
    # What anybody is told about the store.
    STORE_URL_INVALID = "STORE_URL_INVALID"
    STORE_UNAVAILABLE = "STORE_UNAVAILABLE"
    STORE_CLOSED = "STORE_CLOSED"
    STORE_FULL = "STORE_FULL"
    STORE_READ_ONLY = "STORE_READ_ONLY"
    STORE_CORRUPT = "STORE_CORRUPT"
    STORE_FOREIGN = "STORE_FOREIGN"
    STORE_TOO_NEW = "STORE_TOO_NEW"
    STORE_WRITE_BUDGET_EXCEEDED = "STORE_WRITE_BUDGET_EXCEEDED"
    # Counted and logged, never raised.
    DUPLICATE_PAYLOAD_MISMATCH = "DUPLICATE_PAYLOAD_MISMATCH"


STORE_CODES = frozenset(code for code in ErrorCode if code.startswith("STORE_")) - {ErrorCode.STORE_URL_INVALID}
STORE_CODES_TO_WAIT_FOR = frozenset(
    {
        ErrorCode.STORE_UNAVAILABLE,
        ErrorCode.STORE_FULL,
        ErrorCode.STORE_READ_ONLY,
        ErrorCode.STORE_WRITE_BUDGET_EXCEEDED,
    }
)
"""Codes that say the store could not be used at all (the command line exits with 3)."""


class RunwrightError(Exception):
    """Raised at every edge. `facts` are structured details; they never hold payloads or secrets."""

    def __init__(self, code: ErrorCode, detail: str, **facts: Any) -> None:
        super().__init__(f"{code}: {detail}")
        self.code = code
        self.detail = detail
        self.facts: dict[str, Any] = facts
