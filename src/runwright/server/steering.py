"""Signals: what an operator asks of a run, and the record of what was decided."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from litestar import Response, get, post
from litestar.openapi.datastructures import ResponseSpec
from litestar.params import JSONBody, PathParameter

from runwright.contract.errors import ErrorCode, RunwrightError
from runwright.control.access import Act
from runwright.control.signalling import DECIDED, decision_in
from runwright.control.signals import SignalDecision

from .answers import answer, check_text, problems
from .call import Asking, Call
from .model import ConfirmSignal, DecisionList, QuestionList, SendEvent, SendSignal
from .problems import MEDIA_TYPE, headers_of, problem_of, status_of
from .runs import RunId, real

SignalId = Annotated[str, PathParameter(description="The signal's id, drawn by whoever sent it.")]
_ACCEPTED = {
    202: ResponseSpec(
        SignalDecision,
        description="Accepted, not acted on yet; or a second person has to agree.",
        generate_examples=False,
    )
}


def _decided(call: Call, decision: SignalDecision) -> Response[Any]:
    if decision.code is None:
        return answer(decision, status=200 if decision.engine_result is not None else 202)
    error = RunwrightError(ErrorCode(decision.code), decision.reason or "")
    problem = problem_of(error, call.request_id, msgspec.to_builtins(decision))
    body = msgspec.json.encode(problem)
    return Response(body, status_code=status_of(error.code), media_type=MEDIA_TYPE, headers=headers_of(problem))


async def _send(
    call: Call, run_id: str, signal_type: str, payload: dict[str, Any], reason: str | None, signal_id: str | None
) -> Response[Any]:
    row = await call.look(Act.SIGNAL, run_id)
    check_text([payload, reason])
    await call.act(
        Act.SIGNAL, tenant_id=row.identity.tenant_id, run_id=run_id, signalType=signal_type, signalId=signal_id
    )
    decision = await call.operations.signal(run_id, signal_type, payload, reason=reason, signal_id=signal_id)
    _note_refusal(call, decision, row.identity.tenant_id, run_id)
    return _decided(call, decision)


def _note_refusal(call: Call, decision: SignalDecision, tenant_id: str, run_id: str) -> None:
    if decision.code is not None:
        error = RunwrightError(ErrorCode(decision.code), decision.reason or "")
        call.denied(Act.SIGNAL, error, tenant_id=tenant_id, run_id=run_id)


@post(
    "/v1/runs/{runId:str}/signals",
    operation_id="sendSignal",
    tags=["signals"],
    summary="Send a run a signal",
    description="Decided in this order: the run, the payload, the right to do it. Every decision is in the run's log, "
    "a refusal too. The same signal again gives the same decision.",
    status_code=200,
    responses={**_ACCEPTED, **problems(404, 409, 413, 415, 422)},
)
async def send_signal(call: Asking, runId: RunId, data: JSONBody[SendSignal]) -> Response[SignalDecision]:  # noqa: N803
    return await _send(call, real(runId), data.signal_type, data.payload, data.reason, data.signal_id)


@get(
    "/v1/runs/{runId:str}/signals/{signalId:str}",
    operation_id="getDecision",
    tags=["signals"],
    summary="What was decided on a signal",
    responses=problems(404),
)
async def get_decision(call: Asking, runId: RunId, signalId: SignalId) -> Response[SignalDecision]:  # noqa: N803
    await call.look(Act.READ, real(runId))
    return answer(await call.operations.signalling.find(real(runId), signalId))


@post(
    "/v1/runs/{runId:str}/signals/{signalId:str}",
    operation_id="confirmSignal",
    tags=["signals"],
    summary="Agree, as a second person, to a signal that waits for one; or do not",
    status_code=200,
    responses={**_ACCEPTED, **problems(404, 409, 413, 415, 422)},
)
async def confirm_signal(
    call: Asking,
    runId: RunId,  # noqa: N803
    signalId: SignalId,  # noqa: N803
    data: JSONBody[ConfirmSignal],
) -> Response[SignalDecision]:
    run_id = real(runId)
    row = await call.look(Act.SIGNAL, run_id)
    check_text(data.reason)
    agree = data.decision == "ACCEPTED"
    await call.act(Act.SIGNAL, tenant_id=row.identity.tenant_id, run_id=run_id, signalId=signalId, agrees=agree)
    try:
        decision = await call.operations.signalling.confirm(run_id, signalId, agree=agree, reason=data.reason)
    except RunwrightError as error:
        call.denied(Act.SIGNAL, error, tenant_id=row.identity.tenant_id, run_id=run_id)
        raise
    if not agree and decision.decision == "REJECTED":
        return answer(decision)
    return _decided(call, decision)


@post(
    "/v1/runs/{runId:str}/events/{name:str}",
    operation_id="sendEvent",
    tags=["signals"],
    summary="Send a run an event that a step waits for",
    status_code=200,
    responses={**_ACCEPTED, **problems(404, 409, 413, 415, 422)},
)
async def send_event(
    call: Asking,
    runId: RunId,  # noqa: N803
    name: Annotated[str, PathParameter(description="The event's name.")],
    data: JSONBody[SendEvent],
) -> Response[SignalDecision]:
    payload: dict[str, Any] = {"name": real(name)}
    if data.key is not None:
        payload["key"] = data.key
    if data.payload is not None:
        payload["payload"] = data.payload
    return await _send(call, real(runId), "EVENT", payload, None, data.signal_id)


@get(
    "/v1/runs/{runId:str}/decisions",
    operation_id="listDecisions",
    tags=["signals"],
    summary="Every decision on a signal to this run",
    responses=problems(404),
)
async def list_decisions(call: Asking, runId: RunId) -> Response[DecisionList]:  # noqa: N803
    row = await call.look(Act.READ, real(runId))
    found: dict[str, SignalDecision] = {}
    async for record in call.service.log.events(row.identity.run_id):
        if record.event_type in DECIDED and (record.step_id or "").startswith("signal/"):
            decision = decision_in(record)
            found[decision.signal_id] = decision  # what a second person decided replaces that one had to
        elif record.event_type == "SignalProcessed" and record.payload is not None:
            before = found.get(str(record.payload.get("signalId")))
            if before is not None:
                found[before.signal_id] = msgspec.structs.replace(
                    before,
                    engine_processed_at=record.emitted_at,
                    engine_result=record.payload.get("engineResult"),
                    new_run_id=record.payload.get("newRunId"),
                )
    return answer({"decisions": list(found.values())})


@get(
    "/v1/runs/{runId:str}/questions",
    operation_id="listQuestions",
    tags=["signals"],
    summary="What people are asked now",
    responses=problems(404),
)
async def list_questions(call: Asking, runId: RunId) -> Response[QuestionList]:  # noqa: N803
    row = await call.look(Act.READ, real(runId))
    asked = await call.operations.questions(row.identity.run_id)
    questions = [
        {
            "stepId": step_id,
            "prompt": each.prompt,
            "fields": each.fields,
            "approvers": each.approvers,
            "expiresAt": each.expires_at,
        }
        for step_id, each in asked.items()
    ]
    return answer({"questions": questions})


ROUTES = [send_signal, get_decision, confirm_signal, send_event, list_decisions, list_questions]
