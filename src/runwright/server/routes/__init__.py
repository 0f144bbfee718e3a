"""HTTP handlers, one module per resource. Each ends with ROUTES, the handlers that the application registers.

runs.py           start, list and inspect runs; rerun
run_details.py    events, entities, plan, artifacts, results and output of a run; search of events
signals.py        signals to a run, decisions on them, open questions
events.py         POST /v1/events: append events of another engine (plain ASGI, bypasses the framework)
streams.py        server-sent events of one run or of all runs
worker_tasks.py  API for workers: claim steps, heartbeats, results, output, artifacts
admin.py          tokens, audit, alerts, verification, health, metrics

Invariant: a handler authorizes the caller through its RequestContext before it reads or changes anything.
"""
