"""NoETL compatibility: render, read and check events of the NoETL event model.

extras.py      fields of a NoETL event that the catalogue has no place for
view.py        a record as a NoETL event
names.py       event names of the model and of its predecessors
entity_ids.py  ids of steps and tasks to entity paths
reader.py      a NoETL event as an event of the catalogue (used by `log.noetl_importer`)
schema.py      JSON Schema of a NoETL event
checker.py     checks a whole log against the model
rules/         the rules of the checker

Invariants: pure, no I/O; an imported event is rendered exactly as it was received.
"""
