"""State and plan to the next events: what both schedulers share, and the scheduler of plans.

context.py         SchedulingContext: the state of a run, the time, and the drafts made from it; free capacity
scheduler.py       the Scheduler protocol, and what passes through it
dag_scheduler.py   DagScheduler: plans
readiness.py       which steps of a plan can start          foreach.py        foreach steps
worker_steps.py    steps that workers claim                 steps.py          step events emitted in several places
approvals.py       approvals and external events            signals.py        signals and deadlines of a run
loops.py           what foreach and playbook loops share    retry.py          retry delay
due_times.py       due times                                run_end_payloads.py  payloads of RunCompleted and RunFailed
stored_values.py   values inline and by reference           result_refs.py    where task results are stored
scope.py           expression scope of a plan

Invariants: pure, no clock and no I/O; a decision depends on the folded state alone, so that every process that recovers
a run decides the same; a decision that needs a value raises MissingValues and is made again once it was fetched.
"""
