"""Rules that a log in the NoETL event model is checked against.

event.py      one event with validated fields; findings and their collector
history.py    state of the checked execution so far: visits of steps, loops, iterations, tasks, tokens
locate.py     finds the visit, iteration and task that an event belongs to
envelope.py   per event: field types, name, status, outcome
lineage.py    parent, entity and emitter of an event
execution.py  phases of an execution, its root and end, missing events
steps.py      admission, scheduling, start, end and routing of steps
loops.py      loops and their iterations
tasks.py      task order, attempts, policies, results

Invariants: the rules read events only, never the engine; they report findings and never raise; a missing optional
field is not a finding. `checker.NoetlChecker` applies them in one pass.
"""
