"""The dbt step: one node of a dbt project, or a selection of nodes.

tool.py     inputs and checks of the step; stores dbt's files as artifacts
project.py  DbtProject: queue of a project, batches ready nodes into one dbt invocation
worker.py   the child process that has dbt loaded

Invariants: one invocation at a time per project and environment; a step that is a node ends when dbt reports the node,
except the last of an invocation, which ends after its files are stored.
"""
