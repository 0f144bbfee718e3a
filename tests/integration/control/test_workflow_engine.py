"""IWorkflowEngine: the operations of every runtime, on run references of each provider."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest

import runwright as rw
from runwright.auth.roles import Actor
from runwright.contract.plan import SCHEMA_VERSION
from runwright.contract.refs import PlanRef
from runwright.contract.workflow_engine import (
    ConductorRunRef,
    EmbeddedRunRef,
    EngineRunRef,
    RunContext,
    SignalRequest,
    TemporalRunRef,
)
from runwright.control.operations import Operations
from runwright.control.workflow_engine import EmbeddedWorkflowEngine
from support.engine import engine, wait_for_end

HELD = {"plan": "held", "version": "1", "steps": [{"id": "w", "wait": "1h"}]}


@pytest.fixture
def store(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/runs.db"


async def store_plan(operations: Operations) -> PlanRef:
    plan = operations.load(HELD)
    sha256, _ = await operations.engine.services.plans.store(plan, "acme")
    return PlanRef(f"plan:sha256:{sha256}", sha256, SCHEMA_VERSION, "held", "1")


def context(run_id: str = "r", **more: str) -> RunContext:
    return RunContext(tenant_id="acme", project_id="p", environment_id="e", run_id=run_id, **more)  # type: ignore[arg-type]


async def test_run_is_started_queried_signalled_and_cancelled(store: str) -> None:
    async with engine(store) as operations:
        workflow_engine: rw.IWorkflowEngine = EmbeddedWorkflowEngine(operations)
        ref = await workflow_engine.start_run(await store_plan(operations), context())
        assert msgspec.to_builtins(ref) == {"provider": "embedded", "workflowId": "r", "runId": "r"}
        status = await workflow_engine.get_run_status(ref)
        assert (status.run_id, status.status, status.completed_at) == ("r", "RUNNING", None)
        await workflow_engine.signal(ref, SignalRequest(signal_id=operations.log.ids.event_id(), signal_type="PAUSE"))
        assert (await workflow_engine.get_run_status(ref)).status == "PAUSED"
        await workflow_engine.cancel_run(ref)
        await wait_for_end(operations, "r")
        assert (await workflow_engine.get_run_status(ref)).status == "CANCELLED"
        for record in await operations.log.read("r"):
            assert (record.tenant_id, record.project_id, record.environment_id) == ("acme", "p", "e")


async def test_other_tenants_and_viewers_cannot_control_a_run(store: str) -> None:
    async with engine(store) as operations:
        ref = await EmbeddedWorkflowEngine(operations).start_run(await store_plan(operations), context())
        stranger = EmbeddedWorkflowEngine(operations.as_actor(Actor("x", ("Admin",), tenant_id="other")))
        request = SignalRequest(signal_id=operations.log.ids.event_id(), signal_type="CANCEL")
        for work in (stranger.cancel_run(ref), stranger.get_run_status(ref), stranger.signal(ref, request)):
            with pytest.raises(rw.RunwrightError) as caught:
                await work
            assert caught.value.code == "RUN_NOT_FOUND"
        weak = EmbeddedWorkflowEngine(operations.as_actor(Actor("x", ("Viewer",))))
        with pytest.raises(rw.RunwrightError) as caught:
            await weak.cancel_run(ref)
        assert caught.value.code == "AUTHZ_DENIED"


async def test_plan_reference_must_match_the_stored_plan(store: str) -> None:
    async with engine(store) as operations:
        workflow_engine = EmbeddedWorkflowEngine(operations)
        ref = await store_plan(operations)
        for wrong, code in (
            (msgspec.structs.replace(ref, plan_version="2"), "PLAN_REF_MISMATCH"),
            (msgspec.structs.replace(ref, schema_version="v9.0"), "SCHEMA_VERSION_UNKNOWN"),
            (msgspec.structs.replace(ref, sha256="0" * 64), "PLAN_NOT_FOUND"),
        ):
            with pytest.raises(rw.RunwrightError) as caught:
                await workflow_engine.start_run(wrong, context())
            assert caught.value.code == code
        with pytest.raises(rw.RunwrightError) as caught:
            await workflow_engine.start_run(ref, context(target_adapter="temporal"))
        assert caught.value.code == "CAPABILITY_NOT_SUPPORTED"


def test_each_provider_has_its_own_reference() -> None:
    documents = [
        {"provider": "temporal", "namespace": "n", "workflowId": "w", "runId": "r", "taskQueue": "q"},
        {"provider": "conductor", "workflowId": "w", "runId": "r", "conductorUrl": "http://c"},
        {"provider": "embedded", "workflowId": "w", "runId": "r"},
        {"provider": "mock", "workflowId": "w", "runId": "r"},
    ]
    for document in documents:
        assert msgspec.to_builtins(msgspec.convert(document, EngineRunRef)) == document
    for kind, missing in ((TemporalRunRef, "namespace"), (ConductorRunRef, "conductorUrl"), (EmbeddedRunRef, "runId")):
        whole = next(each for each in documents if each["provider"] == str(kind.__struct_config__.tag))
        with pytest.raises(msgspec.ValidationError):
            msgspec.convert({name: value for name, value in whole.items() if name != missing}, EngineRunRef)


async def test_an_app_has_a_workflow_engine(store: str) -> None:
    async with engine(store) as operations:
        plan_ref = await store_plan(operations)
    async with rw.open_async(store) as app:
        workflow_engine = app.workflow_engine(provider="embedded")
        ref = await workflow_engine.start_run(plan_ref, context())
        assert (await workflow_engine.get_run_status(ref)).status == "RUNNING"
        await workflow_engine.cancel_run(ref)
        assert (await (await app.run("r")).wait(20)).status == "CANCELLED"
        with pytest.raises(rw.RunwrightError) as refused:
            await app.workflow_engine(provider="temporal").get_run_status(ref)
        assert refused.value.code == "CAPABILITY_NOT_SUPPORTED"


def test_a_synchronous_app_has_a_workflow_engine(store: str) -> None:
    with rw.open(store) as app:
        run = app.start({"plan": "p", "steps": [{"id": "a", "noop": {}}]})
        run.wait(20)
        ref = EmbeddedRunRef(workflow_id=run.run_id, run_id=run.run_id)
        assert asyncio.run(app.workflow_engine().get_run_status(ref)).status == "COMPLETED"
