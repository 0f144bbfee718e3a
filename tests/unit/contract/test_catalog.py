"""The catalogue contains every agreed type with its dotted name, level and role."""

from __future__ import annotations

import msgspec
import pytest

import runwright as rw
from runwright.contract.catalog import CATALOG, schema_version_of

AGREED = """
    RunQueued               playbook.execution.requested   run     server
    AdmissionEvaluated      playbook.request.evaluated     run     server
    RunApproved             playbook.approved              run     server
    RunStarted              playbook.started               run     server
    WorkflowStarted         workflow.started               run     server
    WorkflowFinished        workflow.finished              run     server
    StepScheduled           step.scheduled                 entity  server
    PolicyAdmitEvaluated    policy.admit.evaluated         entity  server
    StepStarted             step.started                   step    worker
    StepCompleted           step.done                      step    worker
    StepFailed              step.failed                    step    worker
    StepSkipped             step.skipped                   step    server
    StepRetryScheduled      step.attempt.scheduled         entity  server
    StepDelayed             step.delayed                   entity  server
    StepOverridden          step.override.applied          entity  server
    StepTargetUpdated       step.target.updated            entity  server
    TaskStarted             task.started                   entity  worker
    TaskDone                task.done                      entity  worker
    TaskFailed              task.failed                    entity  worker
    TaskAttemptStarted      task.attempt.started           entity  worker
    TaskAttemptDone         task.attempt.done              entity  worker
    TaskAttemptFailed       task.attempt.failed            entity  worker
    PolicyTaskEvaluated     policy.task.evaluated          entity  worker
    LoopStarted             loop.started                   entity  server
    LoopDone                loop.done                      entity  server
    LoopIterationScheduled  loop.iteration.scheduled       entity  server
    LoopIterationStarted    loop.iteration.started         entity  worker
    LoopIterationDone       loop.iteration.done            entity  worker
    LoopIterationFailed     loop.iteration.failed          entity  worker
    NextEvaluated           next.evaluated                 entity  server
    ResultStored            result.stored                  entity  worker
    ResultManifestUpdated   result.manifest.updated        entity  worker
    CheckpointWritten       step.checkpoint.written        entity  worker
    ApprovalRequested       step.approval.requested        entity  server
    ApprovalGranted         step.approval.granted          entity  server
    ApprovalDenied          step.approval.denied           entity  server
    SignalAccepted          signal.accepted                entity  server
    SignalRejected          signal.rejected                entity  server
    RunParamsUpdated        playbook.params.updated        run     server
    RunPaused               playbook.paused                run     server
    RunResumed              playbook.resumed               run     server
    RunDrainTimedOut        playbook.drain.failed          run     server
    RunCompleted            playbook.finished              run     server
    RunFailed               playbook.finished              run     server
    RunCancelled            playbook.finished              run     server
    RunProcessed            playbook.processed             run     server
    RunArchived             playbook.archived              run     server
"""
ROWS = [tuple(line.split()) for line in AGREED.strip().splitlines()]

LIFECYCLE = [
    "RunQueued",
    "RunStarted",
    "StepStarted",
    "StepCompleted",
    "StepFailed",
    "StepSkipped",
    "RunPaused",
    "RunResumed",
    "RunCompleted",
    "RunFailed",
    "RunCancelled",
]
"""The known types of RunEvents v2.0.1, section 1.2."""


@pytest.mark.parametrize(("name", "dotted", "level", "role"), ROWS, ids=[row[0] for row in ROWS])
def test_each_agreed_type_is_in_the_catalogue(name: str, dotted: str, level: str, role: str) -> None:
    kind = CATALOG[name]
    assert (kind.name, kind.dotted, kind.level, kind.role) == (name, dotted, level, role)
    assert kind.summary
    assert kind.schema_version >= 1
    assert issubclass(kind.payload, msgspec.Struct)


def test_the_catalogue_has_no_unexpected_types() -> None:
    """Three types are not in the table of the design: the engine processed a signal, a signal waits for a
    confirmation, and the id of a sub-run (docs/decisions)."""
    additional = ("SignalProcessed", "SignalRevisionRequired", "ChildRunInitiated")
    assert [name for name in CATALOG if name not in additional] == [row[0] for row in ROWS]
    assert set(LIFECYCLE) <= CATALOG.keys()


def test_only_the_three_ends_of_a_run_share_a_dotted_name() -> None:
    dotted = [kind.dotted for kind in CATALOG.values()]
    assert {name for name in dotted if dotted.count(name) > 1} == {"playbook.finished"}
    assert dotted.count("playbook.finished") == 3


def test_only_these_types_may_be_written_by_other_processes() -> None:
    """Other processes write signal decisions and the archiving of an ended run; all else is up to the driver."""
    from_anyone = {name for name, kind in CATALOG.items() if kind.from_anyone}
    assert from_anyone == {"SignalAccepted", "SignalRejected", "SignalRevisionRequired", "RunArchived"}


def test_unknown_types_have_schema_version_1() -> None:
    assert schema_version_of("SomethingNew") == 1
    assert schema_version_of("RunStarted") == 2


@pytest.mark.parametrize("name", CATALOG)
async def test_every_type_accepts_missing_payloads_and_extra_keys(name: str) -> None:
    run = rw.new_run("run-1", "orders")
    step_id = None if CATALOG[name].level == "run" else "a"
    events = [
        rw.new_event(name, run, step_id=step_id),
        rw.new_event(name, run, step_id=step_id, attempt=2, payload={"somethingOfMyOwn": [1, None]}),
    ]
    async with rw.open_log("memory://") as log:
        await log.create_run(run, events, enforcement=rw.Enforcement.OBSERVE)
        bare, filled = await log.read("run-1")
    assert bare.payload is None
    assert filled.payload == {"somethingOfMyOwn": [1, None]}
    assert filled.schema_version == CATALOG[name].schema_version
