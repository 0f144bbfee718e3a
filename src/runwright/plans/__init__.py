"""Plan formats to ExecutionPlan and back; the plan store.

loader.py            entry point: text, file or data to an ExecutionPlan, or PlanInvalid with all problems
problems.py          Problem, PlanInvalid, and the collector that readers report to
yaml/                YAML and JSON documents with positions          json_values.py  check for JSON values
field_reader.py      typed access to a mapping                       durations.py    `30s` to seconds
header.py            metadata, parameters and their types, order     steps.py        one step
input_checks.py      step inputs against the input struct of a tool  secret_refs.py  secret references and leaks
dependency_graph.py  topological order and cycles                    reference_checks.py  names in expressions
playbook/            NoETL playbooks to ExecutionPlan and back
writer.py            ExecutionPlan to YAML
drawing/             graphs of plans for terminals and browsers
dbt_manifest.py      dbt manifest to a plan document                 starter.py      files of `runwright init`
registry.py          plans that this process has loaded, by hash     store.py        plans of tenants, by hash

Invariants: a plan is immutable and identified by its content hash; equal plans have equal bytes (`make_canonical`); all
problems of a plan are reported together; a written plan loads as the same plan; a plan never holds a secret value.
"""
