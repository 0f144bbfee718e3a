"""The error type of the whole project: a machine-readable code, and a text with the problem and its remedy."""

from __future__ import annotations

from enum import StrEnum
from typing import Any


class ErrorCode(StrEnum):
    # Refused events, for their producer.
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
    # Runs, leases and arguments.
    RUN_ALREADY_EXISTS = "RUN_ALREADY_EXISTS"
    RUN_NOT_FOUND = "RUN_NOT_FOUND"
    LEASE_LOST = "LEASE_LOST"
    INVALID_ARGUMENT = "INVALID_ARGUMENT"
    INVALID_CURSOR = "INVALID_CURSOR"
    ANCHOR_INVALID = "ANCHOR_INVALID"
    # Plans, for their author.
    INVALID_PLAN_SCHEMA = "INVALID_PLAN_SCHEMA"
    INVALID_STEP_SCHEMA = "INVALID_STEP_SCHEMA"
    EXPRESSION_ERROR = "EXPRESSION_ERROR"
    PLAN_NOT_FOUND = "PLAN_NOT_FOUND"
    PLAN_NEEDS_VALUE = "PLAN_NEEDS_VALUE"
    PLAN_MISMATCH = "PLAN_MISMATCH"
    PLAN_REF_MISMATCH = "PLAN_REF_MISMATCH"
    PLAN_INTEGRITY_VALIDATION_FAILED = "PLAN_INTEGRITY_VALIDATION_FAILED"
    CAPABILITY_NOT_SUPPORTED = "CAPABILITY_NOT_SUPPORTED"
    # Values outside of the log.
    SECRET_NOT_AVAILABLE = "SECRET_NOT_AVAILABLE"  # noqa: S105 - a code
    REFERENCE_NOT_AVAILABLE = "REFERENCE_NOT_AVAILABLE"
    RESULT_NOT_STORABLE = "RESULT_NOT_STORABLE"
    # Requests to a server: authentication, rate limits, HTTP.
    AUTHN_REQUIRED = "AUTHN_REQUIRED"
    AUTHN_FAILED = "AUTHN_FAILED"
    TOKEN_NAME_TAKEN = "TOKEN_NAME_TAKEN"  # noqa: S105 - a code
    TOKEN_NOT_FOUND = "TOKEN_NOT_FOUND"  # noqa: S105 - a code
    RATE_LIMITED = "RATE_LIMITED"
    ROUTE_NOT_FOUND = "ROUTE_NOT_FOUND"
    METHOD_NOT_ALLOWED = "METHOD_NOT_ALLOWED"
    MEDIA_TYPE_NOT_SUPPORTED = "MEDIA_TYPE_NOT_SUPPORTED"
    REQUEST_TIMEOUT = "REQUEST_TIMEOUT"
    SERVER_CLOSING = "SERVER_CLOSING"
    SERVER_UNREACHABLE = "SERVER_UNREACHABLE"
    INTERNAL_ERROR = "INTERNAL_ERROR"
    # Signals, for the operator.
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
    # The store.
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
"""Codes of a store that could not be used at all. The command line exits with 3."""

RETRYABLE_STORE_CODES = frozenset(
    {
        ErrorCode.STORE_UNAVAILABLE,
        ErrorCode.STORE_FULL,
        ErrorCode.STORE_READ_ONLY,
        ErrorCode.STORE_WRITE_BUDGET_EXCEEDED,
    }
)
"""Codes of a store that may become usable again, so that the operation is retried."""


class RunwrightError(Exception):
    """The only exception type of the public interfaces. `facts` are structured details without payloads or secrets."""

    def __init__(self, code: ErrorCode, detail: str, **facts: Any) -> None:
        super().__init__(f"{code}: {detail}")
        self.code = code
        self.detail = detail
        self.facts: dict[str, Any] = facts
