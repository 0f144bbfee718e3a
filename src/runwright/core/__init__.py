"""The pure core: no I/O, no clock.

fold/         events to state; the only code that interprets events
integrity/    the hash chain and its verification
expressions/  the {{ }} language with a cost budget
graph/        compiled plans
scheduling/   the scheduler of plans, and what both schedulers share
playbook/     the scheduler of playbooks
decider.py    Decider: the entry point of every runtime
projector.py  snapshots for external consumers
"""
