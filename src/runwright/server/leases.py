"""Steps for workers: taken with a lease, kept by a beat, ended by a result.

A worker asks for steps and waits. What it is given has been started in the run's log. It says now and then that it is
still there, and learns whether to stop; what it says after its lease was lost is kept for people, and not applied.
"""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import Annotated, Any

import msgspec
from litestar import Request, Response, post
from litestar.params import JSONBody, PathParameter, QueryParameter

from runwright.contract.errors import ErrorCode, RunwrightError
from runwright.contract.refs import ArtifactRef, ErrorInfo
from runwright.contract.transitions import ENDED
from runwright.control.access import Act
from runwright.control.views import artifacts_of
from runwright.results.artifacts import read_key
from runwright.results.encoding import check_checkpoint, encode_result
from runwright.runtimes.executor_work import LONGEST_MESSAGE
from runwright.runtimes.late import late_result
from runwright.runtimes.resolving import resolve
from runwright.runtimes.tasks import LEASE_SECONDS, StepOrder, StepOutcome

from .answers import answer, check_text, problems
from .call import Asking, Call
from .model import Beat, BeatAnswer, LeaseList, Output, SavedState, TakeSteps, WantedResult

LeaseId = Annotated[str, PathParameter(description="A lease, as it was given.", max_length=64)]
Worker = Annotated[str, QueryParameter(description="The worker that has it.", min_length=1, max_length=128)]
LONGEST_WAIT = 30.0
ORDER_SECONDS = LEASE_SECONDS
"""How long the start of a step may take to be in the log, before its lease is another's."""
OTHERS_SECONDS = 0.3
"""How long what is started may wait for what was taken with it."""
ANSWER_SECONDS = 30.0
LARGEST_FACTS = 16 * 1024
MOST_WRITERS = 1000


def _name(call: Call, worker: str) -> str:
    """A worker as the table knows it: a name counts only with the token it came with."""
    return f"{call.actor.token_id or call.actor.actor_id}/{worker}"


def _parts(lease_id: str) -> tuple[int, int]:
    task_id, _, lease_no = lease_id.partition("-")
    if not all(part.isascii() and part.isdecimal() and len(part) < 18 for part in (task_id, lease_no)):
        raise _lost()
    return int(task_id), int(lease_no)


def _lost() -> RunwrightError:
    return RunwrightError(ErrorCode.LEASE_LOST, "This lease is not yours, or no longer. Stop, and take other steps.")


async def _held(call: Call, lease_id: str, worker: str) -> Any:
    """The task behind a lease that this worker holds."""
    task_id, lease_no = _parts(lease_id)
    row = await call.service.desks.table.find(task_id)
    if row is None:
        raise _not_held(call, None)
    task = _Held(*row)
    if not call.actor.sees(task.tenant_id) or (task.worker, task.lease_no, task.state) != (
        _name(call, worker),
        lease_no,
        "STARTED",
    ):
        raise _lost()
    call.run_id = task.run_id
    return task


def _not_held(call: Call, task: _Held | None) -> RunwrightError:
    """Somebody speaks for a step that is not theirs."""
    error = _lost()
    theirs = task is not None and call.actor.sees(task.tenant_id)
    call.denied(Act.CARRY_OUT, error, run_id=task.run_id if task is not None and theirs else None)
    return error


class _Held(msgspec.Struct, frozen=True):
    task_id: int
    run_id: str
    tenant_id: str
    path: str
    attempt: int
    state: str
    worker: str | None
    lease_no: int
    order: bytes | None


@post(
    "/v1/leases",
    operation_id="takeSteps",
    tags=["workers"],
    summary="Take steps to carry out, waiting for some to come",
    status_code=200,
    responses=problems(413, 415),
)
async def take_steps(call: Asking, request: Request[Any, Any, Any], data: JSONBody[TakeSteps]) -> Response[LeaseList]:
    call.permit(Act.CARRY_OUT)
    check_text(msgspec.to_builtins(data))
    left = asyncio.create_task(_until_left(request))
    try:
        leases = await _take(call, data, left)
    finally:
        left.cancel()
    for lease in leases:
        order: StepOrder = lease["order"]
        call.service.audit.looked(call.actor, Act.CARRY_OUT, tenant_id=order.tenant_id, run_id=order.run_id)
    return answer({"leases": leases})


async def _until_left(request: Request[Any, Any, Any]) -> None:
    """Until the caller has gone: nothing is to be taken for somebody who does not wait for it."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _take(call: Call, data: TakeSteps, gone: asyncio.Task[None]) -> list[dict[str, Any]]:
    desks, service = call.service.desks, call.service
    worker = _name(call, data.worker)
    deadline = service.log.clock.monotonic() + min(data.wait_seconds, LONGEST_WAIT)
    while not gone.done():
        claimed = dict(await desks.table.claim(worker, data.queues, call.actor.tenant_id, data.most))
        leases = await _orders(call, worker, claimed) if claimed else []
        left = deadline - service.log.clock.monotonic()
        if leases or left <= 0 or service.is_closing:
            return leases
        await desks.wait(left, gone)
    return []


async def _orders(call: Call, worker: str, claimed: dict[int, int]) -> list[dict[str, Any]]:
    """What was claimed is started by whoever drives its run; wait for that. The lease of one that is started runs:
    it does not wait for the others for long."""
    desks, clock = call.service.desks, call.service.log.clock
    deadline = clock.monotonic() + ORDER_SECONDS
    leases: list[dict[str, Any]] = []
    waiting = dict(claimed)
    while waiting and clock.monotonic() < deadline:
        ready, gone = await desks.table.orders(worker, waiting)
        if ready and not leases:
            deadline = min(deadline, clock.monotonic() + OTHERS_SECONDS)
        for task_id, body in ready.items():
            lease_id = f"{task_id}-{waiting[task_id]}"
            order = msgspec.json.decode(body, type=StepOrder)
            leases.append({"leaseId": lease_id, "leaseSeconds": LEASE_SECONDS, "order": order})
        waiting = {task_id: no for task_id, no in waiting.items() if task_id not in ready and task_id not in gone}
        if waiting:
            await desks.wait(0.1)
    for task_id, lease_no in waiting.items():
        await _let_go(call, task_id, lease_no)
    return leases


async def _let_go(call: Call, task_id: int, lease_no: int) -> None:
    """Nobody started it in time: it is on offer again, unless its run has ended and nobody ever will."""
    table = call.service.desks.table
    if (row := await table.find(task_id)) is None:
        return
    task = _Held(*row)
    if (await call.service.log.find_run(task.run_id)).status in ENDED:
        await table.drop(task.run_id, task.path, task.attempt)
    else:
        await table.give_back(task_id, lease_no)


@post(
    "/v1/leases/beat",
    operation_id="beat",
    tags=["workers"],
    summary="Keep leases, and learn which of their steps are to stop",
    status_code=200,
    responses=problems(413, 415),
)
async def beat(call: Asking, data: JSONBody[Beat]) -> Response[BeatAnswer]:
    call.permit(Act.CARRY_OUT)
    worker = _name(call, data.worker)
    words = {0: "go on", 1: "stop", 2: "kill", None: "lost"}
    told: dict[str, str] = {}
    for lease_id in data.leases:
        try:
            found = await call.service.desks.table.beat(*_parts(lease_id), worker)
        except RunwrightError as error:
            if error.code != ErrorCode.LEASE_LOST:
                raise
            found = None
        told[lease_id] = words[found]
    return answer({"leases": told})


@post(
    "/v1/leases/{leaseId:str}/result",
    operation_id="endStep",
    tags=["workers"],
    summary="Say what became of a step",
    description="Once this is answered, it is durable: the run goes on from it whoever dies.",
    status_code=200,
    responses=problems(409, 413, 415),
)
async def end_step(
    call: Asking,
    leaseId: LeaseId,  # noqa: N803
    worker: Worker,
    data: JSONBody[StepOutcome],
) -> Response[dict[str, Any]]:
    call.permit(Act.CARRY_OUT)
    check_text(msgspec.to_builtins(data))
    service, desks = call.service, call.service.desks
    task_id, lease_no = _parts(leaseId)
    row = await desks.table.find(task_id)
    task = None if row is None else _Held(*row)
    if task is None or not call.actor.sees(task.tenant_id):
        raise _not_held(call, None)
    call.run_id = task.run_id
    if (task.worker, task.lease_no) != (_name(call, worker), lease_no):
        if lease_no < task.lease_no or (lease_no == task.lease_no and task.worker is None):
            await _keep_late(call, task, lease_no, worker, data)
        raise _not_held(call, task)
    if task.state == "DONE":
        return answer({"leaseId": leaseId})  # it was said before
    outcome = await _storable(call, task, data)
    if (writer := desks.writers.pop(leaseId, None)) is not None:
        await asyncio.to_thread(writer.close)
    flushed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    service.operations.engine.step_logs.settle(lambda: flushed.set_result(None))
    await flushed
    if not await desks.table.end(task_id, lease_no, _name(call, worker), msgspec.json.encode(outcome)):
        raise _not_held(call, task)
    return answer({"leaseId": leaseId})


async def _storable(call: Call, task: _Held, outcome: StepOutcome) -> StepOutcome:
    """What a worker says, held to what the log takes."""
    encode_result(outcome.result)  # says so if it is nested too deeply
    error = outcome.error
    if error is not None:
        error = ErrorInfo(
            (error.code or "STEP_FAILED")[:100],
            (error.message or "")[:LONGEST_MESSAGE],
            error.retryable,
            (error.category or "user")[:100],
            _held_facts(task, error.facts),
        )
    kept = {ref.uri for ref in await call.service.desks.table.kept(task.task_id)}
    for ref in outcome.artifacts:
        if read_key(ref.uri) is not None and ref.uri not in kept:
            sentence = f"The artifact {ref.uri} was not made by this step. Hand over what it made, then name it."
            raise RunwrightError(ErrorCode.INVALID_ARGUMENT, sentence)
    return StepOutcome(result=outcome.result, error=error, artifacts=outcome.artifacts)


def _held_facts(task: _Held, given: dict[str, Any] | None) -> dict[str, Any] | None:
    """What goes into the event beside an error. The result of a playbook's task does not: it is kept like any other."""
    facts = dict(given or {})
    result = {"result": facts.pop("result")} if "/" in task.path and "result" in facts else {}
    if len(msgspec.json.encode(facts)) > LARGEST_FACTS:
        facts = {}
    return {**facts, **result} or None


async def _keep_late(call: Call, task: _Held, lease_no: int, worker: str, outcome: StepOutcome) -> None:
    result = None if outcome.error is not None else msgspec.json.encode(outcome.result)
    late = late_result(task.run_id, task.path, task.attempt, lease_no, result, outcome.error)
    alert = msgspec.structs.replace(late, facts={**late.facts, "worker": _name(call, worker)})
    call.service.operations.engine.late_results += 1
    await call.service.log.raise_alerts([alert])


@post(
    "/v1/leases/{leaseId:str}/release",
    operation_id="releaseStep",
    tags=["workers"],
    summary="Give a step back: another worker begins it anew",
    status_code=200,
    responses=problems(409),
)
async def release_step(call: Asking, leaseId: LeaseId, worker: Worker) -> Response[dict[str, Any]]:  # noqa: N803
    call.permit(Act.CARRY_OUT)
    task = await _held(call, leaseId, worker)
    await call.service.desks.table.give_back(task.task_id, task.lease_no)
    return answer({"leaseId": leaseId})


@post(
    "/v1/leases/{leaseId:str}/checkpoint",
    operation_id="checkpoint",
    tags=["workers"],
    summary="Keep a step's mark of progress in its run's log",
    status_code=200,
    responses=problems(409, 413, 415),
)
async def checkpoint(
    call: Asking,
    leaseId: LeaseId,  # noqa: N803
    worker: Worker,
    data: JSONBody[SavedState],
) -> Response[dict[str, Any]]:
    call.permit(Act.CARRY_OUT)
    check_text(msgspec.to_builtins(data))
    task = await _held(call, leaseId, worker)
    desks, clock = call.service.desks, call.service.log.clock
    body = encode_result(data.state)
    check_checkpoint(body)
    number = await desks.table.report(task.task_id, task.lease_no, body)
    deadline = clock.monotonic() + ANSWER_SECONDS
    while (found := await desks.table.take_answer(number)) is None:
        if clock.monotonic() > deadline:
            raise RunwrightError(ErrorCode.STORE_UNAVAILABLE, "Nobody drives the run now. Try again.")
        await desks.wait(0.1)
    if found:
        raise RunwrightError(ErrorCode.LEASE_LOST, found)
    return answer({"leaseId": leaseId})


@post(
    "/v1/leases/{leaseId:str}/output",
    operation_id="writeOutput",
    tags=["workers"],
    summary="Keep what a step printed",
    status_code=200,
    responses=problems(409, 413, 415),
)
async def write_output(
    call: Asking,
    leaseId: LeaseId,  # noqa: N803
    worker: Worker,
    data: JSONBody[Output],
) -> Response[dict[str, Any]]:
    call.permit(Act.CARRY_OUT)
    task = await _held(call, leaseId, worker)
    desks = call.service.desks
    writer = desks.writers.get(leaseId)
    if writer is None:
        logs = call.service.operations.engine.step_logs
        writer = desks.writers[leaseId] = logs.writer(task.run_id, task.path, task.attempt)
        if len(desks.writers) > MOST_WRITERS:
            oldest = desks.writers.pop(next(iter(desks.writers)))  # of a lease that was lost, most likely
            await asyncio.to_thread(oldest.close)
    for part in data.parts:
        writer.write(part.stream, part.text.encode(errors="replace"))
    return answer({"leaseId": leaseId})


@post(
    "/v1/leases/{leaseId:str}/artifacts",
    operation_id="keepArtifact",
    tags=["workers"],
    summary="Keep a file that a step made",
    description="The body is the file itself, as application/octet-stream.",
    status_code=201,
    responses=problems(409, 413, 415),
)
async def keep_artifact(
    call: Asking,
    request: Request[Any, Any, Any],
    leaseId: LeaseId,  # noqa: N803
    worker: Worker,
    kind: Annotated[str, QueryParameter(min_length=1, max_length=64)] = "file",
) -> Response[ArtifactRef]:
    call.permit(Act.CARRY_OUT)
    task = await _held(call, leaseId, worker)
    store = call.service.operations.engine.artifacts
    assert store is not None
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "artifact"
        with file.open("wb") as target:
            async for part in request.stream():
                await asyncio.to_thread(target.write, part)
        ref = await asyncio.to_thread(store.of(task.tenant_id).put, file, kind)
    await call.service.desks.table.keep(task.task_id, task.lease_no, ref)
    return answer(ref, status=201)


@post(
    "/v1/leases/{leaseId:str}/fetch",
    operation_id="fetchArtifact",
    tags=["workers"],
    summary="The bytes of an artifact that a step was told of",
    media_type="application/octet-stream",
    status_code=200,
    responses=problems(404, 409, 413, 415),
)
async def fetch_artifact(
    call: Asking,
    leaseId: LeaseId,  # noqa: N803
    worker: Worker,
    data: JSONBody[ArtifactRef],
) -> Response[bytes]:
    call.permit(Act.CARRY_OUT)
    task = await _held(call, leaseId, worker)
    store = call.service.operations.engine.artifacts
    assert store is not None
    known = [*await call.service.desks.table.kept(task.task_id)]
    known += [ref for _, ref in await artifacts_of(call.service.log, task.run_id)]
    found = next((ref for ref in known if ref.uri == data.uri), None)
    if found is None:
        raise RunwrightError(ErrorCode.REFERENCE_NOT_AVAILABLE, f"No step of this run made {data.uri[:200]!r}.")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "artifact"
        await asyncio.to_thread(store.of(task.tenant_id).get, found, file)
        body = await asyncio.to_thread(file.read_bytes)
    return Response(body, media_type="application/octet-stream")


@post(
    "/v1/leases/{leaseId:str}/resolve",
    operation_id="resolveResult",
    tags=["workers"],
    summary="The result that a task of a playbook was given a reference to",
    status_code=200,
    responses=problems(404, 409, 413, 415),
)
async def resolve_result(
    call: Asking,
    leaseId: LeaseId,  # noqa: N803
    worker: Worker,
    data: JSONBody[WantedResult],
) -> Response[dict[str, Any]]:
    call.permit(Act.CARRY_OUT)
    task = await _held(call, leaseId, worker)
    service = call.service
    return answer({"value": await resolve(service.log, service.operations.engine.results, data.ref, task.tenant_id)})


ROUTES = [
    take_steps,
    beat,
    end_step,
    release_step,
    checkpoint,
    write_output,
    keep_artifact,
    fetch_artifact,
    resolve_result,
]
