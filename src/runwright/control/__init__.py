"""Operations on runs: start, signal, rerun, results; `rw.open`.

app.py              rw.open and rw.open_async: the engine in a program
bootstrap.py        composition root: from a store URL to operations with an engine
operations.py       Operations: the facade; run_starter.py, result_reader.py, signal_service.py do the work
local_signals.py    signals without an engine, unless no process drives the run
signal_rules.py     roles, payloads and states of signals        confirmation_policy.py  confirmation by a second person
run_params.py       parameters                                   idempotency.py    start requests
plan_loader.py      plans from files, mappings, functions        flow_loader.py    plans in Python files
rerun.py            steps that a new run carries over            subruns.py        steps that are runs
run_views.py        views that need the liveness of processes    run_scope.py      tenant, project, environment
protocols.py        what an engine and a client share            workflow_engine.py  IWorkflowEngine
time_text.py        times in arguments

Invariant: a decision on a signal is in the log before the signal is applied.
"""
