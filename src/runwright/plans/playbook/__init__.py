"""NoETL playbooks to ExecutionPlan and back.

reader.py       document to ExecutionPlan: metadata, workload, steps, arcs, loops
tasks.py        pipelines: tasks with labels, policies, timeouts and task queues
task_kinds.py   fields of each kind of task, in all their spellings, to inputs of a tool
workbook.py     named tasks, used by other tasks; some become playbooks of their own
policies.py     conditions, rules, assignments (`set`), legacy names of end events
result_spec.py  `spec.result` of a task: where large results are stored
writer.py       ExecutionPlan to the canonical spelling

Invariants: all problems of a playbook are collected before it is rejected; every spelling of a playbook gives the same
plan; a written playbook loads as the same plan.
"""
