"""Examples for the description of the API; every one of them is checked against it by a test."""

from __future__ import annotations

from typing import Any

_RUN = "5f0c2f0e-6c1e-4b7a-9a53-3c1c8f0a7d11"
_SIGNAL = "9b2d6c1e-8f44-4c0b-9a57-0d6a1f1c2e33"

BODIES: dict[str, Any] = {
    "startRun": {
        "plan": {"plan": "hello", "steps": [{"id": "greet", "shell": "echo hello"}]},
        "context": {"environmentId": "prod"},
        "params": {},
        "runRequestId": "order-4711",
    },
    "rerun": {"fromStep": "load"},
    "sendSignal": {"signalId": _SIGNAL, "signalType": "PAUSE", "reason": "The warehouse is down."},
    "confirmSignal": {"decision": "ACCEPTED", "reason": "I looked at it."},
    "sendEvent": {"key": "order-4711", "payload": {"amount": 12}},
    "createToken": {"name": "jane", "tenantId": "acme", "roles": ["Operator"], "expiresIn": "30d"},
    "appendEvents": {
        "eventId": "0e9d2f86-2d6a-4c3f-8f7a-61d5e1a0b9c4",
        "eventType": "RunStarted",
        "runId": _RUN,
        "tenantId": "default",
        "projectId": "default",
        "environmentId": "default",
        "planId": "orders",
        "planVersion": "3",
        "engineAttemptId": 1,
        "logicalAttemptId": 1,
        "idempotencyKey": "b0a1d1f2c8b6b6a9a53a2f2f4c4f7d1f0f5a8a1c2d3e4f5061728394a5b6c7d8",
        "emittedAt": "2026-01-31T08:00:00Z",
    },
}
"""What may be sent, by operation."""

ANSWERS: dict[str, dict[str, Any]] = {
    "startRun": {
        "201": {
            "runId": _RUN,
            "created": True,
            "status": "RUNNING",
            "tenantId": "default",
            "projectId": "default",
            "environmentId": "prod",
            "planId": "hello",
            "planVersion": "22cdffd3808806980a10be240061281730003f81ca8e353fef16fea64dbe3e2b",
            "engineRunRef": {"provider": "embedded", "workflowId": _RUN, "runId": _RUN},
        }
    },
    "getRunStatus": {
        "200": {
            "runId": _RUN,
            "status": "PAUSED",
            "substatus": "DRAINING",
            "message": "Workflow paused. Waiting for 3 in-flight tasks to complete.",
            "startedAt": "2026-01-31T08:00:00Z",
        }
    },
    "sendSignal": {
        "200": {
            "signalDecisionId": "4c1f7a52-6a0e-4c55-8b1c-1f6f2a7b9d00",
            "signalId": _SIGNAL,
            "signalType": "PAUSE",
            "decision": "ACCEPTED",
            "reason": "The warehouse is down.",
            "policyDecisionId": "role/Operator",
            "audit": {
                "actorId": "jane",
                "actorRole": "Operator",
                "tenantId": "acme",
                "timestamp": "2026-01-31T08:00:05Z",
                "source": "api",
                "sourceIp": "192.0.2.7",
            },
            "engineProcessedAt": "2026-01-31T08:00:05.2Z",
            "engineResult": "PAUSED",
        }
    },
    "whoAmI": {
        "200": {
            "actorId": "jane",
            "roles": ["Operator"],
            "scopes": [],
            "tenantId": "acme",
            "tokenId": "0a1b2c3d4e5f6071",
        }
    },
    "healthz": {"200": {"status": "ok", "detail": None}},
}
"""What may come back, by operation and status."""
