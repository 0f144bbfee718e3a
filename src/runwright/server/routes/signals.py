"""Signals of operators to a run, the decisions on them, and open questions."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from litestar import Response, get, post
from litestar.openapi.datastructures import ResponseSpec
from litestar.params import JSONBody, PathParameter

from runwright.auth.roles import Action
from runwright.contract.errors import ErrorCode, RunwrightError
from runwright.control.signal_rules import SignalDecision
from runwright.control.signal_service import DECIDED, decision_in
from runwright.server.problems import MEDIA_TYPE, http_status, problem_from_error, problem_headers
from runwright.server.request_context import InjectedContext, RequestContext
from runwright.server.responses import json_response, problem_responses, validate_storable
from runwright.server.schemas import ConfirmSignal, DecisionList, QuestionList, SendEvent, SendSignal

from .runs import RunId, decode_slashes

SignalId = Annotated[str, PathParameter(description="Id of the signal, chosen by the sender.")]
_ACCEPTED = {
    202: ResponseSpec(
        SignalDecision,
        description="Accepted but not processed yet, or waiting for a second person.",
        generate_examples=False,
    )
}


def _decision_response(context: RequestContext, decision: SignalDecision) -> Response[Any]:
    if decision.code is None:
        return json_response(decision, status=200 if decision.engine_result is not None else 202)
    error = RunwrightError(ErrorCode(decision.code), decision.reason or "")
    problem = problem_from_error(error, context.request_id, msgspec.to_builtins(decision))
    body = msgspec.json.encode(problem)
    return Response(body, status_code=http_status(error.code), media_type=MEDIA_TYPE, headers=problem_headers(problem))


async def _send(
    context: RequestContext,
    run_id: str,
    signal_type: str,
    payload: dict[str, Any],
    reason: str | None,
    signal_id: str | None,
) -> Response[Any]:
    row = await context.authorize_run(Action.SIGNAL, run_id)
    validate_storable([payload, reason])
    await context.audit_run_action(Action.SIGNAL, row, signalType=signal_type, signalId=signal_id)
    decision = await context.operations.signal(run_id, signal_type, payload, reason=reason, signal_id=signal_id)
    if decision.code is not None:
        error = RunwrightError(ErrorCode(decision.code), decision.reason or "")
        context.audit_denial(Action.SIGNAL, error, run=row)
    return _decision_response(context, decision)


@post(
    "/v1/runs/{runId:str}/signals",
    operation_id="sendSignal",
    tags=["signals"],
    summary="Send a signal to a run",
    description="Checked in this order: the run, the payload, the permission. Every decision is recorded in the log of "
    "the run, also a rejection. The same signal again returns the same decision.",
    status_code=200,
    responses={**_ACCEPTED, **problem_responses(404, 409, 413, 415, 422)},
)
async def send_signal(
    request_context: InjectedContext,
    runId: RunId,  # noqa: N803
    data: JSONBody[SendSignal],
) -> Response[SignalDecision]:
    return await _send(
        request_context, decode_slashes(runId), data.signal_type, data.payload, data.reason, data.signal_id
    )


@get(
    "/v1/runs/{runId:str}/signals/{signalId:str}",
    operation_id="getDecision",
    tags=["signals"],
    summary="Get the decision on a signal",
    responses=problem_responses(404),
)
async def get_decision(request_context: InjectedContext, runId: RunId, signalId: SignalId) -> Response[SignalDecision]:  # noqa: N803
    await request_context.authorize_run(Action.READ, decode_slashes(runId))
    return json_response(await request_context.operations.signals.find(decode_slashes(runId), signalId))


@post(
    "/v1/runs/{runId:str}/signals/{signalId:str}",
    operation_id="confirmSignal",
    tags=["signals"],
    summary="Confirm or reject a signal that requires a second person",
    status_code=200,
    responses={**_ACCEPTED, **problem_responses(404, 409, 413, 415, 422)},
)
async def confirm_signal(
    request_context: InjectedContext,
    runId: RunId,  # noqa: N803
    signalId: SignalId,  # noqa: N803
    data: JSONBody[ConfirmSignal],
) -> Response[SignalDecision]:
    run_id = decode_slashes(runId)
    row = await request_context.authorize_run(Action.SIGNAL, run_id)
    validate_storable(data.reason)
    agree = data.decision == "ACCEPTED"
    await request_context.audit_run_action(Action.SIGNAL, row, signalId=signalId, agrees=agree)
    try:
        decision = await request_context.operations.signals.confirm(run_id, signalId, agree=agree, reason=data.reason)
    except RunwrightError as error:
        request_context.audit_denial(Action.SIGNAL, error, run=row)
        raise
    if not agree and decision.decision == "REJECTED":
        return json_response(decision)
    return _decision_response(request_context, decision)


@post(
    "/v1/runs/{runId:str}/events/{name:str}",
    operation_id="sendEvent",
    tags=["signals"],
    summary="Deliver an external event to a waiting step",
    status_code=200,
    responses={**_ACCEPTED, **problem_responses(404, 409, 413, 415, 422)},
)
async def send_event(
    request_context: InjectedContext,
    runId: RunId,  # noqa: N803
    name: Annotated[str, PathParameter(description="Name of the event.")],
    data: JSONBody[SendEvent],
) -> Response[SignalDecision]:
    payload: dict[str, Any] = {"name": decode_slashes(name)}
    if data.key is not None:
        payload["key"] = data.key
    if data.payload is not None:
        payload["payload"] = data.payload
    return await _send(request_context, decode_slashes(runId), "EVENT", payload, None, data.signal_id)


@get(
    "/v1/runs/{runId:str}/decisions",
    operation_id="listDecisions",
    tags=["signals"],
    summary="List the decisions on all signals to a run",
    responses=problem_responses(404),
)
async def list_decisions(request_context: InjectedContext, runId: RunId) -> Response[DecisionList]:  # noqa: N803
    row = await request_context.authorize_run(Action.READ, decode_slashes(runId))
    found: dict[str, SignalDecision] = {}
    async for record in request_context.service.log.events(row.identity.run_id):
        if record.event_type in DECIDED and (record.step_id or "").startswith("signal/"):
            decision = decision_in(record)
            found[decision.signal_id] = decision  # The second person's decision replaces the pending one.
        elif record.event_type == "SignalProcessed" and record.payload is not None:
            decision = found.get(str(record.payload.get("signalId")))
            if decision is not None:
                found[decision.signal_id] = msgspec.structs.replace(
                    decision,
                    engine_processed_at=record.emitted_at,
                    engine_result=record.payload.get("engineResult"),
                    new_run_id=record.payload.get("newRunId"),
                )
    return json_response({"decisions": list(found.values())})


@get(
    "/v1/runs/{runId:str}/questions",
    operation_id="listQuestions",
    tags=["signals"],
    summary="List steps that are waiting for approval or input",
    responses=problem_responses(404),
)
async def list_questions(request_context: InjectedContext, runId: RunId) -> Response[QuestionList]:  # noqa: N803
    row = await request_context.authorize_run(Action.READ, decode_slashes(runId))
    approvals = await request_context.operations.questions(row.identity.run_id)
    questions = [
        {
            "stepId": step_id,
            "prompt": approval.prompt,
            "fields": approval.fields,
            "approvers": approval.approvers,
            "expiresAt": approval.expires_at,
        }
        for step_id, approval in approvals.items()
    ]
    return json_response({"questions": questions})


ROUTES = [send_signal, get_decision, confirm_signal, send_event, list_decisions, list_questions]
