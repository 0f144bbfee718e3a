"""Compiled plans: what is constant over all runs of a plan.

node.py            one schedulable unit: a step, or a task of a playbook
plan_graph.py      steps and their dependencies; finds the node of an entity path
playbook_graph.py  steps, tasks and arcs of a playbook, and the names that each of its expressions uses
"""
