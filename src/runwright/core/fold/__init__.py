"""Fold events into run state. The only code that interprets events.

evolve.py           entry point: evolve(state, event), transition(state, draft); state machines of run and step
counters.py         loop progress for snapshots; number of in-flight tasks for DRAINING
run_state.py        RunState, which all modules fill; freeze(), which turns it into a RunSnapshot
execution_state.py  what only a driver needs: params, retries, due times, results, pending signals
loop_state.py       iterations of a loop, for the driver
playbook_state.py   tokens, visits, pipelines and ctx of a playbook, for the driver
payload_reader.py   tolerant decoding of payload fields; StoredResult

Invariants: pure; cost O(entities named by the event); an illegal event changes nothing but `inconsistent`;
the same events give the same bytes of RunSummary.

The table `HANDLERS` of a module holds the event types that it folds. For every type of the catalogue, the modules in
the order in which they apply it; "-" means that only the watermark and the engine attempt advance, as for types that
are not in the catalogue:

RunQueued               evolve, execution_state
AdmissionEvaluated      -
RunApproved             evolve
RunStarted              evolve, execution_state
WorkflowStarted         counters, playbook_state
WorkflowFinished        -
StepScheduled           execution_state, playbook_state
PolicyAdmitEvaluated    playbook_state
StepStarted             evolve, execution_state, playbook_state
StepCompleted           evolve, execution_state, playbook_state
StepFailed              evolve, execution_state, playbook_state
StepSkipped             evolve, execution_state
StepRetryScheduled      evolve, counters, execution_state, loop_state
StepDelayed             execution_state
StepOverridden          execution_state
StepTargetUpdated       -
TaskStarted             counters, playbook_state
TaskDone                counters, playbook_state
TaskFailed              counters, playbook_state
TaskAttemptStarted      counters, playbook_state
TaskAttemptDone         counters, playbook_state
TaskAttemptFailed       counters, playbook_state
PolicyTaskEvaluated     counters, playbook_state
LoopStarted             counters, loop_state
LoopDone                counters
LoopIterationScheduled  loop_state
LoopIterationStarted    counters, loop_state, playbook_state
LoopIterationDone       counters, loop_state, playbook_state
LoopIterationFailed     counters, loop_state, playbook_state
NextEvaluated           playbook_state
ResultStored            -
ResultManifestUpdated   playbook_state
ChildRunInitiated       execution_state
CheckpointWritten       execution_state
ApprovalRequested       evolve, execution_state
ApprovalGranted         evolve, execution_state
ApprovalDenied          evolve, execution_state
SignalAccepted          evolve, execution_state
SignalRejected          -
SignalRevisionRequired  -
SignalProcessed         execution_state
RunParamsUpdated        execution_state
RunPaused               evolve, execution_state
RunResumed              evolve, execution_state
RunDrainTimedOut        evolve
RunCompleted            evolve
RunFailed               evolve
RunCancelled            evolve
RunProcessed            -
RunArchived             -
"""
