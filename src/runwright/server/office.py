"""People and the store as a whole: tokens, audit, alerts, checks, health."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any, Literal

import msgspec
from litestar import Response, delete, get, post
from litestar.openapi.datastructures import ResponseSpec
from litestar.params import FromQuery, JSONBody, PathParameter, QueryParameter

from runwright.contract.errors import ErrorCode, RunwrightError
from runwright.control.access import Act
from runwright.control.audit import AuditFilter, AuditPage
from runwright.control.moments import moment
from runwright.control.tokens import check_token
from runwright.plans.durations import NoDuration, read_duration

from .answers import answer, check_text, problems
from .call import Asking
from .model import AlertList, CheckReport, CreatedToken, CreateToken, Health, RebuildAnswer, TokenList, WhoAmI

READY_SECONDS = 2.0


@get("/v1/whoami", operation_id="whoAmI", tags=["people"], summary="Who you are here", responses=problems())
async def who_am_i(call: Asking) -> Response[WhoAmI]:
    actor = call.actor
    return answer(
        WhoAmI(
            actor_id=actor.actor_id,
            roles=list(actor.roles),
            scopes=list(actor.scopes),
            tenant_id=actor.tenant_id,
            token_id=actor.token_id,
        )
    )


@get("/v1/tokens", operation_id="listTokens", tags=["people"], summary="The tokens there are", responses=problems())
async def list_tokens(call: Asking) -> Response[TokenList]:
    call.glance(Act.MANAGE_TOKENS)
    return answer({"tokens": await call.service.tokens.list(call.actor.tenant_id)})


@post(
    "/v1/tokens",
    operation_id="createToken",
    tags=["people"],
    summary="Make a token",
    description="Its text is in the answer, and nowhere else.",
    status_code=201,
    responses=problems(413, 415),
)
async def create_token(call: Asking, data: JSONBody[CreateToken]) -> Response[CreatedToken]:
    call.permit(Act.MANAGE_TOKENS, tenant_id=data.tenant_id)
    check_text(msgspec.to_builtins(data))
    try:
        lifetime = None if data.expires_in is None else read_duration(data.expires_in)
    except NoDuration as error:
        raise RunwrightError(ErrorCode.INVALID_ARGUMENT, f"expiresIn: {error}") from None
    tenant_id = data.tenant_id or call.actor.tenant_id
    wanted: dict[str, Any] = {
        "by": call.actor,
        "tenant_id": data.tenant_id,
        "roles": data.roles,
        "scopes": data.scopes,
        "lifetime": lifetime,
    }
    try:
        check_token(data.name, **wanted)
    except RunwrightError as error:
        if error.code in (ErrorCode.AUTHZ_DENIED, ErrorCode.AUTHZ_TENANT_FORBIDDEN):
            call.denied(Act.MANAGE_TOKENS, error, tenant_id=call.actor.tenant_id)
        raise
    made: dict[str, Any] = {"tokenName": data.name, "tokenRoles": data.roles, "tokenScopes": data.scopes}
    await call.act(Act.MANAGE_TOKENS, tenant_id=tenant_id or "", **made)
    token, text = await call.service.tokens.create(data.name, **wanted)
    return answer({"token": text, "details": token}, status=201)


@delete(
    "/v1/tokens/{tokenId:str}",
    operation_id="revokeToken",
    tags=["people"],
    summary="End a token now",
    status_code=204,
    responses=problems(404),
)
async def revoke_token(call: Asking, tokenId: Annotated[str, PathParameter(description="The token's id.")]) -> None:  # noqa: N803
    call.permit(Act.MANAGE_TOKENS)
    await call.act(Act.MANAGE_TOKENS, tenant_id=call.actor.tenant_id or "", revoked=tokenId[:64])
    await call.service.tokens.revoke(tokenId, by=call.actor)


@get(
    "/v1/audit",
    operation_id="listAudit",
    tags=["people"],
    summary="What was granted and what was denied, newest first",
    responses=problems(),
)
async def list_audit(
    call: Asking,
    run_id: Annotated[str | None, QueryParameter(name="runId", max_length=512)] = None,
    actor_id: Annotated[str | None, QueryParameter(name="actorId", max_length=256)] = None,
    tenant_id: Annotated[str | None, QueryParameter(name="tenantId", max_length=512)] = None,
    outcome: FromQuery[Literal["GRANTED", "DENIED"] | None] = None,
    action: Annotated[str | None, QueryParameter(max_length=64)] = None,
    since: Annotated[str | None, QueryParameter(max_length=64)] = None,
    until: Annotated[str | None, QueryParameter(max_length=64)] = None,
    cursor: Annotated[str | None, QueryParameter(max_length=20)] = None,
    limit: Annotated[int, QueryParameter(ge=1, le=1000)] = 100,
) -> Response[AuditPage]:
    call.glance(Act.SEE_AUDIT)
    if tenant_id is not None and not call.actor.sees(tenant_id):
        return answer({"entries": [], "cursor": None})
    now = call.service.log.clock.now()
    wanted = AuditFilter(
        run_id,
        actor_id,
        call.actor.tenant_id or tenant_id,
        outcome,
        action,
        None if since is None else moment(since, now),
        None if until is None else moment(until, now),
    )
    return answer(await call.service.audit.list(wanted, cursor=cursor, limit=limit))


@get(
    "/v1/alerts",
    operation_id="listAlerts",
    tags=["people"],
    summary="What an operator should know",
    responses=problems(404),
)
async def list_alerts(
    call: Asking, run_id: Annotated[str | None, QueryParameter(name="runId", max_length=512)] = None
) -> Response[AlertList]:
    if run_id is not None:
        await call.look(Act.READ, run_id)
    else:
        call.glance(Act.READ)
    found = await call.service.log.alerts(run_id, tenant_id=call.actor.tenant_id)
    return answer({"alerts": found})


@get(
    "/v1/verify",
    operation_id="verify",
    tags=["store"],
    summary="Prove that nothing was edited, in a run or in all of them",
    responses=problems(404),
)
async def verify(
    call: Asking, run_id: Annotated[str | None, QueryParameter(name="runId", max_length=512)] = None
) -> Response[CheckReport]:
    if run_id is None:
        call.glance(Act.CHECK_STORE)
    else:
        await call.look(Act.READ, run_id)
    findings = [finding async for finding in call.service.log.verify(run_id)]
    found = [
        {"runId": each.run_id, "kind": each.kind, "detail": each.detail, "runSeq": each.run_seq} for each in findings
    ]
    return answer({"ok": not any(each.is_damage for each in findings), "findings": found})


@get(
    "/v1/heads",
    operation_id="listHeads",
    tags=["store"],
    summary="Where every run stands: what an anchor is made of",
    responses=problems(),
)
async def list_heads(call: Asking) -> Response[dict[str, Any]]:
    call.glance(Act.CHECK_STORE)
    heads = [[run_id, seq, head.hex()] async for run_id, seq, head in call.service.log.heads()]
    return answer({"heads": heads})


@get("/v1/store", operation_id="getStore", tags=["store"], summary="Facts about the store", responses=problems())
async def get_store(call: Asking) -> Response[dict[str, Any]]:
    call.glance(Act.CHECK_STORE)
    return answer(await call.service.log.health())


@post(
    "/v1/rebuild",
    operation_id="rebuild",
    tags=["store"],
    summary="Fold every run anew, and mend its summary or only compare",
    status_code=200,
    responses=problems(),
)
async def rebuild(call: Asking, check: FromQuery[bool] = True) -> Response[RebuildAnswer]:
    call.permit(Act.CHECK_STORE)
    await call.act(Act.CHECK_STORE, tenant_id="", mends=not check)
    return answer(await call.service.log.rebuild(check=check))


@get("/healthz", operation_id="healthz", tags=["health"], summary="Whether this process lives")
async def healthz() -> Response[Health]:
    return answer({"status": "ok", "detail": None})


@get(
    "/readyz",
    operation_id="readyz",
    tags=["health"],
    summary="Whether this process can serve: its store answers, and it is not stopping",
    responses={503: ResponseSpec(Health, description="It cannot.", generate_examples=False)},
)
async def readyz(call: Asking) -> Response[Health]:
    service = call.service
    if service.is_closing:
        return answer({"status": "closing", "detail": "This server is stopping."}, status=503)
    try:
        async with asyncio.timeout(READY_SECONDS):
            await service.log.desk.read("any_token")
        service.operations.engine.check_lease()
    except (RunwrightError, TimeoutError) as error:
        detail = error.detail if isinstance(error, RunwrightError) else "The store does not answer."
        return answer({"status": "unavailable", "detail": detail}, status=503, headers={"retry-after": "1"})
    return answer({"status": "ok", "detail": None})


@get(
    "/metrics",
    operation_id="metrics",
    tags=["health"],
    summary="Figures for Prometheus",
    media_type="text/plain",
    responses=problems(),
)
async def metrics(call: Asking) -> Response[str]:
    call.glance(Act.SEE_METRICS)
    page = await call.service.measures.page()
    return Response(page, media_type="text/plain; version=0.0.4; charset=utf-8")  # pyright: ignore[reportReturnType]


ROUTES = [
    who_am_i,
    list_tokens,
    create_token,
    revoke_token,
    list_audit,
    list_alerts,
    verify,
    list_heads,
    get_store,
    rebuild,
    healthz,
    readyz,
    metrics,
]
