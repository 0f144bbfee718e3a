"""Administration: tokens, audit, alerts, verification of the store, health, metrics."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any, Literal

import msgspec
from litestar import Response, delete, get, post
from litestar.openapi.datastructures import ResponseSpec
from litestar.params import FromQuery, JSONBody, PathParameter, QueryParameter

from runwright.auth.audit import AuditFilter, AuditPage
from runwright.auth.roles import Action
from runwright.auth.tokens import check_token
from runwright.contract.errors import STORE_CODES, ErrorCode, RunwrightError
from runwright.control.time_text import parse_time
from runwright.plans.durations import InvalidDuration, parse_duration
from runwright.server.problems import STORE_UNAVAILABLE_DETAIL
from runwright.server.request_context import InjectedContext
from runwright.server.responses import json_response, problem_responses, validate_storable
from runwright.server.schemas import (
    AlertList,
    CheckReport,
    CreatedToken,
    CreateToken,
    Health,
    RebuildAnswer,
    TokenList,
    WhoAmI,
)

READY_SECONDS = 2.0


@get(
    "/v1/whoami",
    operation_id="whoAmI",
    tags=["people"],
    summary="Show the actor of the token",
    responses=problem_responses(),
)
async def who_am_i(request_context: InjectedContext) -> Response[WhoAmI]:
    actor = request_context.actor
    return json_response(
        WhoAmI(
            actor_id=actor.actor_id,
            roles=list(actor.roles),
            scopes=list(actor.scopes),
            tenant_id=actor.tenant_id,
            token_id=actor.token_id,
        )
    )


@get(
    "/v1/tokens",
    operation_id="listTokens",
    tags=["people"],
    summary="List tokens",
    responses=problem_responses(),
)
async def list_tokens(request_context: InjectedContext) -> Response[TokenList]:
    request_context.authorize(Action.MANAGE_TOKENS)
    return json_response({"tokens": await request_context.service.tokens.list(request_context.actor.tenant_id)})


@post(
    "/v1/tokens",
    operation_id="createToken",
    tags=["people"],
    summary="Create a token",
    description="The response contains the token itself, which is not stored and cannot be shown again.",
    status_code=201,
    responses=problem_responses(409, 413, 415),
)
async def create_token(request_context: InjectedContext, data: JSONBody[CreateToken]) -> Response[CreatedToken]:
    request_context.permit(Action.MANAGE_TOKENS, tenant_id=data.tenant_id)
    validate_storable(msgspec.to_builtins(data))
    try:
        lifetime = None if data.expires_in is None else parse_duration(data.expires_in)
    except InvalidDuration as error:
        raise RunwrightError(ErrorCode.INVALID_ARGUMENT, f"expiresIn: {error}") from None
    tenant_id = data.tenant_id or request_context.actor.tenant_id
    definition: dict[str, Any] = {
        "by": request_context.actor,
        "tenant_id": data.tenant_id,
        "roles": data.roles,
        "scopes": data.scopes,
        "lifetime": lifetime,
    }
    try:
        check_token(data.name, **definition)
    except RunwrightError as error:
        if error.code in (ErrorCode.AUTHZ_DENIED, ErrorCode.AUTHZ_TENANT_FORBIDDEN):
            request_context.audit_denial(Action.MANAGE_TOKENS, error, tenant_id=request_context.actor.tenant_id)
        raise
    facts: dict[str, Any] = {"tokenName": data.name, "tokenRoles": data.roles, "tokenScopes": data.scopes}
    await request_context.audit_action(Action.MANAGE_TOKENS, tenant_id=tenant_id or "", **facts)
    token, text = await request_context.service.tokens.create(data.name, **definition)
    return json_response({"token": text, "details": token}, status=201)


@delete(
    "/v1/tokens/{tokenId:str}",
    operation_id="revokeToken",
    tags=["people"],
    summary="Revoke a token immediately",
    status_code=204,
    responses=problem_responses(404),
)
async def revoke_token(
    request_context: InjectedContext,
    tokenId: Annotated[str, PathParameter(description="Id of the token.")],  # noqa: N803
) -> None:
    request_context.permit(Action.MANAGE_TOKENS)
    await request_context.audit_action(
        Action.MANAGE_TOKENS, tenant_id=request_context.actor.tenant_id or "", revoked=tokenId[:64]
    )
    await request_context.service.tokens.revoke(tokenId, by=request_context.actor)


@get(
    "/v1/audit",
    operation_id="listAudit",
    tags=["people"],
    summary="List granted and denied actions, newest first",
    responses=problem_responses(),
)
async def list_audit(
    request_context: InjectedContext,
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
    request_context.authorize(Action.READ_AUDIT)
    if tenant_id is not None and not request_context.actor.can_access_tenant(tenant_id):
        return json_response({"entries": [], "cursor": None})
    now = request_context.service.log.clock.now()
    audit_filter = AuditFilter(
        run_id,
        actor_id,
        request_context.actor.tenant_id or tenant_id,
        outcome,
        action,
        None if since is None else parse_time(since, now),
        None if until is None else parse_time(until, now),
    )
    return json_response(await request_context.service.audit.list(audit_filter, cursor=cursor, limit=limit))


@get(
    "/v1/alerts",
    operation_id="listAlerts",
    tags=["people"],
    summary="List alerts",
    responses=problem_responses(404),
)
async def list_alerts(
    request_context: InjectedContext, run_id: Annotated[str | None, QueryParameter(name="runId", max_length=512)] = None
) -> Response[AlertList]:
    if run_id is not None:
        await request_context.authorize_run(Action.READ, run_id)
    else:
        request_context.authorize(Action.READ)
    found = await request_context.service.log.alerts(run_id, tenant_id=request_context.actor.tenant_id)
    return json_response({"alerts": found})


@get(
    "/v1/verify",
    operation_id="verify",
    tags=["store"],
    summary="Verify the hash chain of a run, or of all runs",
    responses=problem_responses(404),
)
async def verify(
    request_context: InjectedContext, run_id: Annotated[str | None, QueryParameter(name="runId", max_length=512)] = None
) -> Response[CheckReport]:
    if run_id is None:
        request_context.authorize(Action.CHECK_STORE)
    else:
        await request_context.authorize_run(Action.READ, run_id)
    findings = [finding async for finding in request_context.service.log.verify(run_id)]
    documents = [
        {"runId": finding.run_id, "kind": finding.kind, "detail": finding.detail, "runSeq": finding.run_seq}
        for finding in findings
    ]
    return json_response({"ok": not any(finding.is_damage for finding in findings), "findings": documents})


@get(
    "/v1/heads",
    operation_id="listHeads",
    tags=["store"],
    summary="List the last event number and hash of every run, as for an anchor",
    responses=problem_responses(),
)
async def list_heads(request_context: InjectedContext) -> Response[dict[str, Any]]:
    request_context.authorize(Action.CHECK_STORE)
    heads = [[run_id, seq, head.hex()] async for run_id, seq, head in request_context.service.log.heads()]
    return json_response({"heads": heads})


@get(
    "/v1/store",
    operation_id="getStore",
    tags=["store"],
    summary="Show the state of the store",
    responses=problem_responses(),
)
async def get_store(request_context: InjectedContext) -> Response[dict[str, Any]]:
    request_context.authorize(Action.CHECK_STORE)
    return json_response(await request_context.service.log.health())


@post(
    "/v1/rebuild",
    operation_id="rebuild",
    tags=["store"],
    summary="Rebuild run summaries from events; with `check` only compare",
    status_code=200,
    responses=problem_responses(),
)
async def rebuild(request_context: InjectedContext, check: FromQuery[bool] = True) -> Response[RebuildAnswer]:
    request_context.permit(Action.CHECK_STORE)
    await request_context.audit_action(Action.CHECK_STORE, tenant_id="", mends=not check)
    return json_response(await request_context.service.log.rebuild(check=check))


@get(
    "/healthz",
    operation_id="healthz",
    tags=["health"],
    summary="Whether this process is alive, and needs no restart",
    responses={503: ResponseSpec(Health, description="To be restarted.", generate_examples=False)},
)
async def healthz(request_context: InjectedContext) -> Response[Health]:
    if request_context.service.log.store.is_replaced:
        detail = "The file of the store was replaced. Restart this server."
        return json_response({"status": "failed", "detail": detail}, status=503, headers={"retry-after": "1"})
    return json_response({"status": "ok", "detail": None})


@get(
    "/readyz",
    operation_id="readyz",
    tags=["health"],
    summary="Whether this process can serve requests: its store is available, and it is not shutting down",
    responses={503: ResponseSpec(Health, description="Not ready.", generate_examples=False)},
)
async def readyz(request_context: InjectedContext) -> Response[Health]:
    service = request_context.service
    if service.is_closing:
        document = {"status": "closing", "detail": "This server is shutting down."}
        return json_response(document, status=503, headers={"retry-after": "1"})
    try:
        async with asyncio.timeout(READY_SECONDS):
            await service.log.store.side_tables.read("token_exists")
        service.operations.engine.keeper.check()
    except (RunwrightError, TimeoutError) as error:
        detail = STORE_UNAVAILABLE_DETAIL  # that of a store may contain its address
        if isinstance(error, RunwrightError) and error.code not in STORE_CODES:
            detail = error.detail
        return json_response({"status": "unavailable", "detail": detail}, status=503, headers={"retry-after": "1"})
    return json_response({"status": "ok", "detail": None})


@get(
    "/metrics",
    operation_id="metrics",
    tags=["health"],
    summary="Metrics for Prometheus",
    media_type="text/plain",
    responses=problem_responses(),
)
async def metrics(request_context: InjectedContext) -> Response[str]:
    request_context.authorize(Action.READ_METRICS)
    text = await request_context.service.metrics.render()
    return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")  # pyright: ignore[reportReturnType]


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
