"""Data types and rules that every part of Runwright shares.

errors.py           RunwrightError and its codes
clock.py            protocols of the clock and the id source
timestamps.py       RFC 3339 times and microseconds
keys.py             idempotency key of an event
paths.py            entity paths: step@visit~attempt[i]/task
refs.py             references to artifacts, plans and runs of other engines
payloads.py         payload of each event type
catalog.py          the table of all event types
upcasts.py          old payload versions to the newest
events.py           events, receipts and refusals
envelope.py         validation of one event
transitions.py      state machines of run and step
snapshot.py         folded state of a run; alerts
plan_struct.py      base class of the plan types
plan.py             ExecutionPlan, Step, content hash
playbook.py         pipelines, policies, loops and arcs of a playbook
result_ref.py       references to stored task results
capabilities.py     capabilities that a plan requires of its runtime
workflow_engine.py  IWorkflowEngine, the interface of a runtime
legacy_v1.py        events before v2, converted on import
schemas.py          JSON Schemas, generated from the catalogue
noetl/              the NoETL event model: render, read, check

Invariants: pure data and pure functions, which read no clock, file or socket; no imports from other packages of
Runwright; field names of encoded types, error codes and event types are a public contract and do not change.
"""
