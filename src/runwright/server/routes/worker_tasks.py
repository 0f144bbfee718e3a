"""API for workers: claim steps with a lease, extend it with heartbeats, end it with a result.

A worker claims steps and waits until their starts are in the log of their runs. Heartbeats extend the lease and return
commands such as `stop`. A result that arrives after the lease was lost is recorded as an alert, and not applied.
"""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import msgspec
from litestar import Request, Response, post
from litestar.params import JSONBody, PathParameter, QueryParameter

from runwright.auth.audit import AuditedRun
from runwright.auth.roles import Action
from runwright.contract.errors import ErrorCode, RunwrightError
from runwright.contract.refs import ArtifactRef, ErrorInfo
from runwright.contract.transitions import ENDED
from runwright.control.run_views import artifacts_of
from runwright.runtimes.alerts import late_result, output_dropped
from runwright.runtimes.embedded.task_queue import LEASE_SECONDS, StepAssignment, StepOutcome
from runwright.runtimes.result_loader import load_result
from runwright.server.request_context import InjectedContext, RequestContext
from runwright.server.responses import json_response, problem_responses, validate_storable
from runwright.server.schemas import Beat, BeatAnswer, LeaseList, SavedState, StepOutputUpload, TakeSteps, WantedResult
from runwright.storage.artifacts import parse_artifact_key
from runwright.storage.json_encoding import check_checkpoint, encode_result
from runwright.tools.base import MAX_TEXT_LENGTH

LeaseId = Annotated[str, PathParameter(description="Id of a lease.", max_length=64)]
Worker = Annotated[str, QueryParameter(description="Name of the worker that holds it.", min_length=1, max_length=128)]
MAX_WAIT_SECONDS = 30.0
START_TIMEOUT_SECONDS = LEASE_SECONDS
"""Time for the start of a claimed step to get into the log. After that the claim is released."""
BATCH_SECONDS = 0.3
"""Time that started steps wait for other steps of the same claim: their leases are running already."""
CHECKPOINT_TIMEOUT_SECONDS = 30.0
MAX_FACTS_BYTES = 16 * 1024
MAX_WRITERS = 1000
COMMANDS = {0: "go on", 1: "stop", 2: "kill", None: "lost"}
"""Commands to a worker, by the result of a heartbeat."""


class _LeaseKey(NamedTuple):
    task_id: int
    lease_no: int


class _LeasedTask(msgspec.Struct, frozen=True):
    """A row of the task queue."""

    task_id: int
    run_id: str
    tenant_id: str
    path: str
    attempt: int
    state: str
    worker: str | None
    lease_no: int
    order: bytes | None


def _qualified_name(context: RequestContext, worker: str) -> str:
    """Qualify the name of a worker with its token: workers with different tokens may use the same name."""
    return f"{context.actor.token_id or context.actor.actor_id}/{worker}"


def _parse_lease_id(lease_id: str) -> _LeaseKey:
    task_id, _, lease_no = lease_id.partition("-")
    if not all(part.isascii() and part.isdecimal() and len(part) < 18 for part in (task_id, lease_no)):
        raise _lease_lost()
    return _LeaseKey(int(task_id), int(lease_no))


def _lease_lost() -> RunwrightError:
    return RunwrightError(ErrorCode.LEASE_LOST, "Lease not held. Stop this step and claim another.")


async def _find_task(context: RequestContext, task_id: int) -> _LeasedTask | None:
    row = await context.service.task_queue.find(task_id)
    return None if row is None else _LeasedTask(*row)


async def _get_held_task(context: RequestContext, lease_id: str, worker: str) -> _LeasedTask:
    """Return the task of a lease that this worker holds; LEASE_LOST otherwise."""
    key = _parse_lease_id(lease_id)
    task = await _find_task(context, key.task_id)
    if task is None:
        raise _audit_not_held(context, None)
    holder = (_qualified_name(context, worker), key.lease_no, "STARTED")
    if not context.actor.can_access_tenant(task.tenant_id) or (task.worker, task.lease_no, task.state) != holder:
        raise _lease_lost()
    context.run_id = task.run_id
    return task


def _audit_not_held(context: RequestContext, task: _LeasedTask | None) -> RunwrightError:
    """Audit an attempt to act on a step without its lease. Returns the error to raise."""
    error = _lease_lost()
    run_id = task.run_id if task is not None and context.actor.can_access_tenant(task.tenant_id) else None
    context.audit_denial(Action.EXECUTE_STEPS, error, run=run_id)
    return error


@post(
    "/v1/leases",
    operation_id="takeSteps",
    tags=["workers"],
    summary="Claim steps to execute, waiting until there are some",
    status_code=200,
    responses=problem_responses(413, 415),
)
async def claim_steps(
    request_context: InjectedContext, request: Request[Any, Any, Any], data: JSONBody[TakeSteps]
) -> Response[LeaseList]:
    request_context.permit(Action.EXECUTE_STEPS)
    validate_storable(msgspec.to_builtins(data))
    disconnected = asyncio.create_task(_wait_for_disconnect(request))
    try:
        leases = await _claim(request_context, data, disconnected)
    finally:
        disconnected.cancel()
    for lease in leases:
        assignment: StepAssignment = lease["order"]
        run = AuditedRun(
            assignment.run_id,
            project_id=assignment.project_id,
            environment_id=assignment.environment_id,
            engine_attempt_id=assignment.engine_attempt,
            logical_attempt_id=assignment.attempt,
        )
        request_context.service.audit.count_read(
            request_context.actor, Action.EXECUTE_STEPS, tenant_id=assignment.tenant_id, run=run
        )
    return json_response({"leases": leases})


async def _wait_for_disconnect(request: Request[Any, Any, Any]) -> None:
    """Return when the caller has disconnected: nothing may be claimed for a worker that is gone."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _claim(context: RequestContext, data: TakeSteps, disconnected: asyncio.Task[None]) -> list[dict[str, Any]]:
    service, clock = context.service, context.service.log.clock
    worker = _qualified_name(context, data.worker)
    deadline = clock.monotonic() + min(data.wait_seconds, MAX_WAIT_SECONDS)
    while not disconnected.done():
        await context.check_access()
        claimed = dict(await service.task_queue.claim(worker, data.queues, context.actor.tenant_id, data.most))
        leases = await _wait_for_assignments(context, worker, claimed) if claimed else []
        remaining = deadline - clock.monotonic()
        if leases or remaining <= 0 or service.is_closing:
            return leases
        await service.worker_waiters.wait(remaining, disconnected)
    return []


async def _wait_for_assignments(context: RequestContext, worker: str, claimed: dict[int, int]) -> list[dict[str, Any]]:
    """Wait until the drivers of the runs have started the claimed steps, and return their leases.

    Once the first step is started, the others get only BATCH_SECONDS more. Steps that are not started in time are
    released. `claimed` maps tasks to the numbers of their leases.
    """
    service, clock = context.service, context.service.log.clock
    deadline = clock.monotonic() + START_TIMEOUT_SECONDS
    leases: list[dict[str, Any]] = []
    pending = dict(claimed)
    while pending and clock.monotonic() < deadline:
        ready, dropped = await service.task_queue.load_assignments(worker, pending)
        if ready and not leases:
            deadline = min(deadline, clock.monotonic() + BATCH_SECONDS)
        for task_id, body in ready.items():
            lease_id = f"{task_id}-{pending[task_id]}"
            assignment = msgspec.json.decode(body, type=StepAssignment)
            leases.append({"leaseId": lease_id, "leaseSeconds": LEASE_SECONDS, "order": assignment})
        pending = {task_id: no for task_id, no in pending.items() if task_id not in ready and task_id not in dropped}
        if pending:
            await service.worker_waiters.wait(0.1)
    for task_id, lease_no in pending.items():
        await _release_unstarted(context, task_id, lease_no)
    return leases


async def _release_unstarted(context: RequestContext, task_id: int, lease_no: int) -> None:
    """Offer a claimed step again that was not started in time; if its run has ended, delete the tasks of the run."""
    queue = context.service.task_queue
    if (task := await _find_task(context, task_id)) is None:
        return
    if (await context.service.log.find_run(task.run_id)).status in ENDED:
        await queue.drop_all(task.run_id)
    else:
        await queue.release(task_id, lease_no)


@post(
    "/v1/leases/beat",
    operation_id="beat",
    tags=["workers"],
    summary="Extend leases, and get commands for their steps",
    status_code=200,
    responses=problem_responses(413, 415),
)
async def beat(request_context: InjectedContext, data: JSONBody[Beat]) -> Response[BeatAnswer]:
    request_context.permit(Action.EXECUTE_STEPS)
    worker = _qualified_name(request_context, data.worker)
    commands: dict[str, str] = {}
    for lease_id in data.leases:
        try:
            found = await request_context.service.task_queue.heartbeat(*_parse_lease_id(lease_id), worker)
        except RunwrightError as error:
            if error.code != ErrorCode.LEASE_LOST:
                raise
            found = None
        commands[lease_id] = COMMANDS[found]
    return json_response({"leases": commands})


@post(
    "/v1/leases/{leaseId:str}/result",
    operation_id="endStep",
    tags=["workers"],
    summary="Report the outcome of a step",
    description="The outcome is durable once this returns: the run continues from it even if all processes stop.",
    status_code=200,
    responses=problem_responses(409, 413, 415),
)
async def end_step(
    request_context: InjectedContext,
    leaseId: LeaseId,  # noqa: N803
    worker: Worker,
    data: JSONBody[StepOutcome],
) -> Response[dict[str, Any]]:
    request_context.permit(Action.EXECUTE_STEPS)
    validate_storable(msgspec.to_builtins(data))
    key = _parse_lease_id(leaseId)
    holder = _qualified_name(request_context, worker)
    task = await _find_task(request_context, key.task_id)
    if task is None or not request_context.actor.can_access_tenant(task.tenant_id):
        raise _audit_not_held(request_context, None)
    request_context.run_id = task.run_id
    if (task.worker, task.lease_no) != (holder, key.lease_no):
        if key.lease_no < task.lease_no or (key.lease_no == task.lease_no and task.worker is None):
            await _record_late_result(request_context, task, key.lease_no, holder, data)
        raise _audit_not_held(request_context, task)
    if task.state == "DONE":
        return json_response({"leaseId": leaseId})  # The outcome was reported before; this is a retry.
    outcome = await _storable_outcome(request_context, task, data)
    await _flush_output(request_context, leaseId, task)
    body = msgspec.json.encode(outcome)
    if not await request_context.service.task_queue.store_outcome(key.task_id, key.lease_no, holder, body):
        raise _audit_not_held(request_context, task)
    return json_response({"leaseId": leaseId})


async def _flush_output(context: RequestContext, lease_id: str, task: _LeasedTask) -> None:
    """Store the output of a step before its end: readers that follow the run stop reading there."""
    if (writer := context.service.output_writers.pop(lease_id, None)) is not None:
        await asyncio.to_thread(writer.close)
        if writer.dropped:
            context.service.operations.engine.services.alert(
                output_dropped(task.run_id, task.path, task.attempt, writer)
            )
    flushed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    context.service.operations.engine.step_logs.when_stored(lambda: flushed.set_result(None))
    await flushed


async def _storable_outcome(context: RequestContext, task: _LeasedTask, outcome: StepOutcome) -> StepOutcome:
    """Validate an outcome and cut its error to the limits of the log."""
    encode_result(outcome.result)  # Raises if the result is nested too deeply.
    error = outcome.error
    if error is not None:
        error = ErrorInfo(
            (error.code or "STEP_FAILED")[:100],
            (error.message or "")[:MAX_TEXT_LENGTH],
            error.retryable,
            (error.category or "user")[:100],
            _storable_facts(task, error.facts),
        )
    uploaded = {ref.uri for ref in await context.service.task_queue.list_artifacts(task.task_id)}
    for ref in outcome.artifacts:
        if parse_artifact_key(ref.uri) is not None and ref.uri not in uploaded:
            message = f"Artifact {ref.uri} was not uploaded by this step. Upload it before reporting the outcome."
            raise RunwrightError(ErrorCode.INVALID_ARGUMENT, message)
    return StepOutcome(result=outcome.result, error=error, artifacts=outcome.artifacts)


def _storable_facts(task: _LeasedTask, error_facts: dict[str, Any] | None) -> dict[str, Any] | None:
    """Drop facts that are too large for an event. The result of a playbook task is exempt: it is stored elsewhere."""
    facts = dict(error_facts or {})
    result = {"result": facts.pop("result")} if "/" in task.path and "result" in facts else {}
    if len(msgspec.json.encode(facts)) > MAX_FACTS_BYTES:
        facts = {}
    return {**facts, **result} or None


async def _record_late_result(
    context: RequestContext, task: _LeasedTask, lease_no: int, worker: str, outcome: StepOutcome
) -> None:
    result = None if outcome.error is not None else msgspec.json.encode(outcome.result)
    late = late_result(task.run_id, task.path, task.attempt, lease_no, result, outcome.error)
    alert = msgspec.structs.replace(late, facts={**late.facts, "worker": worker})
    context.service.operations.engine.services.late_results += 1
    await context.service.log.raise_alerts([alert])


@post(
    "/v1/leases/{leaseId:str}/release",
    operation_id="releaseStep",
    tags=["workers"],
    summary="Release a step: another worker executes it from the beginning",
    status_code=200,
    responses=problem_responses(409),
)
async def release_step(request_context: InjectedContext, leaseId: LeaseId, worker: Worker) -> Response[dict[str, Any]]:  # noqa: N803
    request_context.permit(Action.EXECUTE_STEPS)
    task = await _get_held_task(request_context, leaseId, worker)
    await request_context.service.task_queue.release(task.task_id, task.lease_no)
    return json_response({"leaseId": leaseId})


@post(
    "/v1/leases/{leaseId:str}/checkpoint",
    operation_id="checkpoint",
    tags=["workers"],
    summary="Store a checkpoint of a step in the log of its run",
    status_code=200,
    responses=problem_responses(409, 413, 415),
)
async def checkpoint(
    request_context: InjectedContext,
    leaseId: LeaseId,  # noqa: N803
    worker: Worker,
    data: JSONBody[SavedState],
) -> Response[dict[str, Any]]:
    request_context.permit(Action.EXECUTE_STEPS)
    validate_storable(msgspec.to_builtins(data))
    task = await _get_held_task(request_context, leaseId, worker)
    service, clock = request_context.service, request_context.service.log.clock
    body = encode_result(data.state)
    check_checkpoint(body)
    report_no = await service.task_queue.add_report(task.task_id, task.lease_no, body)
    deadline = clock.monotonic() + CHECKPOINT_TIMEOUT_SECONDS
    while (rejection := await service.task_queue.pop_answer(report_no)) is None:
        if clock.monotonic() > deadline:
            raise RunwrightError(ErrorCode.STORE_UNAVAILABLE, "No process is driving the run. Retry later.")
        await service.worker_waiters.wait(0.1)
    if rejection:
        raise RunwrightError(ErrorCode.LEASE_LOST, rejection)
    return json_response({"leaseId": leaseId})


@post(
    "/v1/leases/{leaseId:str}/output",
    operation_id="writeOutput",
    tags=["workers"],
    summary="Store output of a step",
    status_code=200,
    responses=problem_responses(409, 413, 415),
)
async def write_output(
    request_context: InjectedContext,
    leaseId: LeaseId,  # noqa: N803
    worker: Worker,
    data: JSONBody[StepOutputUpload],
) -> Response[dict[str, Any]]:
    request_context.permit(Action.EXECUTE_STEPS)
    task = await _get_held_task(request_context, leaseId, worker)
    writers = request_context.service.output_writers
    writer = writers.get(leaseId)
    if writer is None:
        logs = request_context.service.operations.engine.step_logs
        writer = writers[leaseId] = logs.writer(task.run_id, task.path, task.attempt)
        if len(writers) > MAX_WRITERS:
            oldest = writers.pop(next(iter(writers)))  # Its lease was lost, most likely.
            await asyncio.to_thread(oldest.close)
    for part in data.parts:
        writer.write(part.stream, part.text.encode(errors="replace"))
    return json_response({"leaseId": leaseId})


@post(
    "/v1/leases/{leaseId:str}/artifacts",
    operation_id="keepArtifact",
    tags=["workers"],
    summary="Upload an artifact of a step",
    description="The body is the content of the file, as application/octet-stream.",
    status_code=201,
    responses=problem_responses(409, 413, 415),
)
async def upload_artifact(
    request_context: InjectedContext,
    request: Request[Any, Any, Any],
    leaseId: LeaseId,  # noqa: N803
    worker: Worker,
    kind: Annotated[str, QueryParameter(min_length=1, max_length=64)] = "file",
) -> Response[ArtifactRef]:
    request_context.permit(Action.EXECUTE_STEPS)
    task = await _get_held_task(request_context, leaseId, worker)
    store = request_context.service.operations.engine.services.artifacts
    assert store is not None
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "artifact"
        with file.open("wb") as target:
            async for part in request.stream():
                await asyncio.to_thread(target.write, part)
        ref = await asyncio.to_thread(store.for_tenant(task.tenant_id).put, file, kind)
    await request_context.service.task_queue.record_artifact(task.task_id, task.lease_no, ref)
    return json_response(ref, status=201)


@post(
    "/v1/leases/{leaseId:str}/fetch",
    operation_id="fetchArtifact",
    tags=["workers"],
    summary="Download an artifact of the step's run",
    media_type="application/octet-stream",
    status_code=200,
    responses=problem_responses(404, 409, 413, 415),
)
async def fetch_artifact(
    request_context: InjectedContext,
    leaseId: LeaseId,  # noqa: N803
    worker: Worker,
    data: JSONBody[ArtifactRef],
) -> Response[bytes]:
    request_context.permit(Action.EXECUTE_STEPS)
    task = await _get_held_task(request_context, leaseId, worker)
    store = request_context.service.operations.engine.services.artifacts
    assert store is not None
    known = [*await request_context.service.task_queue.list_artifacts(task.task_id)]
    known += [ref for _, ref in await artifacts_of(request_context.service.log, task.run_id)]
    found = next((ref for ref in known if ref.uri == data.uri), None)
    if found is None:
        raise RunwrightError(
            ErrorCode.REFERENCE_NOT_AVAILABLE, f"Artifact {data.uri[:200]!r} not found: no step of this run created it."
        )
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "artifact"
        await asyncio.to_thread(store.for_tenant(task.tenant_id).get, found, file)
        body = await asyncio.to_thread(file.read_bytes)
    return Response(body, media_type="application/octet-stream")


@post(
    "/v1/leases/{leaseId:str}/resolve",
    operation_id="resolveResult",
    tags=["workers"],
    summary="Get the result behind a reference in the inputs of a playbook task",
    status_code=200,
    responses=problem_responses(404, 409, 413, 415),
)
async def resolve_result(
    request_context: InjectedContext,
    leaseId: LeaseId,  # noqa: N803
    worker: Worker,
    data: JSONBody[WantedResult],
) -> Response[dict[str, Any]]:
    request_context.permit(Action.EXECUTE_STEPS)
    task = await _get_held_task(request_context, leaseId, worker)
    service = request_context.service
    return json_response(
        {"value": await load_result(service.log, service.operations.engine.services.results, data.ref, task.tenant_id)}
    )


ROUTES = [
    claim_steps,
    beat,
    end_step,
    release_step,
    checkpoint,
    write_output,
    upload_artifact,
    fetch_artifact,
    resolve_result,
]
